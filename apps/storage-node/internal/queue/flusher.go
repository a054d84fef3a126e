package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The windows that the contract names: after a crash of the process the acks of
// about writeEvery may come again, after a power loss those of about syncEvery.
const (
	writeEvery = 100 * time.Millisecond
	syncEvery  = time.Second
	// moveEvery is for lone copies that only committed: their high watermark is
	// found again from the log, a stored one shortens the next open. Of a partition with
	// several copies the stored one tells, after a crash, that a copy lacks what it had
	// committed: it is saved every syncEvery, as followers save theirs.
	moveEvery = 5 * time.Second
	// syncers bounds the syncs that run at once: enough to keep a disk busy,
	// too few to starve the commits that share it.
	syncers = 4
)

// Flusher writes positions of queues that changed: every 100 ms without a sync,
// every second with one. High watermarks go with them; those of queues that only
// committed are synced one at a time (0.3 ms each on an SSD, 2 us without the sync), so
// that thousands of partitions take no more than one place at the disk. Without changes
// it sleeps. Queues save everything themselves when they are closed in order.
type Flusher struct {
	failed func(q *Queue, err error)
	kick   chan struct{}

	mu       sync.Mutex          // guards below
	unsaved  map[*Queue]struct{} // changed since they were written; a set, because a disk may refuse for hours
	unsynced map[*Queue]struct{}
	advanced map[*Queue]bool // high watermark moved since the state was saved; true: other copies count
}

// NewFlusher returns a flusher; failed is told of every position that could not
// be written and will be tried again.
func NewFlusher(failed func(q *Queue, err error)) *Flusher {
	return &Flusher{failed: failed, kick: make(chan struct{}, 1), unsaved: map[*Queue]struct{}{}, unsynced: map[*Queue]struct{}{}, advanced: map[*Queue]bool{}}
}

// changed remembers a queue that has something to write. The queue calls it
// once until its next flush.
func (f *Flusher) changed(q *Queue) {
	f.mu.Lock()
	f.unsaved[q] = struct{}{}
	f.unsynced[q] = struct{}{}
	f.mu.Unlock()
	f.wake()
}

// moved remembers a queue whose high watermark moved. It is saved with the
// positions, or after a while without them.
func (f *Flusher) moved(q *Queue, replicated bool) {
	f.mu.Lock()
	f.advanced[q] = replicated
	f.mu.Unlock()
	f.wake()
}

func (f *Flusher) wake() {
	select {
	case f.kick <- struct{}{}:
	default:
	}
}

// forget drops a queue that has ended.
func (f *Flusher) forget(q *Queue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.unsynced, q)
	delete(f.advanced, q)
}

// pass is one kind of syncs, so many of them at once.
type pass struct {
	atOnce  int
	began   time.Time
	running atomic.Bool
}

// due tells whether the next one may begin: at most every syncEvery, and not while the
// one before still runs, because the disk may be slower than that.
func (p *pass) due() bool { return time.Since(p.began) >= syncEvery && !p.running.Load() }

func (f *Flusher) begin(p *pass, list map[*Queue]struct{}, all *sync.WaitGroup) {
	p.began = time.Now()
	p.running.Store(true)
	all.Go(func() {
		f.sync(list, p.atOnce)
		p.running.Store(false)
	})
}

// Run flushes until ctx ends, and then waits for syncs that still run.
func (f *Flusher) Run(ctx context.Context) {
	var syncing sync.WaitGroup
	defer syncing.Wait()
	lastLone := time.Now()
	positions, moves := pass{atOnce: syncers, began: lastLone}, pass{atOnce: 1, began: lastLone}
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		if f.idle() {
			select {
			case <-ctx.Done():
				return
			case <-f.kick:
			}
		}
		timer.Reset(writeEvery)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		f.write()
		if positions.due() { // first: it leaves the other pass what only committed
			f.begin(&positions, f.takeUnsynced(), &syncing)
		}
		if moves.due() {
			lone := time.Since(lastLone) >= moveEvery
			if lone {
				lastLone = time.Now()
			}
			f.begin(&moves, f.takeAdvanced(lone), &syncing)
		}
	}
}

func (f *Flusher) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.unsaved) == 0 && len(f.unsynced) == 0 && len(f.advanced) == 0
}

// takeUnsynced takes the queues whose positions changed; their high watermarks are
// saved with them.
func (f *Flusher) takeUnsynced() map[*Queue]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.unsynced
	f.unsynced = map[*Queue]struct{}{}
	for q := range list {
		delete(f.advanced, q)
	}
	return list
}

// takeAdvanced takes the queues that only committed; lone copies among them when it is
// their turn.
func (f *Flusher) takeAdvanced(lone bool) map[*Queue]struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := map[*Queue]struct{}{}
	for q, replicated := range f.advanced {
		if replicated || lone {
			delete(f.advanced, q)
			list[q] = struct{}{}
		}
	}
	return list
}

func (f *Flusher) write() {
	f.mu.Lock()
	list := f.unsaved
	f.unsaved = map[*Queue]struct{}{}
	f.mu.Unlock()
	for q := range list {
		f.flush(q, false)
	}
}

// sync saves queues durably, so many at once.
func (f *Flusher) sync(list map[*Queue]struct{}, atOnce int) {
	todo := make(chan *Queue, len(list))
	for q := range list {
		todo <- q
	}
	close(todo)
	var wg sync.WaitGroup
	for range min(atOnce, len(todo)) {
		wg.Go(func() {
			for q := range todo {
				f.flush(q, true)
			}
		})
	}
	wg.Wait()
}

func (f *Flusher) flush(q *Queue, sync bool) {
	if err := q.flush(sync); err != nil {
		f.failed(q, err)
		f.changed(q)
	}
}
