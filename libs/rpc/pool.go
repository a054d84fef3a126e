package rpc

import (
	"context"
	"slices"
	"sync"
	"time"
)

// pool is the connections of one class to one address.
type pool struct {
	client *Client
	addr   string
	slots  chan struct{} // a call holds one: as many connections there are

	mu     sync.Mutex // guards below
	idle   []*conn    // the one used last is at the end
	expiry *time.Timer
	closed bool // those in use close when their call ends, until there is a new call
}

// do makes one call. sent false: no byte of it left this process.
func (p *pool) do(ctx context.Context, m Method, request []byte) (a answer, sent bool) {
	if err := ctx.Err(); err != nil {
		return answer{err: err}, false
	}
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return answer{err: ctx.Err()}, false
	}
	defer func() { <-p.slots }()
	for {
		c, reused := p.take(), true
		if c == nil {
			nc, err := p.client.cfg.Dial(ctx, "tcp", p.addr)
			if err != nil {
				return answer{err: err}, false
			}
			c, reused = newConn(p, nc), false
		}
		a, sent := c.call(ctx, m, request)
		switch {
		case a.err == nil:
			p.give(c)
			return a, true
		case sent || !reused || ctx.Err() != nil:
			return a, sent
		}
		// The peer had closed it, and nothing was written: the next one.
	}
}

// take returns an idle connection, or nil.
func (p *pool) take() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	last := len(p.idle) - 1
	if last < 0 {
		return nil
	}
	c := p.idle[last]
	p.idle[last] = nil
	p.idle = p.idle[:last]
	return c
}

func (p *pool) give(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.close()
	}
	if c.isClosed() {
		return
	}
	c.since = time.Now()
	p.idle = append(p.idle, c)
	if p.expiry == nil {
		p.expiry = time.AfterFunc(clientIdle, p.expire)
	}
}

// remove takes a connection out that its reader found closed. One that is being
// given at this moment is found closed by its next call.
func (p *pool) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.idle, c); i >= 0 {
		p.idle = slices.Delete(p.idle, i, i+1)
	}
}

// expire closes what was idle for too long.
func (p *pool) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expiry = nil
	n := 0
	for n < len(p.idle) && time.Since(p.idle[n].since) >= clientIdle {
		p.idle[n].close()
		n++
	}
	p.idle = slices.Delete(p.idle, 0, n)
	if len(p.idle) > 0 && !p.closed {
		p.expiry = time.AfterFunc(clientIdle-time.Since(p.idle[0].since), p.expire)
	}
}

// close closes the idle connections; the others close when their call ends.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, c := range p.idle {
		c.close()
	}
	p.idle = nil
	if p.expiry != nil {
		p.expiry.Stop()
		p.expiry = nil
	}
}
