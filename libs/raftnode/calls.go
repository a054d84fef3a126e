package raftnode

import (
	"sync"
	"time"
)

// calls counts what Raft has been asked and has not answered. Raft answers every
// call while it runs, but once it is shut down it leaves those that it had only
// queued without an answer for ever: so Close lets the count reach zero first.
type calls struct {
	mu      sync.Mutex // guards the fields below
	count   int
	closing bool
	empty   chan struct{} // closed when count is zero while closing
}

// begin counts one more call; false when there are too many, or none may begin any more.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || c.count >= MaxPendingCalls {
		return false
	}
	c.count++
	return true
}

// end is called once for each call that has begun.
func (c *calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count--
	if c.closing && c.count == 0 {
		close(c.empty)
	}
}

func (c *calls) pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// drain lets no more calls begin and waits for those that have, not longer than closeDrain.
func (c *calls) drain() {
	c.mu.Lock()
	idle := c.count == 0
	c.closing = true
	c.mu.Unlock()
	if idle {
		return
	}
	timeout := time.NewTimer(closeDrain)
	defer timeout.Stop()
	select {
	case <-c.empty:
	case <-timeout.C:
	}
}
