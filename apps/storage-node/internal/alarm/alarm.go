package alarm

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// maxSleep bounds one sleep: whoever set a time by a clock that was wrong is looked
// at again within the hour.
const maxSleep = time.Hour

// Clock rings alarms. Safe for concurrent use; Run does the work.
type Clock struct {
	now  func() int64
	kick chan struct{}

	mu   sync.Mutex // guards below, and every alarm
	heap alarms
}

// Alarm is one thing to call. It belongs to one clock.
type Alarm struct {
	ring  func()
	at    int64
	place int // in the heap, from 1; 0: not in it
	ended bool
}

// New returns a clock on now, in ms.
func New(now func() int64) *Clock {
	return &Clock{now: now, kick: make(chan struct{}, 1)}
}

// Of returns an alarm that is not set. ring is called without any lock, from Run, and
// should not wait: all others wait for it.
func Of(ring func()) Alarm { return Alarm{ring: ring} }

// At makes an alarm ring at that time or before. It only ever makes it sooner: a time
// that went away costs one call. It does nothing to one that has ended.
func (c *Clock) At(a *Alarm, at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case a.ended:
		return
	case a.place == 0:
		a.at = at
		heap.Push(&c.heap, a)
	case at < a.at:
		a.at = at
		heap.Fix(&c.heap, a.place-1)
	default:
		return
	}
	if a.place == 1 {
		select {
		case c.kick <- struct{}{}:
		default:
		}
	}
}

// End ends an alarm for good.
func (c *Clock) End(a *Alarm) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.ended = true
	if a.place > 0 {
		heap.Remove(&c.heap, a.place-1)
	}
}

// Run rings alarms until ctx ends.
func (c *Clock) Run(ctx context.Context) {
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	for {
		a, left := c.due()
		if a != nil {
			a.ring()
			continue
		}
		timer.Reset(left)
		select {
		case <-ctx.Done():
			return
		case <-c.kick:
		case <-timer.C:
		}
	}
}

// due takes the next alarm whose time has come, or tells how long to wait.
func (c *Clock) due() (*Alarm, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.heap) == 0 {
		return nil, maxSleep
	}
	if left := c.heap[0].at - c.now(); left > 0 {
		if left > maxSleep.Milliseconds() {
			return nil, maxSleep
		}
		return nil, time.Duration(left) * time.Millisecond
	}
	a, _ := heap.Pop(&c.heap).(*Alarm)
	return a, 0
}

// alarms implements heap.Interface.
type alarms []*Alarm

func (h alarms) Len() int           { return len(h) }
func (h alarms) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *alarms) Push(x any) {
	a, _ := x.(*Alarm)
	*h = append(*h, a)
	a.place = len(*h)
}

func (h *alarms) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.place = 0
	return a
}
