package moves

import (
	"slices"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
)

// growing is the next step of a move without a source: the partition gets one replica
// more, and nobody gives one up. It is over once a record is committed by the larger
// set. Until then it can be taken back, which matters beside a lone copy: nothing is
// committed there without the new one.
func (s *scene) growing() step {
	_, joined := s.part.ReplicaOn(s.move.To)
	switch {
	case !joined && !s.observed():
		return step{do: end, why: "the replicas were changed otherwise"}
	case joined:
		return s.grown()
	case s.move.Aborted:
		return step{do: end, why: "aborted"}
	case s.leaves():
		return step{do: end, why: "the destination is to be removed"}
	}
	target, st := s.near(s.part.Replicas[0])
	if target.CopyID == 0 {
		return st
	}
	return s.change(metaapi.MoveCopying, append(slices.Clone(s.part.Replicas), target))
}

// grown: the destination is a replica.
func (s *scene) grown() step {
	dst, _ := s.part.ReplicaOn(s.move.To)
	pair := len(s.part.Replicas) == 2
	switch {
	case s.part.Leader == s.move.To: // it was elected: it has everything
		return step{do: end, phase: metaapi.MoveReclaiming}
	case s.move.Aborted:
		return s.shrink("aborted")
	case !s.usable(dst) && (pair || s.moved(dst) || s.deadFor >= lifecycle.DeadMoveAfter):
		return s.shrink("the destination is dead")
	case pair && s.answered() && s.silentFor >= silentAfter:
		return s.shrink("the destination does not fetch")
	case pair && s.full():
		return s.shrink("the destination's disk is full")
	case s.answered() && s.vouch.Settled:
		return step{do: end, phase: metaapi.MoveReclaiming}
	}
	return step{phase: metaapi.MoveJoined, why: "no record was committed by the larger set yet"}
}

// shrink takes the replica back that was added last.
func (s *scene) shrink(why string) step {
	return because(why, s.change(metaapi.MoveJoined, without(s.part.Replicas, s.move.To)))
}
