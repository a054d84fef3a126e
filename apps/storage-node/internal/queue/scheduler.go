package queue

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// Scheduler ends leases and delays of all queues in time, with one timer. A
// queue stands in it once, at its earliest deadline or before.
type Scheduler struct {
	now  func() int64
	kick chan struct{}

	mu    sync.Mutex // guards below, and the slot of every queue
	slots slots
}

// slot is a queue's place in the scheduler.
type slot struct {
	q   *Queue
	at  int64
	pos int // in slots; -1: not in it
}

// NewScheduler returns a scheduler on this clock (Unix ms).
func NewScheduler(now func() int64) *Scheduler {
	return &Scheduler{now: now, kick: make(chan struct{}, 1)}
}

// at makes the queue's expire run at that time or before. It only ever makes it
// sooner: a deadline that went away costs one look.
func (s *Scheduler) at(q *Queue, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := &q.slot
	switch {
	case sl.pos < 0:
		sl.at = at
		heap.Push(&s.slots, sl)
	case at < sl.at:
		sl.at = at
		heap.Fix(&s.slots, sl.pos)
	default:
		return
	}
	if sl.pos == 0 {
		select {
		case s.kick <- struct{}{}:
		default:
		}
	}
}

func (s *Scheduler) remove(q *Queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.slot.pos >= 0 {
		heap.Remove(&s.slots, q.slot.pos)
	}
}

// Run serves deadlines until ctx ends.
func (s *Scheduler) Run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := time.Hour
		for {
			q, left := s.due()
			if q == nil {
				wait = left
				break
			}
			q.expire()
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// due takes the next queue whose time has come, or tells how long to wait.
func (s *Scheduler) due() (*Queue, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.slots) == 0 {
		return nil, time.Hour
	}
	if left := s.slots[0].at - s.now(); left > 0 {
		return nil, min(time.Duration(left)*time.Millisecond, time.Hour)
	}
	sl, _ := heap.Pop(&s.slots).(*slot)
	return sl.q, 0
}

// slots implements heap.Interface.
type slots []*slot

func (h slots) Len() int           { return len(h) }
func (h slots) Less(i, j int) bool { return h[i].at < h[j].at }
func (h slots) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *slots) Push(x any) {
	sl, _ := x.(*slot)
	sl.pos = len(*h)
	*h = append(*h, sl)
}

func (h *slots) Pop() any {
	old := *h
	sl := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	sl.pos = -1
	return sl
}
