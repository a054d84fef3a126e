package fanout

import (
	"context"
	"sync"

	"github.com/narad-mq/narad/libs/fanout"
)

// Rounds that run at once, by lane. Each holds what it read, a megabyte or one
// batch, for as long as its commits take, at most patience. Those of buckets that
// are behind have slots of their own, so that they take none from the others.
const (
	headRounds   = 32
	behindRounds = 8
)

// schedule runs rounds of cursors that have something to do, first come first
// served, on a few goroutines that end when there is nothing.
type schedule struct {
	m     *Manager
	tasks sync.WaitGroup // workers and sends; none is added once stopped is set

	mu      sync.Mutex // guards below, and the turns of every cursor
	ctx     context.Context
	stopped bool
	lanes   [fanout.Lanes]lane
	left    map[string]int // by node: sends that nobody waits for any more
}

type lane struct {
	queue   []*cursor
	workers int
	limit   int
}

// turn is how a lane of a cursor stands in the schedule.
type turn struct {
	state turnState
	again bool // while it runs: run once more
}

type turnState uint8

const (
	turnIdle turnState = iota
	turnQueued
	turnRunning
)

func (s *schedule) init(m *Manager) {
	s.m, s.left, s.stopped = m, map[string]int{}, true
	s.lanes[fanout.Head].limit, s.lanes[fanout.Behind].limit = headRounds, behindRounds
}

func (s *schedule) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx, s.stopped = ctx, false
}

// stop ends all rounds and sends, whose ctx has ended.
func (s *schedule) stop() {
	s.mu.Lock()
	s.stopped = true
	for i := range s.lanes {
		s.lanes[i].queue = nil
	}
	s.mu.Unlock()
	s.tasks.Wait()
}

// kick makes a lane of a cursor run a round soon, after one that runs now.
func (s *schedule) kick(c *cursor, l fanout.Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	switch t := &c.turns[l]; t.state {
	case turnIdle:
		s.pushLocked(c, l)
	case turnRunning:
		t.again = true
	case turnQueued:
	}
}

func (s *schedule) pushLocked(c *cursor, l fanout.Lane) {
	c.turns[l].state = turnQueued
	q := &s.lanes[l]
	q.queue = append(q.queue, c)
	if q.workers < q.limit {
		q.workers++
		s.tasks.Add(1)
		go s.run(l)
	}
}

func (s *schedule) run(l fanout.Lane) {
	defer s.tasks.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	q := &s.lanes[l]
	for len(q.queue) > 0 {
		c := q.queue[0]
		q.queue[0] = nil
		q.queue = q.queue[1:]
		t := &c.turns[l]
		t.state, t.again = turnRunning, false
		s.mu.Unlock()
		next := c.round(l)
		if next.at > 0 {
			s.m.timers.At(&c.alarms[l], next.at)
		}
		s.mu.Lock()
		t.state = turnIdle
		if (t.again || next.more) && !s.stopped {
			s.pushLocked(c, l)
		}
	}
	q.queue = nil // its array too: what has passed through it is not kept
	q.workers--
}

// next is what a round leaves to do.
type next struct {
	more bool  // another round at once
	at   int64 // or then, monotonic ms; 0: when somebody kicks
}

// leftPerNode bounds the sends to one node that nobody waits for any more. Beyond
// them it gets nothing new from here until one of them ends.
const leftPerNode = 32

func (s *schedule) full(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[node] >= leftPerNode
}

func (s *schedule) leave(node string, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left[node] += by; s.left[node] == 0 {
		delete(s.left, node)
	}
}

// spawn runs f unless everything has stopped.
func (s *schedule) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		f()
	}()
	return true
}

func (s *schedule) context() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx
}
