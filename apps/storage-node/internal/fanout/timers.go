package fanout

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/fanout"
)

// maxSleep bounds one sleep: whoever set a time by a clock that was wrong looks
// again within the hour.
const maxSleep = time.Hour

// timers wakes lanes of cursors in time, with one timer. A lane stands in it once.
type timers struct {
	now  func() int64
	next chan struct{}

	mu   sync.Mutex // guards below, and the alarms of every cursor
	heap alarms
}

// alarm is when a lane of a cursor has to look again.
type alarm struct {
	c    *cursor
	lane fanout.Lane
	at   int64
	pos  int // in the heap; -1: not in it
}

func newTimers(now func() int64) *timers {
	return &timers{now: now, next: make(chan struct{}, 1)}
}

// at sets the alarm of a lane, or makes it sooner.
func (t *timers) at(c *cursor, l fanout.Lane, at int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := &c.alarms[l]
	switch {
	case c.gone:
		return
	case a.pos < 0:
		a.at = at
		heap.Push(&t.heap, a)
	case at < a.at:
		a.at = at
		heap.Fix(&t.heap, a.pos)
	default:
		return
	}
	if a.pos == 0 {
		select {
		case t.next <- struct{}{}:
		default:
		}
	}
}

// remove ends all alarms of a cursor, for good.
func (t *timers) remove(c *cursor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.gone = true
	for i := range c.alarms {
		if a := &c.alarms[i]; a.pos >= 0 {
			heap.Remove(&t.heap, a.pos)
		}
	}
}

func (t *timers) run(ctx context.Context, due func(*cursor, fanout.Lane)) {
	timer := time.NewTimer(maxSleep)
	defer timer.Stop()
	for {
		a, left := t.pop()
		if a != nil {
			due(a.c, a.lane)
			continue
		}
		timer.Reset(left)
		select {
		case <-ctx.Done():
			return
		case <-t.next:
		case <-timer.C:
		}
	}
}

func (t *timers) pop() (*alarm, time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.heap) == 0 {
		return nil, maxSleep
	}
	if left := t.heap[0].at - t.now(); left > 0 {
		return nil, min(time.Duration(left)*time.Millisecond, maxSleep)
	}
	a, _ := heap.Pop(&t.heap).(*alarm)
	return a, 0
}

// alarms implements heap.Interface.
type alarms []*alarm

func (h alarms) Len() int           { return len(h) }
func (h alarms) Less(i, j int) bool { return h[i].at < h[j].at }
func (h alarms) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *alarms) Push(x any) {
	a, _ := x.(*alarm)
	a.pos = len(*h)
	*h = append(*h, a)
}

func (h *alarms) Pop() any {
	old := *h
	a := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	a.pos = -1
	return a
}
