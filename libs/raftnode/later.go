package raftnode

import (
	"sync"
	"time"
)

// later does something some time after it was asked to, once for all who asked
// until then. While nobody asks, nothing runs.
type later struct {
	do func()

	mu      sync.Mutex     // guards the fields below
	due     *time.Timer    // nil: nobody asked
	over    bool           // nothing begins any more
	running sync.WaitGroup // of do
}

// in asks for it within d. It may be called by do.
func (l *later) in(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.due == nil && !l.over {
		l.due = time.AfterFunc(d, l.run)
	}
}

func (l *later) run() {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return
	}
	l.due = nil
	l.running.Add(1)
	l.mu.Unlock()
	defer l.running.Done()
	l.do()
}

// end forgets what was asked for and waits for what runs.
func (l *later) end() {
	l.mu.Lock()
	l.over = true
	if l.due != nil {
		l.due.Stop()
	}
	l.mu.Unlock()
	l.running.Wait()
}
