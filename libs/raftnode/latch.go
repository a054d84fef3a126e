package raftnode

import (
	"context"
	"time"
)

// watchLatch sets the two marks that are set once per start. Caught up once: the
// four conditions held. The ownership latch: caught up once *and* this start's
// own registration was applied, which proves that the state is not from before
// the start; a node that leads must also pass a barrier, because an election
// proves the log and only a barrier proves the state.
//
// It polls, because what the conditions read is Raft's own, and ends when the
// latch is set.
func (n *Node) watchLatch(ctx context.Context) {
	tick := time.NewTicker(latchPoll)
	defer tick.Stop()
	for {
		if n.tryLatch(ctx) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) tryLatch(ctx context.Context) bool {
	if ok, _ := n.CaughtUp(); ok {
		n.replica.setCaughtUp()
	}
	if !n.replica.caughtUp.Load() || !n.replica.registered.Load() {
		return false
	}
	if n.IsLeader() {
		if err := n.Barrier(ctx); err != nil {
			return false
		}
	}
	n.replica.setLatch()
	return true
}
