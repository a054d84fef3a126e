package raftnode

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
)

func TestOneNodeAppliesRestartsAndRefuses(t *testing.T) {
	h := single(t)
	all := []*host{h}
	apply(t, all, &metastate.ClusterID{ID: "c1"})
	_, res := apply(t, all, createTopic("Orders", 1, "s1"))
	if res.Topic.Version != 1 || h.View().ClusterID() != "c1" {
		t.Fatalf("version %d, cluster %q", res.Topic.Version, h.View().ClusterID())
	}
	_, res = propose(t, all, createTopic("orders", 2, "s1"))
	if !problem.HasCode(res.Err(), problem.TopicExists) {
		t.Fatalf("same name in another case: %v", res.Err())
	}
	if err := h.Bootstrap([]Server{{ID: "v1", Addr: h.addr, Voter: true}}); !errors.Is(err, ErrHasState) {
		t.Fatalf("second bootstrap: %v", err)
	}
	h.stop()
	h.start()
	if _, err := h.View().Topic("Orders"); err != nil {
		t.Fatalf("after a restart, before any leader: %v", err)
	}
	if _, err := h.View().Assignments("Orders"); !errors.Is(err, metastate.ErrUnavailable) {
		t.Fatalf("assignments before the latch: %v", err)
	}
	leaderOf(t, h)
	apply(t, all, register(h))
	poll(t, "the latch", h.View().Latched)
	if p, err := h.View().Assignments("Orders"); err != nil || len(p.List) != 1 {
		t.Fatalf("assignments: %v, %v", p, err)
	}
	apply(t, all, &metastate.DeleteTopic{Name: "Orders", Incarnation: 1})
	if _, err := h.View().Topic("Orders"); !errors.Is(err, metastate.ErrNoTopic) {
		t.Fatalf("a deleted topic: %v", err)
	}
	if mine, err := h.View().AssignmentsOf("s1"); err != nil || len(mine) != 0 || len(h.replica.index.onNode) != 0 {
		t.Fatalf("assignments of a deleted topic: %v, %v, index %v", mine, err, h.replica.index.onNode)
	}
}

func TestThreeNodesFormApplyAndSurviveACrash(t *testing.T) {
	hosts := trio(t)
	index, _ := apply(t, hosts, createTopic("a", 1, "s1"))
	for _, h := range hosts {
		if err := h.WaitApplied(within(t), index); err != nil {
			t.Fatal(err)
		}
		if _, err := h.View().Topic("a"); err != nil {
			t.Fatalf("%s waited for %d and has no topic: %v", h.id, index, err)
		}
	}
	down := leaderOf(t, hosts...)
	down.stop()
	index, _ = apply(t, hosts, createTopic("b", 2, "s1"))
	down.start()
	if err := down.WaitApplied(within(t), index); err != nil {
		t.Fatal(err)
	}
	if _, err := down.View().Topic("b"); err != nil {
		t.Fatal(err)
	}
}
