package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// passes lets a second go by in which these nodes are heard.
func (r *rig) passes(t *testing.T, nodes ...string) {
	t.Helper()
	r.later(time.Second)
	for _, id := range nodes {
		r.beat(t, id)
	}
}

// Moves whose leaders say nothing hold no slot for ever: eight of them, and a ninth one
// comes to its end. They are counted by what they wait for.
func TestMovesWhoseLeadersSayNothingKeepNoOtherBack(t *testing.T) {
	nodes := []string{"s1", "s2", "s3", "s4"}
	r := movers(t, 2*metaapi.MaxRunningMoves, nodes...)
	r.nodes.hush("s1", true)
	r.nodes.hush("s2", true)
	var ninth *metaapi.StartMoveRequest
	for _, a := range r.parts(t) {
		ask := &metaapi.StartMoveRequest{Topic: "orders", Partition: a.Partition, From: a.Leader, To: map[string]string{"s1": "s2", "s2": "s1", "s3": "s4"}[a.Leader]}
		switch a.Leader {
		case "s1", "s2":
			if _, err := r.StartMove(t.Context(), ask); err != nil {
				t.Fatal(err)
			}
		case "s3":
			ninth = ask
		}
	}
	if res := r.moving(t); res.Running != metaapi.MaxRunningMoves || len(res.Moves) != res.Running {
		t.Fatalf("%d of %d moves run", res.Running, len(res.Moves))
	}
	if _, err := r.StartMove(t.Context(), ninth); !problem.HasCode(err, problem.TooManyRequests) {
		t.Fatalf("a ninth move while 8 run: %v", err)
	}
	testkit.Poll(t, patience, "all are blocked", func() bool { r.passes(t, nodes...); return r.moving(t).Running == 0 })
	for _, m := range r.moving(t).Moves {
		if m.Blocked != metaapi.BlockedLeader || m.LastError == "" {
			t.Errorf("%+v", m)
		}
	}
	r.shows(t, 0, map[metaapi.MoveBlocked]int{metaapi.BlockedLeader: metaapi.MaxRunningMoves})
	r.wall.Add(1000) // it is the last in line
	if _, err := r.StartMove(t.Context(), ninth); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the ninth is there", func() bool {
		b := r.parts(t)[ninth.Partition]
		return len(r.moving(t).Moves) == metaapi.MaxRunningMoves && len(b.Replicas) == 1 && b.Leader == "s4"
	})
	r.nodes.hush("s1", false)
	r.nodes.hush("s2", false)
	testkit.Poll(t, patience, "all come to their end", func() bool { return len(r.moving(t).Moves) == 0 })
}

// A living node that misses lone copies leads them by the record alone: a rebalance leaves
// them, and takes them once they are there again. A decommission of that node says that
// they cannot go.
func TestLoneCopiesThatAreMissed(t *testing.T) {
	r := movers(t, 6, "s1")
	says := func(lost metaapi.LostCopies) {
		t.Helper()
		if err := r.Heartbeat(t.Context(), &metaapi.HeartbeatRequest{NodeID: "s1", DiskID: 7, BootNonce: 8, Lost: &lost}); err != nil {
			t.Fatal(err)
		}
	}
	misses := metaapi.LostCopies{Count: 4}
	r.nodes.mu.Lock()
	r.nodes.vanished = map[topic.Ref]bool{}
	for _, a := range r.parts(t)[:misses.Count] {
		misses.Named = append(misses.Named, metaapi.LostCopy{Ref: a.Ref})
		r.nodes.vanished[a.Ref] = true
	}
	r.nodes.mu.Unlock()
	says(misses)
	r.register(t, "s2", topic.RoleStorage)
	moved := func(n int) func() bool {
		return func() bool {
			r.passes(t, "s2")
			says(misses)
			return r.counts(t)["s2"] == n && len(r.moving(t).Moves) == 0
		}
	}
	testkit.Poll(t, patience, "the two that are there have moved", moved(2))
	for range 20 {
		if r.passes(t, "s1", "s2"); len(r.moving(t).Moves) != 0 {
			t.Fatalf("it moves what nobody has: %+v", r.moving(t).Moves)
		}
		says(misses)
	}
	back := misses.Named[3].Ref
	misses.Count, misses.Named = 3, misses.Named[:3]
	r.nodes.mu.Lock()
	delete(r.nodes.vanished, back)
	r.nodes.mu.Unlock()
	testkit.Poll(t, patience, "one that is there again has moved", moved(3))

	r.joins(t, "s1", topic.RoleStorage)
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "it says what cannot go", func() bool {
		r.passes(t, "s2")
		says(misses)
		d, err := r.MemberDetail(t.Context(), &metaapi.MemberDetailRequest{NodeID: "s1"})
		return err == nil && slices.ContainsFunc(d.Blocked, func(b metaapi.Reason) bool {
			return b.Code == metaapi.NodeStatusUnavailable && slices.Equal(b.Topics, []string{"orders"})
		})
	})
	if res := r.moving(t); res.Running != 0 || len(res.Moves) != misses.Count {
		t.Errorf("%d of %d moves run", res.Running, len(res.Moves))
	}
}
