package raftnode

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestWipedVoterElectsNobody is case 25 of real clusters: entries are committed
// on two of three voters; one of the two loses its disk, the other is down. With
// the wiped one's vote the third, which lacks the entries, would lead.
func TestWipedVoterElectsNobody(t *testing.T) {
	hosts := trio(t)
	leader := leaderOf(t, hosts...)
	var wiped, behind *host
	for _, h := range hosts {
		switch {
		case h == leader:
		case behind == nil:
			behind = h
		default:
			wiped = h
		}
	}
	last := fill(t, hosts, "before", 1, 1)
	waitApplied(t, last, hosts...)
	behind.stop()
	last = fill(t, []*host{leader, wiped}, "committed", 100, 3)
	waitApplied(t, last, leader, wiped)
	wiped.stop()
	leader.stop()
	wiped.dir, wiped.gated = t.TempDir(), true
	wiped.start()
	if !wiped.Gated() {
		t.Fatal("a new disk has an open gate")
	}
	behind.start()
	over := time.NewTimer(4 * fastTiming().Election)
	defer over.Stop()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for waiting := true; waiting; {
		select {
		case <-over.C:
			waiting = false
		case <-look.C:
		}
		if behind.IsLeader() {
			t.Fatal("the voter that lacks committed entries leads")
		}
		if _, addr := wiped.Leader(); addr != "" || wiped.Applied() != 0 {
			t.Fatalf("the wiped voter takes part: it follows %q", addr)
		}
	}
	wiped.stop() // a restart does not open it
	wiped.start()
	if !wiped.Gated() {
		t.Fatal("a restart opened the gate")
	}
	leader.start()
	leaderOf(t, leader, behind)
	waitApplied(t, last, leader, behind)
}

// TestGateOpensOnceAndForAll: by Admit or by Bootstrap, and a restart keeps it open.
func TestGateOpensOnceAndForAll(t *testing.T) {
	leader := newHost(t, "v1", true)
	leader.tune, leader.gated = alone, true
	bootstrapped(t, leader)
	if leader.Gated() {
		t.Error("shut after the bootstrap")
	}
	h := newHost(t, "s1", false)
	h.gated = true
	h.start()
	addNonvoter(t, h, leader)
	if h.Gated() != true || !h.Empty() {
		t.Error("it was reached before it was admitted")
	}
	if err := h.Admit(h.id); err != nil {
		t.Fatal(err)
	}
	index, _ := apply(t, []*host{leader}, register(h))
	waitApplied(t, index, h)
	h.stop()
	h.start()
	if h.Gated() {
		t.Error("a restart shut the gate")
	}
	leader.stop()
	leader.start()
	leaderOf(t, leader)
	if leader.Gated() {
		t.Error("a restart shut the gate of the voter")
	}
}

// TestVoteOfAnEmptyDiskIsRememberedAcrossARestart: a node that was let take part
// in a first formation, and promised something, stays let.
func TestVoteOfAnEmptyDiskIsRememberedAcrossARestart(t *testing.T) {
	h := newHost(t, "v1", true)
	h.gated = true
	h.start()
	if err := h.Admit(h.id); err != nil {
		t.Fatal(err)
	}
	var resp raft.RequestVoteResponse
	peer := newHost(t, "v2", true)
	peer.start()
	err := peer.trans.RequestVote("v1", raft.ServerAddress(h.addr), &raft.RequestVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("v2"), Addr: []byte(peer.addr)}, Term: 5, LastLogIndex: 1, LastLogTerm: 1,
	}, &resp)
	if err != nil || !resp.Granted {
		t.Fatalf("vote: %+v, %v", resp, err)
	}
	h.stop()
	h.start()
	if h.Gated() {
		t.Error("shut again")
	}
}
