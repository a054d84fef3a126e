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

// A move of a lone copy ends with its source, when somebody accepts the loss of that:
// nothing is listed as blocked that only a reset would end.
func TestAMoveEndsWhenTheLossOfItsSourceIsAccepted(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	from := r.parts(t)[0].Leader
	to := map[string]string{"s1": "s2", "s2": "s1"}[from]
	r.joins(t, from, topic.RoleStorage)
	r.nodes.hush(to, true) // what goes there does not arrive
	if _, err := r.StartMove(t.Context(), &metaapi.StartMoveRequest{Topic: "orders", From: from, To: to}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the source is dead and the move says so", func() bool {
		r.later(time.Second)
		r.beat(t, to)
		list := r.moving(t).Moves
		return r.status(from) == topic.StatusDead && len(list) == 1 && list[0].Blocked == metaapi.BlockedSourceDead
	})
	r.shows(t, 0, map[metaapi.MoveBlocked]int{metaapi.BlockedSourceDead: 1})
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: from, AcceptDataLoss: true, Operator: "ann"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the source is removed, and nothing moves", func() bool {
		r.beat(t, to)
		// The view shows the end of the move a moment after the list does.
		return r.node.View().Members().ByID[from] == nil && len(r.moving(t).Moves) == 0 && len(r.parts(t)[0].Observers) == 0
	})
	if a := r.parts(t)[0]; len(a.Replicas) != 1 || a.Replicas[0].Node != from {
		t.Errorf("the partition is on %+v", a.Replicas)
	}
	r.shows(t, 0, nil)
	r.resets(t, r.parts(t)[0].Ref)
}

// dies lets time pass in which everybody else is heard, until a node is dead.
func (r *rig) dies(t *testing.T, id string) {
	t.Helper()
	testkit.Poll(t, patience, id+" is dead", func() bool {
		r.later(time.Second)
		for other, m := range r.node.View().Members().ByID {
			if other != id && m.Role == topic.RoleStorage {
				r.beat(t, other)
			}
		}
		return r.status(id) == topic.StatusDead
	})
}

// Nobody can give up what a living node has, and what was said of it while it was dead
// is over when it lives again: its next silence loses nothing.
func TestLossIsAcceptedOfWhoIsDeadAndNoLonger(t *testing.T) {
	r := movers(t, 4, "s1", "s2", "s3", "s4")
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = 1, 3
	if _, err := r.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: "trio", Config: cfg}); err != nil {
		t.Fatal(err)
	}
	trio, err := r.node.View().Assignments("trio")
	if err != nil {
		t.Fatal(err)
	}
	// A copy of this one cannot go, since nobody leads it, and keeps the node from being
	// removed as soon as the word about its lone copy is given.
	id := trio.List[0].Replicas[0].Node
	r.joins(t, id, topic.RoleStorage)
	accepts := func(dry bool) (*metaapi.DecommissionResult, error) {
		return r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: id, DryRun: dry, AcceptDataLoss: true, Operator: "ann"})
	}
	word := func() string { return r.node.View().Members().ByID[id].LossAcceptedBy }
	refused := func(when string) {
		t.Helper()
		res, err := accepts(true)
		if err != nil || res.Would || len(res.Reasons) == 0 || res.Reasons[0].Code != metaapi.MemberAlive {
			t.Fatalf("%s, a dry run: %+v, %v", when, res, err)
		}
		if _, err := accepts(false); !problem.HasCode(err, problem.DecommissionUnsafe) || word() != "" {
			t.Fatalf("%s: %v, accepted by %q", when, err, word())
		}
	}
	given := func() {
		t.Helper()
		if res, err := accepts(true); err != nil || !res.Would || word() != "" {
			t.Fatalf("a dry run: %+v, %v, accepted by %q", res, err, word())
		}
		if _, err := accepts(false); err != nil {
			t.Fatal(err)
		}
		testkit.Poll(t, patience, "the word is given", func() bool { return word() == "ann" })
	}
	kept := func() bool {
		d, err := r.MemberDetail(t.Context(), &metaapi.MemberDetailRequest{NodeID: id})
		return err == nil && slices.ContainsFunc(d.Blocked, func(b metaapi.Reason) bool { return b.Code == metaapi.OwnerDead })
	}
	refused("it lives")
	if r.node.View().Members().ByID[id].Draining {
		t.Fatal("it drains by what was refused")
	}
	for _, other := range []string{"s1", "s2", "s3", "s4"} {
		r.nodes.hush(other, true) // no lone copy moves away
	}
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: id}); err != nil {
		t.Fatal(err)
	}
	refused("it lives and drains")
	r.dies(t, id)
	if !kept() {
		t.Fatal("it is dead, and nobody says that its lone copy keeps it")
	}
	given()
	if kept() {
		t.Fatal("what was given up keeps it")
	}
	r.beat(t, id)
	testkit.Poll(t, patience, "it lives again", func() bool { return r.status(id) == topic.StatusAlive })
	refused("it lives again")
	r.dies(t, id)
	if !kept() || word() != "" {
		t.Fatalf("dead again: kept %t, accepted by %q", kept(), word())
	}
	given()
}

// A living node that has another disk than its copies are on has lost those.
func TestLossIsAcceptedOfADiskThatIsGone(t *testing.T) {
	r := movers(t, 2, "s1", "s2")
	lone := r.parts(t)[0]
	r.joins(t, lone.Leader, topic.RoleStorage)
	r.dies(t, lone.Leader)
	if _, err := r.Register(t.Context(), &metaapi.RegisterRequest{
		NodeID: lone.Leader, DiskID: 70, BootNonce: 9, Role: topic.RoleStorage, RaftAddr: "a:1", RPCAddr: "a:2", NewestEntryType: 255,
	}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "it lives", func() bool { return r.status(lone.Leader) == topic.StatusAlive })
	for _, accept := range []bool{false, true} {
		res, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: lone.Leader, DryRun: true, AcceptDataLoss: accept})
		if err != nil || res.Would != accept || !accept && res.Reasons[0].Code != metaapi.OwnerDead {
			t.Fatalf("accepted %t: %+v, %v", accept, res, err)
		}
	}
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: lone.Leader, AcceptDataLoss: true}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "it is removed", func() bool { return r.node.View().Members().ByID[lone.Leader] == nil })
}
