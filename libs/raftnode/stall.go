package raftnode

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// stallHandOff is how long a write of the Raft log may take before a leader
	// stops its calls, so that the others elect: its main loop stands in the write,
	// but its heartbeats would go on and keep everybody waiting.
	stallHandOff = 5 * time.Second
	// stallExit is how long it may take before a voter gives up: after a restart it
	// is seen whether the disk can be written.
	stallExit = 30 * time.Second
	// stallPoll is between two looks.
	stallPoll = time.Second
)

// errStalled answers Raft's calls to others while the log cannot be written.
var errStalled = errors.New("the raft log has not been written for too long")

// stalledFor tells for how long the write that is under way has not returned.
func (s *logStore) stalledFor() time.Duration {
	if began := s.busy.Load(); began != nil {
		return time.Since(*began)
	}
	return 0
}

// watchStall ends a voter whose log write never returns.
func (n *Node) watchStall(ctx context.Context) {
	tick := time.NewTicker(stallPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if d := n.logs.stalledFor(); d >= stallExit {
				n.fail(fmt.Errorf("%w: %v", errStalled, d.Round(time.Second)))
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
