package accept

import (
	"sync/atomic"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// Suspects is the nodes that are probably dead, as gossip has it: hearsay, good
// enough to prefer another partition for what may go to any.
type Suspects interface {
	// All returns the set; nobody changes it.
	All() map[string]bool
	// Changed returns a channel that is closed at the next change. Taken before All.
	Changed() <-chan struct{}
}

// Places is the partitions of one life among which messages of neither key nor pin
// are shared out: those whose leader is there, lives and is not suspected. What is
// put on another one waits there for a verdict, behind a batch that may be on its
// way to a node that does not answer.
type Places struct {
	seen atomic.Pointer[seen]
}

// seen is a choice and what it was made from. The values of a view are immutable,
// so the same pointers mean the same choice.
type seen struct {
	parts    *metastate.Partitions
	members  *metastate.MemberTable
	suspects <-chan struct{}
	fine     []int32 // in order; nil: all, because all are fine or none is known to be
}

// Turn is the partition of the n-th such message of a topic; fine as Fine gave it.
func Turn(n uint32, t *topic.Topic, fine []int32) int32 {
	if fine == nil {
		return int32(n % uint32(t.Partitions))
	}
	return fine[n%uint32(len(fine))]
}

// Fine chooses as the view and gossip are now, in order; nil means all: because all
// are fine or none is known to be. A few atomic loads while neither changes.
func (l *Places) Fine(t *topic.Topic, view metastate.View, suspects Suspects) []int32 {
	parts, err := view.Assignments(t.Name)
	if err != nil || parts.Incarnation != t.Incarnation {
		return nil // this replica does not know
	}
	members := view.Members()
	var avoid map[string]bool
	var told <-chan struct{}
	if suspects != nil {
		told, avoid = suspects.Changed(), suspects.All()
	}
	if was := l.seen.Load(); was != nil && was.parts == parts && was.members == members && was.suspects == told {
		return was.fine
	}
	now := &seen{parts: parts, members: members, suspects: told}
	all := min(t.Partitions, len(parts.List))
	for p := range int32(all) {
		m := members.ByID[parts.List[p].Leader]
		if m != nil && m.Status == topic.StatusAlive && !avoid[m.ID] {
			now.fine = append(now.fine, p)
		}
	}
	if len(now.fine) == all {
		now.fine = nil
	}
	l.seen.Store(now)
	return now.fine
}
