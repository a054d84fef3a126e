package raftnode

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/topic"
)

// Each row fails by one condition alone: without it, the node would count as caught up.
func TestCaughtUpNeedsEveryCondition(t *testing.T) {
	follower := standing{leaderKnown: true, contacted: true, contactAge: time.Second, leaderCommit: 10, raftApplied: 10}
	leader := standing{leading: true, leaderKnown: true, noopCommitted: true, ownCommit: 10, raftApplied: 10}
	for _, c := range []struct {
		name string
		from standing
		edit func(*standing)
		want string
	}{
		{"follower", follower, func(*standing) {}, ""},
		{"leader", leader, func(*standing) {}, ""},
		{"no leader", follower, func(s *standing) { s.leaderKnown = false }, reasonNoLeader},
		{"never heard", follower, func(s *standing) { s.contacted = false }, reasonStaleContact},
		{"heard long ago", follower, func(s *standing) { s.contactAge = FreshContact + 1 }, reasonStaleContact},
		{"heartbeats only", follower, func(s *standing) { s.leaderCommit = 0 }, reasonNoCommitIndex},
		{"one entry behind", follower, func(s *standing) { s.leaderCommit = 11 }, reasonBehind},
		{"own commit is not the leader's", follower, func(s *standing) { s.leaderCommit, s.ownCommit = 11, 10 }, reasonBehind},
		{"handed over, not applied", follower, func(s *standing) { s.commandMissing = true }, reasonApplying},
		{"leader without its no-op", leader, func(s *standing) { s.noopCommitted = false }, reasonNoCommitIndex},
		{"leader behind its commit", leader, func(s *standing) { s.ownCommit = 11 }, reasonBehind},
		{"leader in replay", leader, func(s *standing) { s.commandMissing = true }, reasonApplying},
		{"leader needs no contact", leader, func(s *standing) { s.leaderKnown = false }, ""},
	} {
		s := c.from
		c.edit(&s)
		ok, why := s.caughtUp(FreshContact)
		if ok != (c.want == "") || why != c.want {
			t.Errorf("%s: %v %q, want %q", c.name, ok, why, c.want)
		}
	}
}

// A node that heard heartbeats only does not know how far it is behind.
func TestHeartbeatsAloneAreNoCatchUp(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := newHost(t, "s1", false)
	// It stops before the leader has read its last answers. Raft's leader goes back
	// from there entry by entry, and never comes forward again when it meets one that
	// the follower has cut from its log.
	s.tune = func(t *Timing) {
		t.TrailingLogs = 1000
		t.Heartbeat, t.Election, t.FreshContact = time.Hour, time.Hour, time.Hour // nor does it stop following when the machine stands still
	}
	s.start()
	addNonvoter(t, s, cluster...)
	waitApplied(t, fill(t, cluster, "old", 1, 3), s)
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	last := fill(t, cluster, "new", 10, 3)

	release := make(chan struct{})
	s.hooks.beforeRPC = func(rpc raft.RPC) {
		if _, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
			<-release
		}
	}
	s.start()
	poll(t, "contact", func() bool { _, ok := s.LeaderContact(); id, _ := s.Leader(); return ok && id == "v1" })
	if ok, why := s.CaughtUp(); ok || why != reasonNoCommitIndex {
		t.Errorf("after heartbeats: %v %q", ok, why)
	}
	if s.View().CaughtUpOnce() || s.Applied() >= last {
		t.Error("counts as caught up")
	}
	close(release)
	poll(t, "the catch-up", s.View().CaughtUpOnce)
	if s.Applied() < last {
		t.Errorf("caught up at %d, the cluster is at %d", s.Applied(), last)
	}
}

// A node that sees no leader holds what its disk holds: an old world.
func TestASnapshotAloneIsNoCatchUp(t *testing.T) {
	v := single(t)
	s := nonvoter(t, "s1", v)
	waitApplied(t, fill(t, []*host{v}, "t", 1, 3), s)
	if err := s.Snapshot(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	v.stop()
	s.start()
	if ok, why := s.CaughtUp(); ok || why != reasonNoLeader {
		t.Fatalf("without a leader: %v %q", ok, why)
	}
}

// A node that took its leader's last word for fresh would decide by a view that is as
// old as that word. It still knows a leader, holds everything that this one ever told,
// and is not caught up: whoever leads by now may have committed more.
func TestAnOldContactIsNoCatchUp(t *testing.T) {
	v := single(t)
	s := newHost(t, "s1", false)
	s.tune = func(t *Timing) {
		t.Heartbeat, t.Election = time.Hour, time.Hour // silence alone does not make it forget its leader
		t.FreshContact = 500 * time.Millisecond        // several of its leader's heartbeats
	}
	s.start()
	addNonvoter(t, s, v)
	waitApplied(t, fill(t, []*host{v}, "t", 1, 3), s)
	caughtUp := func() bool { ok, _ := s.CaughtUp(); return ok }
	poll(t, "the catch-up", caughtUp)
	v.stop()
	poll(t, "the contact to be old", func() bool { ok, why := s.CaughtUp(); return !ok && why == reasonStaleContact })
	if id, _ := s.Leader(); id != "v1" {
		t.Errorf("it follows %q", id)
	}
	v.start()
	poll(t, "the catch-up when the leader is heard again", caughtUp)
}

// Raft counts entries as applied when it hands them over. A node held in that
// moment must not take its view for current.
func TestABatchHandedOverIsNotApplied(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := nonvoter(t, "s1", cluster...)
	waitApplied(t, fill(t, cluster, "old", 1, 2), s)
	s.stop()
	fill(t, cluster, "new", 10, 5)
	last, _ := apply(t, cluster, registerAs("s1", topic.RoleStorage, s.nonce+1))

	release := make(chan struct{})
	s.hooks.beforeApply = func(uint64) { <-release }
	s.start()
	// Behind for a moment at a time while the leader's commit index moves on.
	poll(t, "raft to count the entries as applied, and the node not to", func() bool {
		ok, why := s.CaughtUp()
		if ok {
			t.Fatal("caught up while the batch is held")
		}
		return s.raft().AppliedIndex() >= last && why == reasonApplying
	})
	if s.View().CaughtUpOnce() || s.View().Latched() {
		t.Error("the marks are set on an old view")
	}
	close(release)
	poll(t, "the latch", s.View().Latched)
	if _, err := s.View().Assignments("new4"); err != nil {
		t.Errorf("latched without the newest topic: %v", err)
	}
}

// An election proves the log, not the state: a leader that still replays is not
// caught up, passes no barrier and sets no latch.
func TestALeaderInReplayIsNotCaughtUp(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	apply(t, cluster, createTopic("t", 1, "v1"))
	last, _ := apply(t, cluster, registerAs("v1", topic.RoleStorage, v.nonce+1))
	v.stop()
	// The state is from before: as after a crash between the log's write and the state's.
	removeState(t, v)

	release := make(chan struct{})
	v.hooks.beforeApply = func(uint64) { <-release }
	v.start()
	poll(t, "leadership with everything handed over, and the node not caught up", func() bool {
		ok, why := v.CaughtUp()
		if ok {
			t.Fatal("caught up in replay")
		}
		return v.IsLeader() && v.raft().CommitIndex() > last && why == reasonApplying
	})
	if v.View().Latched() || v.View().CaughtUpOnce() {
		t.Error("the marks are set in replay")
	}
	// Even if all else were there, only a barrier would let a leader latch.
	v.replica.caughtUp.Store(true)
	v.replica.registered.Store(true)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if v.tryLatch(short) || v.View().Latched() {
		t.Error("a leader latched without a barrier")
	}
	close(release)
	poll(t, "the latch", v.View().Latched)
	if _, err := v.View().Assignments("t"); err != nil {
		t.Error(err)
	}
}

// Caught up is not enough: only the registration of this very start proves that
// the view is not from before it.
func TestNoLatchBeforeOwnRegistration(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := nonvoter(t, "s1", cluster...)
	apply(t, cluster, register(s))
	poll(t, "the first latch", s.View().Latched)
	s.stop()
	s.start()
	poll(t, "the catch-up", s.View().CaughtUpOnce)
	waitApplied(t, fill(t, cluster, "more", 50, 2), s)
	// Registrations of another start, and of another node with this nonce.
	last, _ := apply(t, cluster, registerAs("s1", topic.RoleStorage, s.nonce+7))
	other, _ := apply(t, cluster, registerAs("s2", topic.RoleStorage, s.nonce))
	waitApplied(t, max(last, other), s)
	if s.tryLatch(t.Context()) || s.View().Latched() {
		t.Fatal("latched without its own registration")
	}
	changed := s.View().Changed()
	apply(t, cluster, register(s))
	poll(t, "the latch", s.View().Latched)
	select {
	case <-changed:
	case <-within(t).Done():
		t.Fatal("the latch woke nobody")
	}
}

// The registration alone is not enough either: what stands behind it on the log
// may already have taken a partition away again.
func TestNoLatchBeforeTheCatchUp(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := nonvoter(t, "s1", cluster...)
	waitApplied(t, fill(t, cluster, "old", 1, 1), s)
	s.stop()
	registered, _ := apply(t, cluster, registerAs("s1", topic.RoleStorage, s.nonce+1))
	fill(t, cluster, "new", 10, 9)

	release := make(chan struct{})
	s.tune = func(t *Timing) { t.MaxAppendEntries = 2 }
	s.hooks.beforeApply = func(first uint64) {
		if first > registered {
			<-release
		}
	}
	s.start()
	poll(t, "its registration", func() bool { return s.Applied() >= registered && s.replica.registered.Load() })
	if ok, why := s.CaughtUp(); ok || s.tryLatch(t.Context()) {
		t.Errorf("latched while entries behind the registration are missing (%v %q)", ok, why)
	}
	close(release)
	poll(t, "the latch", s.View().Latched)
	if _, err := s.View().Topic("new8"); err != nil {
		t.Error(err)
	}
}

// A snapshot may stand for more than the state machine has applied: no-ops and
// barriers never reach it. Once they have left the log, nobody can look whether
// they were commands, so the snapshot's index must count.
func TestEntriesThatAreNoCommandsDoNotHoldTheCatchUp(t *testing.T) {
	v := single(t)
	last := fill(t, []*host{v}, "t", 1, 2)
	for range 10 {
		if err := v.Barrier(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if first, err := v.logs.FirstIndex(); err != nil || first <= last+1 {
		t.Fatalf("the log still begins at %d, %v", first, err)
	}
	if ok, why := v.CaughtUp(); !ok {
		t.Errorf("after the snapshot: %s", why)
	}
	v.stop()
	removeState(t, v)
	v.start()
	if at, err := v.stores.state.applied(); err != nil || at <= last {
		t.Errorf("restored with applied index %d, %v", at, err)
	}
	poll(t, "the catch-up after the restart", func() bool { ok, _ := v.CaughtUp(); return ok })
}
