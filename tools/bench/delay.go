package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// shortDelay is of the child of which it is measured how exact a delay is; its
	// messages have all come soon after the phase.
	shortDelay = 2 * time.Second
	// longDelay is of children whose messages wait while the node is looked at.
	longDelay = time.Hour
	// fewWait and manyWait are how many messages wait in a delay child: what the
	// second costs more than the first grows with their number.
	fewWait, manyWait = 10_000, 1_000_000
	// idleFor is how long an idle node is looked at; before, it has calmDown to write
	// what is left of the load.
	idleFor, calmDown = 5 * time.Second, 3 * time.Second
)

// delayPhases measures how exact a delay is, and what messages that wait cost a
// storage node: memory, and processor time while nothing is due.
func (b *bench) delayPhases(add func(string, func() result), list []program) error {
	name := b.topic
	if err := b.create("-late"); err != nil {
		return err
	}
	children, err := b.addChildren(1, shortDelay)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("delay of %s, later than that", shortDelay), func() result { return b.addedLatency(children[0], shortDelay) })
	if err := b.removeFamily(children); err != nil {
		return err
	}
	for _, n := range []int64{fewWait, manyWait} {
		b.topic = name
		if err := b.create(fmt.Sprintf("-wait%d", n)); err != nil {
			return err
		}
		if children, err = b.addChildren(1, longDelay); err != nil {
			return err
		}
		add(fmt.Sprintf("delay: %d wait", n), func() result { return b.waiting(n, list) })
		if err := b.removeFamily(children); err != nil {
			return err
		}
	}
	return nil
}

// waiting produces so many messages that are not due, and looks at the storage nodes
// while nothing happens.
func (b *bench) waiting(n int64, list []program) result {
	left := atomic.Int64{}
	left.Store(n)
	r := drive("", drainLimit, b.workers(b.connections/4, func(i int, c *call) step {
		produce := b.produceBatch(i, c)
		return func() (int, time.Duration, error) {
			if left.Add(-batchSize) < 0 {
				return 0, 0, errEnd
			}
			return produce()
		}
	}))
	if err := b.drained(r.Messages); err != nil && r.FirstError == "" {
		r.FirstError = err.Error()
	}
	<-time.After(calmDown)
	m := startMeter(list)
	<-time.After(idleFor)
	var notes []string
	for _, u := range m.stop(0) {
		if !strings.HasPrefix(u.ID, "storage") {
			continue
		}
		for _, p := range list {
			if p.ID == u.ID {
				notes = append(notes, fmt.Sprintf("idle, %s uses %.0f MiB and %.1f%% of a processor", u.ID, rss(p.PID), u.CPUSeconds/idleFor.Seconds()*100))
			}
		}
	}
	r.Note = strings.Join(notes, "; ")
	return r
}
