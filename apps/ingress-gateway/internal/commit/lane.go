package commit

import (
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// callsPerLane: while a call is under way the next one gathers. Two at once halve
	// what a call carries: with 64 clients that was a quarter of the throughput, and 40 %
	// more processor time.
	callsPerLane = 1
	// numberedCalls is the same for records that clients number, each of which is a
	// call of its own.
	numberedCalls = 32
	// overdue is when a call lets another one begin beside it: its leader may be
	// silent, and another one be elected meanwhile.
	overdue = 250 * time.Millisecond
	// maxRecords of one call: far more than wait at once, far less than a batch holds.
	maxRecords = 8192
)

// lane is what goes to one partition.
type lane struct {
	c     *Committer
	ref   topic.Ref
	limit int // of calls

	mu      sync.Mutex // guards what follows; no call is made under it
	waiting []*unit    // in order
	calls   int        // under way and not overdue
	used    bool       // since the last look
}

// submit puts a unit in line, and begins a call when one may begin.
func (l *lane) submit(u *unit) {
	u.done = make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = true
	l.waiting = append(l.waiting, u)
	l.beginLocked()
}

func (l *lane) beginLocked() {
	if l.calls < l.limit && len(l.waiting) > 0 {
		l.calls++
		go l.run()
	}
}

// withdraw takes a unit out of the line: true when it was not sent.
func (l *lane) withdraw(u *unit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.waiting, u)
	if i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	return i >= 0
}

// take gives what goes with the next call: units of one stream, one at least.
func take(waiting []*unit) (next, rest []*unit) {
	n, size, records := 1, waiting[0].size, len(waiting[0].bodies)
	if !waiting[0].numbered {
		for n < len(waiting) && !waiting[n].numbered {
			size += waiting[n].size
			records += len(waiting[n].bodies)
			if size > maxGroupBytes || records > maxRecords {
				break
			}
			n++
		}
	}
	return waiting[:n:n], waiting[n:]
}

// run makes calls as long as something waits, or until one is overdue.
func (l *lane) run() {
	for {
		l.mu.Lock()
		if len(l.waiting) == 0 {
			l.waiting = nil
			l.calls--
			l.mu.Unlock()
			return
		}
		var next []*unit
		next, l.waiting = take(l.waiting)
		late, ended := false, false
		timer := time.AfterFunc(overdue, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if !ended {
				late = true
				l.calls--
				l.beginLocked()
			}
		})
		l.mu.Unlock()
		l.c.call(l.ref, next)
		timer.Stop()
		l.mu.Lock()
		ended = true
		over := late
		l.mu.Unlock()
		if over {
			return
		}
	}
}

// idle tells whether nothing used the lane since the last look.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.used
	l.used = false
	return !was && len(l.waiting) == 0 && l.calls == 0
}

// own is the stream of what clients do not number.
func own(id topic.ID64) record.Stream { return record.Stream{Kind: record.StreamOnce, ID: id} }
