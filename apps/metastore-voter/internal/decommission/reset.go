package decommission

import (
	"slices"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// Loss is how much of a partition is gone for good, as far as the metastore knows.
type Loss struct {
	// Lost: no majority of the replicas is on a disk of record, so that waiting for
	// nodes that are only down does not bring it back.
	Lost bool
	// Left are the replicas that still are, of live nodes; all others are lost.
	Left []topic.Replica
	// Silent are the replicas on disks of record whose nodes are dead: what they have
	// cannot be told.
	Silent []topic.Replica
}

// LossOf judges one partition. A copy that never held anything because it was never
// opened counts like one that did: nobody knows.
func LossOf(a *topic.Assignment, members map[string]*topic.Member) Loss {
	var l Loss
	for _, r := range a.Replicas {
		switch m := members[r.Node]; {
		case m == nil || m.DiskID != r.DiskID:
		case m.Status == topic.StatusDead:
			l.Silent = append(l.Silent, r)
		default:
			l.Left = append(l.Left, r)
		}
	}
	l.Lost = metastate.Lost(a, members)
	return l
}

// Gone are the replicas of a set that are not among those left.
func (l *Loss) Gone(a *topic.Assignment) []topic.Replica {
	var out []topic.Replica
	for _, r := range a.Replicas {
		if !slices.Contains(l.Left, r) {
			out = append(out, r)
		}
	}
	return out
}
