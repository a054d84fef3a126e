package sim

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// clock is virtual time: events in order, ties in the order of their making.
type clock struct {
	now    time.Duration
	queue  events
	serial uint64
	steps  int
	rng    *rand.Rand
}

type event struct {
	at     time.Duration
	serial uint64
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].serial < e[j].serial
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

// Push implements heap.Interface.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop implements heap.Interface.
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// after runs do when d has passed.
func (c *clock) after(d time.Duration, do func()) {
	c.serial++
	heap.Push(&c.queue, event{c.now + max(d, 0), c.serial, do})
}

// run executes events until that time, or until stop says so.
func (c *clock) run(until time.Duration, stop func() bool) {
	for len(c.queue) > 0 && c.queue[0].at <= until && !stop() {
		e := heap.Pop(&c.queue).(event)
		c.now = e.at
		c.steps++
		e.do()
	}
}

// between draws a duration.
func (c *clock) between(low, high time.Duration) time.Duration {
	return low + time.Duration(c.rng.Int64N(int64(high-low)+1))
}

// chance is true once in n times.
func (c *clock) chance(n int) bool { return c.rng.IntN(n) == 0 }
