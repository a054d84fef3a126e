package queue

import (
	"context"
	"sync"
	"time"
)

// The windows that the contract names: after a crash of the process the acks of
// about writeEvery may come again, after a power loss those of about syncEvery.
const (
	writeEvery = 100 * time.Millisecond
	syncEvery  = time.Second
	// moveEvery is for partitions that only committed: their high watermark is
	// found again from the log, a stored one only shortens the next open.
	moveEvery = 5 * time.Second
	// syncers bounds the syncs that run at once: enough to keep a disk busy,
	// too few to starve the commits that share it.
	syncers = 4
)

// Flusher writes positions of queues that changed: every 100 ms without a sync,
// every second with one. Without changes it sleeps. Queues save everything
// themselves when they are closed in order.
type Flusher struct {
	failed func(q *Queue, err error)
	kick   chan struct{}

	mu       sync.Mutex          // guards below
	unsaved  map[*Queue]struct{} // changed since they were written; a set, because a disk may refuse for hours
	unsynced map[*Queue]struct{}
	advanced map[*Queue]struct{} // high watermark moved since the state was saved
}

// NewFlusher returns a flusher; failed is told of every position that could not
// be written and will be tried again.
func NewFlusher(failed func(q *Queue, err error)) *Flusher {
	return &Flusher{failed: failed, kick: make(chan struct{}, 1), unsaved: map[*Queue]struct{}{}, unsynced: map[*Queue]struct{}{}, advanced: map[*Queue]struct{}{}}
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
func (f *Flusher) moved(q *Queue) {
	f.mu.Lock()
	f.advanced[q] = struct{}{}
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

// Run flushes until ctx ends, and then waits for syncs that still run.
func (f *Flusher) Run(ctx context.Context) {
	var syncing sync.WaitGroup
	defer syncing.Wait()
	busy := make(chan struct{}, 1) // one sync pass at a time
	lastSync, lastMove := time.Now(), time.Now()
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
		if time.Since(lastSync) < syncEvery {
			continue
		}
		select {
		case busy <- struct{}{}:
			lastSync = time.Now()
			if lastSync.Sub(lastMove) >= moveEvery {
				lastMove = lastSync
				f.takeAdvanced()
			}
			syncing.Go(func() { f.sync(); <-busy })
		default: // the disk is slower than a second
		}
	}
}

func (f *Flusher) idle() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.unsaved) == 0 && len(f.unsynced) == 0 && len(f.advanced) == 0
}

// takeAdvanced makes the next sync include the queues that only committed.
func (f *Flusher) takeAdvanced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for q := range f.advanced {
		f.unsynced[q] = struct{}{}
	}
	clear(f.advanced)
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

func (f *Flusher) sync() {
	f.mu.Lock()
	todo := make(chan *Queue, len(f.unsynced))
	for q := range f.unsynced {
		todo <- q
	}
	clear(f.unsynced)
	f.mu.Unlock()
	close(todo)
	var wg sync.WaitGroup
	for range min(syncers, len(todo)) {
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
