package controller

import (
	"context"
	"maps"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// uses lets a node say how full its disk is.
func (r *rig) uses(t *testing.T, id string, percent int) {
	t.Helper()
	if err := r.Heartbeat(t.Context(), &metaapi.HeartbeatRequest{NodeID: id, DiskID: 7, BootNonce: 8, DiskUsedPercent: percent}); err != nil {
		t.Fatal(err)
	}
}

// creates makes a topic of lone copies and answers how many each node has of it.
func (r *rig) creates(t *testing.T, c metaapi.Voter, name string, partitions int) map[string]int {
	t.Helper()
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, 1
	if _, err := c.CreateTopic(t.Context(), &metaapi.CreateTopicRequest{Name: name, Config: cfg}); err != nil {
		t.Fatal(err)
	}
	p, err := r.node.View().Assignments(name)
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for _, a := range p.List {
		on[a.Replicas[0].Node]++
	}
	return on
}

// TestCreatesAndGrowthPassByFullDisks: what a node said last counts at once; where all
// are full, topics are created all the same.
func TestCreatesAndGrowthPassByFullDisks(t *testing.T) {
	r := movers(t, 2, "s1", "s2")
	r.uses(t, "s1", placement.FullPercent)
	if on := r.creates(t, r, "passes-by", 4); on["s1"] != 0 {
		t.Errorf("created on %v", on)
	}
	have, err := r.node.View().Topic("orders")
	if err != nil {
		t.Fatal(err)
	}
	req := &metaapi.UpdateTopicRequest{Name: "orders", Incarnation: have.Incarnation, Version: have.Version, Config: have.Config}
	req.Config.Partitions = 6
	if _, err := r.UpdateTopic(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	for _, a := range r.parts(t)[2:] {
		if a.Leader == "s1" {
			t.Errorf("a new partition on a full disk: %+v", a)
		}
	}
	r.register(t, "s1", topic.RoleStorage) // started again, which makes no room
	if on := r.creates(t, r, "still", 2); on["s1"] != 0 {
		t.Errorf("after a start on %v", on)
	}
	r.uses(t, "s2", 99)
	if on := r.creates(t, r, "all-full", 12); on["s1"] == 0 || on["s1"]+on["s2"] != 12 {
		t.Errorf("with all full on %v", on)
	}
	r.uses(t, "s1", placement.FullPercent-1)
	if on := r.creates(t, r, "room-again", 2); on["s2"] != 0 {
		t.Errorf("with room again on %v", on)
	}
}

// What was heard of one disk says nothing of another one under the same name.
func TestUseIsOfADisk(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	r.uses(t, "s1", 98)
	r.term.Load().use("s2", diskUse{disk: 6, percent: 99}) // the one before 7
	for _, m := range r.memberList() {
		if want := map[string]int{"s1": 98}[m.ID]; m.DiskUsedPercent != want {
			t.Errorf("%s is said to be %d %% full, want %d", m.ID, m.DiskUsedPercent, want)
		}
	}
}

// TestANewLeaderKnowsFullDisks: before it has heard anybody, by the stamps of the one before.
func TestANewLeaderKnowsFullDisks(t *testing.T) {
	r := movers(t, 2, "s1", "s2")
	r.uses(t, "s1", 97)
	testkit.Poll(t, patience, "it is stamped", func() bool { return r.stampedUse()["s1"].percent == 97 })
	cfg := r.cfg
	cfg.Registry = nil
	next, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); next.lead(ctx) }()
	defer func() { end(); <-done }()
	testkit.Poll(t, patience, "it leads", func() bool { return next.term.Load() != nil })
	if on := r.creates(t, next, "afterwards", 4); on["s1"] != 0 {
		t.Errorf("created on %v", on)
	}
}

// TestAFullNodeGetsNoMoves: a rebalance sends nothing there, a decommission that has
// nowhere else to send to is not begun, and both go on once it has room.
func TestAFullNodeGetsNoMoves(t *testing.T) {
	r := movers(t, 12, "s1", "s2")
	r.register(t, "s3", topic.RoleStorage)
	r.uses(t, "s3", placement.FullPercent)
	r.register(t, "s4", topic.RoleStorage)
	settles := func(what string, want map[string]int) {
		t.Helper()
		testkit.Poll(t, patience, what, func() bool {
			r.mono.Add(int64(100 * time.Millisecond))
			return maps.Equal(r.counts(t), want) && len(r.moving(t).Moves) == 0
		})
	}
	settles("the one with room has its share", map[string]int{"s1": 4, "s2": 4, "s4": 4})
	for _, id := range []string{"s2", "s4"} {
		r.uses(t, id, 99)
	}
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1"}); !problem.HasCode(err, problem.DecommissionUnsafe) {
		t.Errorf("to full nodes only: %v", err)
	}
	r.uses(t, "s3", placement.FullPercent-1)
	settles("it has room, and its share", map[string]int{"s1": 3, "s2": 3, "s3": 3, "s4": 3})
	if _, err := r.Decommission(t.Context(), &metaapi.DecommissionRequest{NodeID: "s1"}); err != nil {
		t.Fatal(err)
	}
	settles("everything of one that drains is where there is room", map[string]int{"s2": 3, "s3": 6, "s4": 3})
}
