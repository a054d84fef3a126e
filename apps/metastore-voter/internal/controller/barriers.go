package controller

import (
	"context"
	"sync"

	"github.com/narad-mq/narad/libs/problem"
)

// barriers lets one barrier serve everybody who asked before it began, so that a
// flood of questions costs the Raft log one entry at a time.
type barriers struct {
	pass func(context.Context) error // bounded by itself

	mu      sync.Mutex // guards what follows
	next    *barrier   // that has not begun; nil: nobody waits for one
	running bool
}

// barrier is one barrier to come.
type barrier struct {
	done chan struct{}
	err  error // valid once done is closed
}

// wait returns nil when a barrier that began after the call has passed.
func (b *barriers) wait(ctx context.Context) error {
	b.mu.Lock()
	mine := b.next
	if mine == nil {
		mine = &barrier{done: make(chan struct{})}
		b.next = mine
	}
	if !b.running {
		b.running = true
		go b.run()
	}
	b.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run passes one barrier after the other while somebody waits.
func (b *barriers) run() {
	for {
		b.mu.Lock()
		mine := b.next
		b.next = nil
		b.running = mine != nil
		b.mu.Unlock()
		if mine == nil {
			return
		}
		mine.err = b.pass(context.Background())
		close(mine.done)
	}
}

// sure tells whether this node still led after the call, so that what its state
// does not have is not there. A leader that was cut off, or stood still, does not
// know of its end for a while.
func (c *Controller) sure(ctx context.Context) error {
	if err := c.barriers.wait(ctx); err != nil {
		c.log.Debug("a look-up could not be confirmed", "err", err)
		return problem.New(problem.NotReady, "the leader could not confirm in time")
	}
	return nil
}
