package raftnode

import (
	"errors"
	"testing"
	"time"
)

// TestLeaderWithAStuckDiskIsReplaced: its heartbeats must not keep the others
// from electing while it stands in a write.
func TestLeaderWithAStuckDiskIsReplaced(t *testing.T) {
	hosts := trio(t)
	old := leaderOf(t, hosts...)
	stuckSince(old, stallHandOff)
	var others []*host
	for _, h := range hosts {
		if h != old {
			others = append(others, h)
		}
	}
	leaderOf(t, others...)
}

// TestVoterWithAStuckDiskEnds: after a while it gives up, with a reason.
func TestVoterWithAStuckDiskEnds(t *testing.T) {
	h := single(t)
	stuckSince(h, stallExit)
	select {
	case <-h.Done():
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	if !errors.Is(h.Err(), errStalled) {
		t.Error(h.Err())
	}
}

// stuckSince makes the node believe that a log write began so long ago.
func stuckSince(h *host, ago time.Duration) {
	began := time.Now().Add(-ago)
	h.logs.busy.Store(&began)
}
