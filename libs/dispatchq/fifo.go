package dispatchq

import (
	"container/heap"
	"time"
)

// compactAt is how many popped items a fifo carries along before it moves the
// rest to the front: often enough to bound waste, seldom enough to be free.
const compactAt = 1024

// fifo is a queue of items that gives memory back.
type fifo struct {
	list []Item
	head int
}

func (f *fifo) len() int     { return len(f.list) - f.head }
func (f *fifo) push(it Item) { f.list = append(f.list, it) }

// first returns a view of the oldest items; valid until the next push or pop.
func (f *fifo) first(n int) []Item { return f.list[f.head : f.head+n] }

func (f *fifo) pop(n int) {
	f.head += n
	switch {
	case f.head == len(f.list):
		if cap(f.list) > compactAt {
			f.list = nil
		}
		f.list, f.head = f.list[:0], 0
	case f.head >= compactAt && f.head*2 >= len(f.list):
		f.list, f.head = append([]Item(nil), f.list[f.head:]...), 0
	}
}

// timer wakes a queue. Entries are not removed when a queue's time changes: one
// is valid only while it equals the queue's wakeAt.
type timer struct {
	at time.Duration
	q  *queue
}

type timers []timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at < t[j].at }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }

// Push implements heap.Interface.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	old[len(old)-1] = timer{}
	*t = old[:len(old)-1]
	return last
}

// wake makes the machine look at q at that time, or earlier when it is already due.
func (m *Machine) wake(q *queue, at time.Duration) {
	if q.wakeAt != 0 && q.wakeAt <= at {
		return
	}
	q.wakeAt = at
	heap.Push(&m.timers, timer{at, q})
}

// due moves queues whose time has come to the ready list.
func (m *Machine) due(now time.Duration) {
	for len(m.timers) > 0 && m.timers[0].at <= now {
		t := heap.Pop(&m.timers).(timer)
		if t.q.wakeAt == t.at {
			t.q.wakeAt = 0
			m.kick(t.q)
		}
	}
}
