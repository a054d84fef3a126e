package wal

import (
	"errors"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/seglog"
)

// Append makes the entries durable as one unit with consecutive numbers, and
// returns the first. It returns with the true outcome only. The entries are
// copied before it blocks for anything but room in the buffer.
func (w *WAL) Append(entries []Entry) (ID, error) {
	size := unitSize(entries)
	if size < 0 || len(entries) == 0 {
		return ID{}, ErrTooLarge
	}
	w.mu.Lock()
	for len(w.cur.buf) > 0 && len(w.cur.buf)+size > maxGroup && !w.closed && !w.sealed && w.failed == nil {
		w.room.Wait()
	}
	if err := w.refusalLocked(); err != nil {
		w.mu.Unlock()
		return ID{}, err
	}
	first := w.stageLocked(entries)
	g := w.cur
	lead := !g.led
	g.led = true
	w.mu.Unlock()
	if lead {
		w.lead(g)
	} else {
		<-g.done
	}
	if g.err != nil {
		return ID{}, g.err
	}
	return first, nil
}

func (w *WAL) refusalLocked() error {
	switch {
	case w.closed:
		return ErrClosed
	case w.sealed:
		return ErrSealed
	case w.failed != nil:
		return fmt.Errorf("%w: %w", ErrRefused, w.failed)
	}
	return nil
}

func (w *WAL) stageLocked(entries []Entry) ID {
	g := w.cur
	first := ID{w.identity, w.nextSeq}
	if len(g.buf) == 0 {
		g.first = first.Seq
	}
	w.nextSeq += uint64(len(entries))
	g.last = w.nextSeq - 1
	at := len(g.buf)
	g.buf = appendHead(g.buf, len(entries), first)
	for i := range entries {
		g.buf = appendRecord(g.buf, at, uint32(i), &entries[i])
	}
	sealFrame(g.buf, at)
	return first
}

// lead commits a group for all who staged into it.
func (w *WAL) lead(g *group) {
	w.commitMu.Lock()
	defer w.commitMu.Unlock()
	w.mu.Lock()
	w.cur = newGroup(w.spare) // from here on g is this goroutine's
	w.spare = nil
	w.room.Broadcast()
	err := w.failed
	w.mu.Unlock()
	switch {
	case w.filesClosed:
		g.err = ErrClosed
	case err != nil:
		g.err = fmt.Errorf("%w: %w", ErrRefused, err)
	default:
		g.err = w.commit(g)
	}
	w.mu.Lock()
	if g.err == nil {
		w.acked = g.last
	}
	if cap(g.buf) <= keepBuffer {
		w.spare = g.buf
	}
	w.mu.Unlock()
	close(g.done)
	if g.err == nil {
		signal(w.wake)
	}
}

// commit writes and syncs a group; commitMu is held.
func (w *WAL) commit(g *group) error {
	end := w.log.End()
	if g.first < end.Segment {
		// Staged before a failure whose new segment starts above it.
		return fmt.Errorf("%w: staged before a failure", ErrRefused)
	}
	if full := end.Offset+int64(len(g.buf)) > w.opt.SegmentBytes; full && end.Offset > seglog.HeaderSize {
		err := w.log.Roll(g.first, w.meta())
		if err == nil {
			err = w.loadNonce()
		}
		if err != nil {
			w.fail(err)
			return fmt.Errorf("%w: %w", ErrRefused, err)
		}
	}
	setNonce(g.buf, w.nonce)
	_, err := w.log.Append(g.buf)
	if errors.Is(err, seglog.ErrRollNeeded) || errors.Is(err, seglog.ErrFailed) {
		w.fail(err)
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err == nil {
		start := time.Now()
		err = w.log.Sync()
		if w.opt.OnSync != nil {
			w.opt.OnSync(time.Since(start))
		}
	}
	if err != nil {
		w.fail(err)
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	return nil
}

// fail makes the WAL refuse until revive succeeds.
func (w *WAL) fail(err error) {
	w.mu.Lock()
	w.failed = err
	w.room.Broadcast()
	w.mu.Unlock()
	signal(w.broken)
}

// revive starts a new segment after a failure. The failed file is not used
// again; the new header says what of it counts.
func (w *WAL) revive() error {
	w.commitMu.Lock() // no group is in flight while the segment changes
	defer w.commitMu.Unlock()
	w.mu.Lock()
	base := w.nextSeq
	w.nextSeq++ // a failed attempt may leave a segment of this name
	m := w.meta()
	w.mu.Unlock()
	if err := w.log.Abandon(base, m); err != nil {
		return err
	}
	if err := w.loadNonce(); err != nil {
		return err
	}
	w.mu.Lock()
	w.failed = nil
	w.mu.Unlock()
	return nil
}

// run writes checkpoints and recovers from failures.
func (w *WAL) run() {
	defer close(w.stopped)
	var save, retry <-chan time.Time // set while something is to be done
	if w.failedNow() {
		retry = time.After(recoverEvery)
	}
	for {
		select {
		case <-w.stop:
			return
		case <-w.dirty:
			if save == nil {
				save = time.After(checkpointEvery)
			}
		case <-save:
			save = nil
			if err := w.saveCheckpoint(); err != nil {
				w.report(err)
				save = time.After(recoverEvery)
			}
		case <-w.broken:
			if retry == nil {
				retry = time.After(recoverEvery)
			}
		case <-retry:
			retry = nil
			if err := w.revive(); err != nil {
				w.report(err)
				retry = time.After(recoverEvery)
			}
		}
	}
}

func (w *WAL) failedNow() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed != nil
}

func (w *WAL) report(err error) {
	if w.opt.OnError != nil {
		w.opt.OnError(err)
	}
}

// signal leaves one signal in c, if there is none.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
