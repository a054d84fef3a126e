package moves

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// silentAfter: beside a lone copy nothing is committed without the destination;
// when it has fetched nothing for so long it is taken back. Longer than the lease
// of a leader, so that a pause that nobody notices is none here either.
const silentAfter = 2 * quorum.LeaseMS * time.Millisecond

// muteAfter is how long a leader has for its word before a move that needs it is blocked:
// longer than an election, and than a node that starts anew takes to lead again.
const muteAfter = 10 * time.Second

// scene is what a step is decided by.
type scene struct {
	move    topic.Move
	part    *topic.Assignment // nil: that life or partition is not there any more
	members map[string]*topic.Member
	vouch   nodeapi.Vouch // of the partition's leader; zero: it did not answer
	deadFor time.Duration // since when the destination is seen dead, in this term
	// silentFor is since when leaders of the pair say that the destination fetches nothing.
	silentFor time.Duration
	// muteFor is since when nobody leads the partition, or the leader does not answer.
	muteFor time.Duration
}

// action is what a step does.
type action uint8

const (
	wait   action = iota // until the metastore or the leader says something else
	change               // the replica set becomes replicas
	elect                // leadership goes to `to`
	depose               // nobody leads under a next epoch
	end                  // the move is over
)

// step is what follows in a move, and how that is shown.
type step struct {
	do       action
	replicas []topic.Replica
	to       string
	phase    metaapi.MovePhase
	blocked  metaapi.MoveBlocked
	why      string // of a wait, or of an end that is no success
}

// next decides. It is a pure function: same scene, same step. What waits for the word of
// a leader that has none for long is blocked, whatever it would have said: a copy that is
// gone or damaged does not lead again by itself, and others shall not wait for that.
func next(s *scene) step {
	st := s.next()
	if (st.do == wait || st.do == elect) && st.blocked == "" && s.muteFor >= muteAfter {
		st.blocked = metaapi.BlockedLeader
	}
	return st
}

func (s *scene) next() step {
	if s.part == nil {
		return step{do: end, why: "the topic has ended"}
	}
	if s.stranded() {
		return step{do: end, why: "the loss of its only copy was accepted when the node was removed: reset the partition"}
	}
	if s.move.From == "" {
		return s.growing()
	}
	src, hasSrc := s.part.ReplicaOn(s.move.From)
	dst, hasDst := s.part.ReplicaOn(s.move.To)
	switch {
	case hasDst && !hasSrc:
		return step{do: end, phase: metaapi.MoveReclaiming}
	case !hasSrc, !hasDst && !s.observed():
		return step{do: end, why: "the replicas were changed otherwise"}
	case s.move.Aborted:
		return s.back("aborted")
	case hasDst:
		return s.joined(dst)
	}
	return s.copying(src)
}

// stranded tells whether all that has everything went with a node that was removed, which
// takes somebody who accepts that loss: no step is left, and none may be made. To go back
// would leave the removed node alone in the set, without what a destination that has joined
// has: that is what a reset goes on with.
func (s *scene) stranded() bool {
	others := without(s.part.Replicas, s.move.To)
	if len(others) != 1 || s.part.Leader == s.move.To {
		return false
	}
	source := others[0].Node
	return s.members[source] == nil && (s.move.From == "" || s.move.From == source)
}

func (s *scene) observed() bool {
	return slices.ContainsFunc(s.part.Observers, func(o topic.Replica) bool { return o.Node == s.move.To })
}

// usable tells whether a replica's node is alive with the disk of the copy.
func (s *scene) usable(r topic.Replica) bool {
	m := s.members[r.Node]
	return m != nil && m.Status == topic.StatusAlive && m.DiskID == r.DiskID
}

// moved tells whether the node of a copy has another disk by now, or is gone.
func (s *scene) moved(r topic.Replica) bool {
	m := s.members[r.Node]
	return m == nil || m.DiskID != r.DiskID
}

// leaves tells whether the destination is to be removed.
func (s *scene) leaves() bool {
	m := s.members[s.move.To]
	return m != nil && m.Draining
}

// full tells whether the destination's disk is, so that nothing more is moved there. A
// copy that only lacks its end still becomes one of several; a lone one would lead and
// refuse.
func (s *scene) full() bool {
	m := s.members[s.move.To]
	return m != nil && placement.Full(m)
}

// answered tells whether the leader's word holds for what the metastore shows.
func (s *scene) answered() bool {
	return s.part.Leader != "" && s.vouch.Epoch == s.part.LeaderEpoch && s.vouch.ConfigVersion == s.part.ConfigVersion
}

// copying: the destination is an observer.
func (s *scene) copying(src topic.Replica) step {
	if s.leaves() {
		return step{do: end, why: "the destination is to be removed"} // it would all have to move on
	}
	target, st := s.near(src)
	if target.CopyID == 0 {
		return st
	}
	// It takes the place of the source: the first of a set leads when all is well.
	to := slices.Clone(s.part.Replicas)
	at := slices.Index(to, src)
	to[at] = target
	return s.change(metaapi.MoveCopying, append(to, src))
}

// near is the destination's copy when it may become a replica, or one without an id and
// what is waited for. src is the copy that a lone partition has.
func (s *scene) near(src topic.Replica) (topic.Replica, step) {
	target := topic.Replica{Node: s.move.To, DiskID: s.move.ToDisk}
	st, ok := s.ready(target, src)
	if !ok {
		return target, st
	}
	c, fetches := s.vouch.Copy(s.move.To)
	switch {
	case (len(s.part.Replicas) == 1 || !fetches || !c.Near) && s.full(): // it may have no room to begin with
		return target, step{phase: metaapi.MoveCopying, blocked: metaapi.BlockedTargetFull}
	case !fetches || c.DiskID != s.move.ToDisk || c.CopyID == 0:
		return target, step{phase: metaapi.MovePending, why: "the destination has not fetched yet"}
	}
	target.CopyID = c.CopyID
	return target, step{}
}

// ready tells whether the destination can fetch and the leader says how far it is; if
// not, what is waited for.
func (s *scene) ready(target, src topic.Replica) (st step, ok bool) {
	lone := len(s.part.Replicas) == 1
	switch {
	case s.moved(target):
		return step{do: end, why: "the destination has another disk, or is no member any more"}, false
	case !s.usable(target) && s.deadFor >= lifecycle.DeadMoveAfter:
		return step{do: end, why: "the destination is dead"}, false
	case !s.usable(target):
		return step{phase: metaapi.MoveCopying, blocked: metaapi.BlockedTargetDead}, false
	case lone && s.moved(src):
		return step{phase: metaapi.MovePending, blocked: metaapi.BlockedUnverifiable, why: "the only copy is on a disk that its node has no more: bring that back, or reset the partition"}, false
	case lone && !s.usable(src):
		return step{phase: metaapi.MovePending, blocked: metaapi.BlockedSourceDead}, false
	case lone && src.CopyID == 0:
		return step{phase: metaapi.MovePending, why: "the source's copy is not recorded yet"}, false
	case !s.answered():
		return step{phase: metaapi.MovePending, why: "the partition's leader has not answered"}, false
	}
	return step{}, true
}

// joined: both are replicas.
func (s *scene) joined(dst topic.Replica) step {
	pair := len(s.part.Replicas) == 2
	if !s.usable(dst) {
		if pair || s.moved(dst) || s.deadFor >= lifecycle.DeadMoveAfter {
			return s.back("the destination is dead")
		}
		return step{phase: metaapi.MoveJoined, blocked: metaapi.BlockedTargetDead}
	}
	lead, led := s.part.ReplicaOn(s.part.Leader)
	switch {
	case !led || !s.usable(lead):
		st := step{phase: metaapi.MoveElecting, why: "the partition has no leader"}
		if src, _ := s.part.ReplicaOn(s.move.From); pair && !s.usable(src) {
			st.blocked = metaapi.BlockedSourceDead
		}
		return st
	case s.part.Leader != s.move.From:
		return s.change(metaapi.MoveRemoving, without(s.part.Replicas, s.move.From))
	}
	switch {
	case pair && s.answered() && s.silentFor >= silentAfter:
		return s.back("the destination does not fetch")
	case pair && s.full():
		// It fetches and cannot store: nothing is committed, and nobody is silent.
		return s.back("the destination's disk is full")
	}
	if !s.answered() {
		return step{phase: metaapi.MoveJoined, why: "the partition's leader has not answered"}
	}
	return step{do: elect, to: s.move.To, phase: metaapi.MoveElecting}
}

// back is the next step of taking a move back. The set in which the destination
// was no replica is the one before the last change, to which it goes back without
// anybody's word; when other changes came between, the leader has to vouch.
func (s *scene) back(why string) step {
	if _, in := s.part.ReplicaOn(s.move.To); !in {
		return step{do: end, why: why}
	}
	if s.part.Leader != s.move.To {
		// The source gets its place back.
		src, _ := s.part.ReplicaOn(s.move.From)
		to := without(s.part.Replicas, s.move.From)
		to[slices.IndexFunc(to, func(r topic.Replica) bool { return r.Node == s.move.To })] = src
		return because(why, s.change(metaapi.MoveJoined, to))
	}
	dst, _ := s.part.ReplicaOn(s.move.To)
	pair := len(s.part.Replicas) == 2
	heir := s.heir()
	switch {
	case pair && !s.usable(dst):
		// An election needs both. Whatever is committed of the pair is on both, so the
		// source goes on alone once the one that is silent leads no more.
		return step{do: depose, phase: metaapi.MoveElecting, why: why}
	case heir != "":
		return step{do: elect, to: heir, phase: metaapi.MoveElecting, why: why}
	case pair:
		// Only the destination can serve, and it has everything.
		return s.change(metaapi.MoveRemoving, without(s.part.Replicas, s.move.From))
	}
	return step{phase: metaapi.MoveElecting, blocked: metaapi.BlockedSourceDead, why: why}
}

// because is a step with the reason why it is made, unless it says itself why not.
func because(why string, st step) step {
	if st.do == change || st.why == "" {
		st.why = why
	}
	return st
}

// heir is who is to lead when the destination is not: the source when it can, else
// another replica.
func (s *scene) heir() string {
	best := ""
	for _, r := range s.part.Replicas {
		if r.Node == s.move.To || !s.usable(r) || r.CopyID == 0 {
			continue
		}
		if r.Node == s.move.From {
			return r.Node
		}
		if best == "" {
			best = r.Node
		}
	}
	return best
}

// change is a change of the replica set as the rule allows it, or a wait for what
// the rule waits for. A copy that is gone is never left alone: what the other one of a pair
// has would count for nothing.
func (s *scene) change(phase metaapi.MovePhase, to []topic.Replica) step {
	if len(to) == 1 && s.moved(to[0]) {
		return step{phase: phase, blocked: metaapi.BlockedUnverifiable, why: "the copy that would stay is on a disk that its node has no more: bring that back, or reset the partition"}
	}
	now := quorum.Set{
		Version: s.part.ConfigVersion, Replicas: copies(s.part.Replicas), Before: copies(s.part.Before), Since: s.part.Since,
	}
	v := quorum.Vouch{Epoch: s.vouch.Epoch, Version: s.vouch.ConfigVersion, Settled: s.vouch.Settled}
	for _, c := range s.vouch.Copies {
		if c.Near {
			v.Near = append(v.Near, copyOf(c.Replica))
		}
	}
	_, err := quorum.NextSet(now, quorum.Leadership{Epoch: s.part.LeaderEpoch, Leader: s.part.Leader}, copies(to), v)
	switch {
	case err == nil:
		return step{do: change, replicas: to, phase: phase}
	case errors.Is(err, quorum.ErrNotCaughtUp), errors.Is(err, quorum.ErrNotSettled):
		return step{phase: phase}
	}
	return step{phase: phase, why: fmt.Sprintf("the replica set cannot be changed: %v", err)}
}

func without(set []topic.Replica, node string) []topic.Replica {
	return slices.DeleteFunc(slices.Clone(set), func(r topic.Replica) bool { return r.Node == node })
}

func copyOf(r topic.Replica) quorum.Replica {
	return quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
}

// copies is nil for an empty set, which for the rule is another thing than a set
// of none.
func copies(set []topic.Replica) []quorum.Replica {
	var out []quorum.Replica
	for _, r := range set {
		out = append(out, copyOf(r))
	}
	return out
}
