package node

import (
	"errors"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// standing is how this node stands to a partition, by its metastore replica.
type standing uint8

const (
	leads     standing = iota // and may serve it
	notReady                  // before the ownership latch
	unknown                   // the replica does not know this life (yet)
	gone                      // this life has ended
	replaced                  // another life has the name, and the end of this one is not known here
	notLeader                 // another node, or none, leads
	lost                      // it leads by name, but the replica is on another disk
)

// judgement is a standing and what it was judged by.
type judgement struct {
	standing standing
	a        *topic.Assignment // with leads, notLeader and lost
	live     topic.Incarnation // with gone and replaced; 0: none
}

// judge is the one place that decides whether this node serves a partition. It
// reads the local replica only.
func judge(view metastate.View, self string, disk topic.ID64, ref topic.Ref) judgement {
	p, err := view.Assignments(ref.Topic)
	switch {
	case errors.Is(err, metastate.ErrNoTopic) && view.Ended(ref.Incarnation):
		return judgement{standing: gone}
	case errors.Is(err, metastate.ErrNoTopic):
		return judgement{standing: unknown}
	case err != nil:
		return judgement{standing: notReady}
	case p.Incarnation != ref.Incarnation && view.Ended(ref.Incarnation):
		return judgement{standing: gone, live: p.Incarnation}
	case p.Incarnation != ref.Incarnation:
		return judgement{standing: replaced, live: p.Incarnation}
	case ref.Partition < 0 || int(ref.Partition) >= len(p.List):
		return judgement{standing: unknown}
	}
	a := &p.List[ref.Partition]
	if a.Leader != self {
		return judgement{standing: notLeader, a: a}
	}
	if r, ok := a.ReplicaOn(self); !ok || r.DiskID != disk {
		return judgement{standing: lost, a: a}
	}
	return judgement{standing: leads, a: a}
}

// holds tells whether this node has a copy of the partition that another one
// leads, or none, or that is on another disk: it follows, and can be fenced.
func (j judgement) holds(self string) bool {
	if j.a == nil || !j.a.Replicated() {
		return false
	}
	return j.a.On(self)
}

// refuse is the problem that a judgement means for a request, or nil when the
// node serves the partition. read tells requests that change nothing, which know
// topic_changed instead of incarnation_mismatch.
func (j judgement) refuse(ref topic.Ref, read bool) *problem.Problem {
	switch j.standing {
	case leads:
		return nil
	case gone, replaced:
		if read {
			return problem.New(problem.TopicChanged, "%s is not the live topic", ref).With("incarnation", j.live.String())
		}
		return problem.New(problem.IncarnationMismatch, "%s is not the live topic", ref).
			With("live", j.live.String()).With("given", ref.Incarnation.String())
	case notLeader:
		return problem.New(problem.NotPartitionLeader, "this node does not lead %s", ref).
			With("leader", j.a.Leader).With("leader_epoch", j.a.LeaderEpoch)
	case lost:
		return problem.New(problem.PartitionUnavailable, "the disk that holds %s is not this node's", ref)
	}
	return problem.New(problem.NotReady, "this node's metastore replica does not show %s yet", ref)
}

// refuseTarget also compares what the caller believes of disk and epoch.
func (j judgement) refuseTarget(ref topic.Ref, disk topic.ID64, epoch topic.Epoch, own topic.ID64, read bool) *problem.Problem {
	if p := j.refuse(ref, read); p != nil {
		return p
	}
	switch {
	case disk != own:
		return problem.New(problem.PartitionUnavailable, "the replica of %s that is meant is on another disk", ref)
	case epoch < j.a.LeaderEpoch:
		return problem.New(problem.StaleEpoch, "%s is led under epoch %d, not %d", ref, j.a.LeaderEpoch, epoch).
			With("leader", j.a.Leader).With("leader_epoch", j.a.LeaderEpoch)
	case epoch > j.a.LeaderEpoch:
		return problem.New(problem.NotReady, "this node's metastore replica has not seen epoch %d of %s yet", epoch, ref)
	}
	return nil
}
