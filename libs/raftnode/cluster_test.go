package raftnode

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

func TestNonvoterCatchesUpByLog(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	last := fill(t, cluster, "t", 1, 5)
	s := nonvoter(t, "s1", cluster...)
	waitApplied(t, last, s)
	if s.dump() != v.dump() {
		t.Fatal("states differ")
	}
	poll(t, "the leader to know the non-voter's log end", func() bool {
		for _, srv := range v.Stats().Servers {
			if srv.ID == "s1" {
				return srv.Known && !srv.Voter && !srv.Failing && srv.LastLog >= last
			}
		}
		return false
	})
	if st := v.Stats(); st.State != "leader" || st.LeaderID != "v1" || st.TermStart == 0 || st.TermStart > st.Commit || st.Applied < last {
		t.Fatalf("stats %+v", st)
	}
	s.stop()
	poll(t, "the heartbeats to fail", func() bool { return v.HeartbeatFailing("s1") })
}

// A node so far behind that it gets a snapshot forgets what ended meanwhile, and
// its view is the new one at once.
func TestRestoreReplacesTheView(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := nonvoter(t, "s1", cluster...)
	fill(t, cluster, "gone", 1, 3)
	waitApplied(t, fill(t, cluster, "kept", 10, 3), s)
	apply(t, cluster, register(s))
	poll(t, "the latch", s.View().Latched)
	s.stop()

	apply(t, cluster, &metastate.DeleteTopic{Name: "gone0", Incarnation: 1})
	apply(t, cluster, &metastate.DeleteTopic{Name: "gone1", Incarnation: 2})
	apply(t, cluster, createTopic("gone1", 99, "s2"))
	apply(t, cluster, registerAs("s1", topic.RoleStorage, s.nonce+1))
	fill(t, cluster, "more", 100, 10)
	if err := v.Snapshot(); err != nil {
		t.Fatal(err)
	}
	last := fill(t, cluster, "tail", 200, 2)

	looked := make(chan struct{})
	s.hooks.beforeRPC = func(raft.RPC) { <-looked }
	s.start()
	changed := s.View().Changed()
	if _, err := s.View().Topic("gone0"); err != nil {
		t.Errorf("the old state is not there before the catch-up: %v", err)
	}
	close(looked)
	waitApplied(t, last, s)
	<-changed
	if _, err := s.View().Topic("gone0"); !errors.Is(err, metastate.ErrNoTopic) {
		t.Errorf("a deleted name is still there: %v", err)
	}
	if !s.View().Ended(1) || s.View().Ended(99) {
		t.Error("the end of the first life is not known, or one of a live topic is")
	}
	poll(t, "the latch, by a registration that came in the snapshot", s.View().Latched)
	if p, err := s.View().Assignments("gone1"); err != nil || p.Incarnation != 99 || p.List[0].Leader != "s2" {
		t.Errorf("assignments of the new life: %+v, %v", p, err)
	}
	if mine, err := s.View().AssignmentsOf("s1"); err != nil || len(mine) != 1+3+10+2 {
		t.Errorf("%d assignments on s1, %v", len(mine), err)
	}
	if s.dump() != v.dump() {
		t.Error("states differ")
	}
	s.stop()
	s.start()
	if _, err := s.View().Topic("tail1"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func TestViewListsAndWakes(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	for i, name := range []string{"b", "a-1", "a-2", "B2", "a-3"} {
		apply(t, cluster, createTopic(name, topic.Incarnation(i+1), "s1"))
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
	}{
		{"", "", 10, "B2 a-1 a-2 a-3 b "},
		{"", "a-1", 2, "a-2 a-3 "},
		{"a-", "", 2, "a-1 a-2 "},
		{"a-", "a-2", 9, "a-3 "},
		{"a-", "b", 9, ""},
		{"zz", "", 9, ""},
		{"", "", 0, ""},
	} {
		list, err := v.View().Topics(c.prefix, c.after, c.limit)
		got := ""
		for _, top := range list {
			got += top.Name + " "
		}
		if err != nil || got != c.want {
			t.Errorf("Topics(%q, %q, %d) = %q, %v", c.prefix, c.after, c.limit, got, err)
		}
	}
	apply(t, cluster, registerAs("g1", topic.RoleGateway, 3))
	poll(t, "the catch-up", v.View().CaughtUpOnce)
	table := v.View().Members()
	var quiet <-chan struct{}
	woken := 0
	for round := range int64(2) {
		quiet = v.View().Changed()
		apply(t, cluster, &metastate.Heartbeats{NowMS: 8 + round, Items: []metastate.Heartbeat{{ID: "g1", BootNonce: 3}}})
		apply(t, cluster, &metastate.MarkDead{Items: []metastate.DeadMark{{ID: "g1", HeartbeatMS: 1}}})
		select {
		case <-quiet:
			woken++
		default:
		}
	}
	if woken > 1 { // once it may be the catch-up, which wakes them too and is seen before it does
		t.Error("a heartbeat wakes those who wait for changes")
	}
	quiet = v.View().Changed()
	if v.View().Members() != table {
		t.Error("a heartbeat replaced the member table")
	}
	apply(t, cluster, &metastate.MarkDead{Items: []metastate.DeadMark{{ID: "g1", HeartbeatMS: 9}}})
	<-quiet
	if m := v.View().Members().ByID["g1"]; m == nil || m.Status != topic.StatusDead {
		t.Errorf("member %+v", m)
	}
}

func TestOutcomesAreTold(t *testing.T) {
	hosts := trio(t)
	for what, ask := range map[string]func(h *host) error{
		"apply":    func(h *host) error { _, _, err := h.Apply(within(t), createTopic("x", 1, "s1")); return err },
		"barrier":  func(h *host) error { return h.Barrier(within(t)) },
		"transfer": func(h *host) error { return h.TransferLeadership(within(t)) },
	} {
		poll(t, what+" was asked of one that followed all the while", func() bool {
			for _, h := range hosts {
				before := h.Stats()
				if before.State != "follower" {
					continue
				}
				err := ask(h)
				if after := h.Stats(); after.State == "follower" && before.Term == after.Term {
					if !errors.Is(err, ErrNotLeader) {
						t.Errorf("%s on a follower: %v", what, err)
					}
					return true
				}
			}
			return false
		})
	}
	leader := leaderOf(t, hosts...)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := leader.Apply(ended, createTopic("x", 1, "s1")); !errors.Is(err, ErrBusy) || errors.Is(err, ErrOutcomeUnknown) {
		t.Errorf("apply after the caller left: %v", err)
	}
	for _, h := range hosts {
		if h != leader {
			h.stop()
		}
	}
	// It still believes that it leads, or has just stepped down with the entry under way.
	_, _, err := leader.Apply(within(t), createTopic("y", 2, "s1"))
	if !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrNotLeader) {
		t.Errorf("apply without a majority: %v", err)
	}
	poll(t, "the step-down", func() bool { return !leader.IsLeader() })
	if err := leader.Barrier(within(t)); err == nil {
		t.Error("a barrier without a majority")
	}
}

func TestMembershipIsCompareAndSet(t *testing.T) {
	v := bootstrapped(t, newHost(t, "v1", true))
	ctx := within(t)
	s1, s2 := newHost(t, "s1", false), newHost(t, "v2", true)
	s1.start()
	s2.start()
	apply(t, []*host{v}, createTopic("t", 1, "s1"))
	seen := v.Configuration()
	if len(seen.Servers) != 1 || !seen.Servers[0].Voter || seen.Index == 0 {
		t.Fatalf("configuration %+v", seen)
	}
	if _, err := v.AddNonvoter(ctx, "s1", s1.addr, 0); !errors.Is(err, ErrConflict) {
		t.Fatalf("without an index: %v", err)
	}
	index, err := v.AddNonvoter(ctx, "s1", s1.addr, seen.Index)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.AddNonvoter(ctx, "v2", s2.addr, seen.Index); !errors.Is(err, ErrConflict) {
		t.Fatalf("with a stale index: %v", err)
	}
	if now := v.Configuration(); now.Index != index {
		t.Fatalf("configuration index %d, changed at %d", now.Index, index)
	}
	if index, err = v.AddNonvoter(ctx, "v2", s2.addr, index); err != nil {
		t.Fatal(err)
	}
	waitApplied(t, index, s1, s2)
	// Of two voters a leader may lose its place whenever the machine stands still.
	poll(t, "v2 gets a vote", func() bool {
		l := leaderOf(t, v, s2)
		_, err := l.AddVoter(ctx, "v2", s2.addr, l.Configuration().Index)
		return err == nil
	})
	poll(t, "s1 is removed", func() bool {
		l := leaderOf(t, v, s2)
		index, err = l.RemoveServer(ctx, "s1", l.Configuration().Index)
		return err == nil
	})
	waitApplied(t, index, v, s2)
	want := fmt.Sprint([]Server{{"v1", v.addr, true, "v1"}, {"v2", s2.addr, true, "v2"}})
	if got := fmt.Sprint(v.Configuration().Servers); got != want {
		t.Fatalf("servers %s, want %s", got, want)
	}
	// The index is known again after a restart, from the log and from a snapshot.
	v.stop()
	v.start()
	l := leaderOf(t, v, s2)
	if got := l.Configuration().Index; got != index {
		t.Fatalf("after a restart: index %d, want %d", got, index)
	}
	waitApplied(t, fill(t, []*host{v, s2}, "n", 50, 8), v)
	if err := v.Snapshot(); err != nil {
		t.Fatal(err)
	}
	v.stop()
	v.start()
	leaderOf(t, v, s2)
	if got := v.Configuration().Index; got != index {
		t.Fatalf("after a restart from a snapshot: index %d, want %d", got, index)
	}
	if err := s1.Bootstrap([]Server{{ID: "s1", Addr: s1.addr, Voter: true}}); err == nil {
		t.Fatal("a node that may never vote was bootstrapped")
	}
}

// Every leadership is begun and ended once, and never two at a time, however
// fast it comes and goes.
func TestLeadIsPairedUnderFlaps(t *testing.T) {
	hosts := trio(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running, calls atomic.Int64
	done := make(chan struct{}, len(hosts))
	for _, h := range hosts {
		var own atomic.Int64
		go func(n *Node) {
			defer func() { done <- struct{}{} }()
			n.Lead(ctx, func(ctx context.Context) {
				if own.Add(1) != 1 {
					t.Error("two calls at a time")
				}
				running.Add(1)
				calls.Add(1)
				<-ctx.Done()
				running.Add(-1)
				own.Add(-1)
			})
		}(h.Node)
	}
	const flaps = 8
	for i := range flaps {
		from := leaderOf(t, hosts...)
		if err := from.TransferLeadership(within(t)); err != nil {
			t.Logf("transfer %d: %v", i, err)
		}
		leaderOf(t, hosts...)
	}
	poll(t, "one call runs, where the leader is", func() bool { return running.Load() == 1 })
	if calls.Load() < 2 {
		t.Errorf("%d leaderships were served", calls.Load())
	}
	cancel()
	for range hosts {
		<-done
	}
	if running.Load() != 0 {
		t.Errorf("%d calls still run", running.Load())
	}
}

// A leadership that flaps while the former one is still being served: the
// notifications are given by hand, so that the order is certain.
func TestLeadAfterAFlapWhileServing(t *testing.T) {
	n := &Node{lead: newLeadership(), closed: make(chan struct{})}
	notify := make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	watched, led := make(chan struct{}), make(chan struct{})
	go func() { defer close(watched); n.lead.watch(ctx, notify) }()
	started, ended, finish := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(led)
		n.Lead(ctx, func(ctx context.Context) {
			started <- struct{}{}
			<-ctx.Done()
			ended <- struct{}{}
			<-finish
		})
	}()
	notify <- true
	<-started
	for range 5 {
		notify <- false
		notify <- true
	}
	<-ended
	finish <- struct{}{}
	<-started // the newest leadership is served, though it began before the former call returned
	notify <- false
	<-ended
	finish <- struct{}{}
	cancel()
	<-watched
	<-led
}

// Random entries, refused ones among them, with nodes that stop, lose the end of
// what they applied, and come back: all states are alike in the end.
func TestRandomHistoryWithCrashesEndsAlike(t *testing.T) {
	hosts := trio(t)
	s := nonvoter(t, "s1", hosts...)
	rnd := rand.New(rand.NewPCG(1, 2))
	all := append([]*host{s}, hosts...)
	var last uint64
	for round := range 6 {
		down := all[rnd.IntN(len(all))]
		if round == 3 {
			if err := down.Snapshot(); err != nil {
				t.Log(err)
			}
		}
		copied := copyState(t, down)
		for range 15 {
			last, _ = propose(t, hosts, randomEntry(rnd))
		}
		down.stop()
		for range 15 {
			last, _ = propose(t, hosts, randomEntry(rnd))
		}
		// Its state is one of some earlier moment: what a crash of its database may leave.
		if rnd.IntN(2) == 0 {
			putState(t, down, copied)
		}
		down.start()
	}
	waitApplied(t, last, all...)
	for _, h := range all {
		if h.dump() != all[0].dump() {
			t.Errorf("%s differs from %s:\n%s\n%s", h.id, all[0].id, h.dump(), all[0].dump())
		}
		if topics, err := h.View().Topics("", "", 100); err != nil || len(topics) == 0 {
			t.Errorf("%s: %d topics, %v", h.id, len(topics), err)
		}
	}
}

func randomEntry(rnd *rand.Rand) metastate.Entry {
	name := fmt.Sprintf("t%d", rnd.IntN(6))
	inc := topic.Incarnation(1 + rnd.IntN(60))
	switch rnd.IntN(5) {
	case 0:
		return &metastate.DeleteTopic{Name: name, Incarnation: inc}
	case 1:
		return registerAs(fmt.Sprintf("s%d", 1+rnd.IntN(3)), topic.RoleStorage, topic.ID64(1000+rnd.IntN(100)))
	case 2:
		return &metastate.Heartbeats{NowMS: int64(rnd.IntN(100)), Items: []metastate.Heartbeat{{ID: "s1", BootNonce: 1000}}}
	case 3:
		return &metastate.MarkDead{Items: []metastate.DeadMark{{ID: "s1", HeartbeatMS: int64(rnd.IntN(100))}}}
	}
	return createTopic(name, inc, fmt.Sprintf("s%d", 1+rnd.IntN(3)))
}

// A node whose whole past, its own admission included, comes as a snapshot.
func TestANewNodeCatchesUpBySnapshot(t *testing.T) {
	v := single(t)
	cluster := []*host{v}
	s := newHost(t, "s1", false)
	s.start()
	if !s.Empty() || v.Empty() {
		t.Fatal("the new node has a configuration, or the old one has none")
	}
	s.stop()
	addNonvoter(t, s, cluster...)
	fill(t, cluster, "t", 1, 20)
	if err := v.Snapshot(); err != nil {
		t.Fatal(err)
	}
	last := fill(t, cluster, "tail", 100, 2)
	s.start()
	waitApplied(t, last, s)
	if s.Empty() || s.dump() != v.dump() {
		t.Error("states differ")
	}
	if got, want := s.Configuration(), v.Configuration(); got.Index != want.Index || len(got.Servers) != 2 {
		t.Errorf("configuration %+v, the leader's is %+v", got, want)
	}
	poll(t, "the catch-up", s.View().CaughtUpOnce)
}

// Who waits for a change on another node does not wait for the idle interval.
func TestFollowersLearnOfAChangeAtOnce(t *testing.T) {
	hosts := trio(t, func(t *Timing) { t.Commit = 10 * patience })
	for i, told := 0, 0; told < 3; i++ {
		term := leaderOf(t, hosts...).Stats().Term
		index, _ := apply(t, hosts, createTopic(fmt.Sprint("t", i), topic.Incarnation(i+1), "s1"))
		lacks := func(h *host) bool { return h.Applied() < index }
		elects := func(h *host) bool { return h.Stats().Term != term } // whoever would tell them leads no more
		poll(t, "all have it", func() bool { return !slices.ContainsFunc(hosts, lacks) || slices.ContainsFunc(hosts, elects) })
		if !slices.ContainsFunc(hosts, lacks) {
			told++
		}
	}
}

// A node that closes while many calls are under way answers each one and leaves
// no goroutine behind (TestMain looks), with a majority and without one.
func TestCloseAnswersEveryCall(t *testing.T) {
	for _, majority := range []bool{true, false} {
		hosts := trio(t)
		leader := leaderOf(t, hosts...)
		if !majority {
			for _, h := range hosts {
				if h != leader {
					h.stop()
				}
			}
		}
		answers := make(chan error, 200)
		for i := range cap(answers) {
			go func(n *Node) {
				_, _, err := n.Apply(context.Background(), createTopic(fmt.Sprint("t", i), topic.Incarnation(i+1), "s1"))
				answers <- err
			}(leader.Node)
		}
		poll(t, "calls to be under way", func() bool { return leader.calls.pending() > 0 || len(answers) > 0 })
		leader.stop()
		done := within(t).Done()
		for range cap(answers) {
			select {
			case err := <-answers:
				if err != nil && !errors.Is(err, ErrBusy) && !errors.Is(err, ErrNotLeader) && !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("answer %v", err)
				}
			case <-done:
				t.Fatal("a call hangs")
			}
		}
		for _, h := range hosts {
			h.stop()
		}
	}
}

// Past the bound a call is refused at once.
func TestPendingCallsAreBounded(t *testing.T) {
	c := calls{empty: make(chan struct{})}
	for range MaxPendingCalls {
		if !c.begin() {
			t.Fatal("refused below the bound")
		}
	}
	if c.begin() {
		t.Fatal("taken above the bound")
	}
	c.end()
	if !c.begin() {
		t.Fatal("refused after one ended")
	}
}
