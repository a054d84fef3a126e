package wal

import (
	"fmt"
	"slices"
	"sync"

	"github.com/narad-mq/narad/libs/seglog"
)

// tracker knows which records were read and are not done, and so where the
// checkpoint may stand. It costs 64 bytes for each unit that is not done,
// and at most as much again for those that are: its bound is how far ahead the
// owner of the Reader reads.
type tracker struct {
	mu    sync.Mutex // guards what follows
	open  []tracked  // units read, in order
	head  int        // first of open in use
	gone  int        // of open[head:] with nothing left
	read  seglog.Pos // behind the last unit read
	next  uint64     // sequence behind the last unit read
	count int64      // records read and not done
	saved seglog.Pos // the synced checkpoint
}

// tracked is a unit of which records are not done.
type tracked struct {
	pos      seglog.Pos
	first    uint64
	acceptMS int64
	left     uint32
	bits     []uint64 // done, by index; nil for a unit of one record
}

// compactAt is how many finished units the middle may hold before it is closed up.
const compactAt = 1024

func (t *tracker) add(u *unit, acceptMS int64, end seglog.Pos) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := tracked{pos: u.pos, first: u.first.Seq, acceptMS: acceptMS, left: u.count}
	if u.count > 1 {
		e.bits = make([]uint64, (u.count+63)/64)
	}
	t.open = append(t.open, e)
	t.count += int64(u.count)
	t.read = end
	t.next = u.lastSeq() + 1
}

// passed tells that nothing stands before pos any more, which may be the start
// of a later segment, and whether the checkpoint can move.
func (t *tracker) passed(pos seglog.Pos) (moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.read.Less(pos) {
		return false
	}
	t.read = pos
	return t.head == len(t.open)
}

// done marks records and tells whether the checkpoint can move.
func (t *tracker) done(ps []Position) (moved bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range ps {
		t.doneLocked(p)
	}
	head := t.head
	for t.head < len(t.open) && t.open[t.head].left == 0 {
		t.open[t.head] = tracked{}
		t.head++
		t.gone--
	}
	live := len(t.open) - t.head
	if t.gone > compactAt && t.gone > live/2 || t.head > compactAt && t.head > live {
		t.open = slices.DeleteFunc(t.open, func(e tracked) bool { return e.left == 0 })
		t.head, t.gone = 0, 0
		return true
	}
	return t.head != head
}

func (t *tracker) doneLocked(p Position) {
	live := t.open[t.head:]
	i, ok := slices.BinarySearchFunc(live, p.framePos(), func(e tracked, pos seglog.Pos) int {
		switch {
		case e.pos.Less(pos):
			return -1
		case pos.Less(e.pos):
			return 1
		}
		return 0
	})
	if !ok || live[i].left == 0 {
		return // done before
	}
	e := &live[i]
	if e.bits != nil {
		word, bit := p.Index/64, uint64(1)<<(p.Index%64)
		if int(word) >= len(e.bits) || e.bits[word]&bit != 0 {
			return
		}
		e.bits[word] |= bit
	}
	t.count--
	if e.left--; e.left == 0 {
		t.gone++
	}
}

// lowestLocked is the position that the checkpoint may have, and the sequence
// of what comes there.
func (t *tracker) lowestLocked() (seglog.Pos, uint64) {
	if t.head < len(t.open) {
		return t.open[t.head].pos, t.open[t.head].first
	}
	return t.read, t.next
}

// Done marks records as committed, discarded or parked, in any order; a second
// time does nothing. The checkpoint follows within 250 ms.
func (w *WAL) Done(ps ...Position) {
	if w.tracker.done(ps) {
		signal(w.dirty)
	}
}

// nextCheckpoint is the checkpoint to write, if it moved.
func (w *WAL) nextCheckpoint() (checkpoint, bool) {
	w.mu.Lock()
	seq := w.acked
	w.mu.Unlock()
	w.tracker.mu.Lock()
	defer w.tracker.mu.Unlock()
	pos, next := w.tracker.lowestLocked()
	return checkpoint{pos: pos, next: next, seq: seq}, pos != w.tracker.saved
}

func (w *WAL) store(c checkpoint) error {
	err := w.slots.store(c)
	w.ckptFail.Store(err != nil)
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	w.tracker.mu.Lock()
	w.tracker.saved = c.pos
	w.tracker.mu.Unlock()
	return nil
}

// saveCheckpoint writes the checkpoint and removes what lies below it.
func (w *WAL) saveCheckpoint() error {
	c, moved := w.nextCheckpoint()
	if moved {
		if err := w.store(c); err != nil {
			return err
		}
	}
	if err := w.log.RemoveBelow(c.pos.Segment); err != nil {
		return fmt.Errorf("remove segments below checkpoint: %w", err)
	}
	return nil
}

// Stats is the state of a WAL.
type Stats struct {
	Backlog          int64 // records accepted and not done. Exact for what was read; sequences lost to failures count until read past
	BacklogBytes     int64 // of the files, from the checkpoint to the end
	DiskBytes        int64 // of all segments
	OldestAcceptMS   int64 // of the first record read and not done, Unix milliseconds; 0: none
	Failed           bool  // appends are refused
	Damages          int64 // damaged ranges met by this process
	DamagedBytes     int64
	CheckpointFailed bool // the last write of the checkpoint failed
}

// Stats is cheap enough for a metrics scrape, not for each request.
func (w *WAL) Stats() Stats {
	w.mu.Lock()
	acked, failed := w.acked, w.failed != nil
	w.mu.Unlock()
	segs, end := w.log.Segments(), w.log.Synced()
	s := Stats{
		Failed: failed, Damages: w.damages.Load(), DamagedBytes: w.lost.Load(),
		CheckpointFailed: w.ckptFail.Load(),
	}
	t := &w.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	from, _ := t.lowestLocked()
	for _, seg := range segs {
		s.DiskBytes += seg.Size
		if seg.Base >= from.Segment {
			s.BacklogBytes += seg.Size - seglog.HeaderSize
		}
		if seg.Base == from.Segment {
			s.BacklogBytes -= max(0, from.Offset-seglog.HeaderSize)
		}
	}
	s.Backlog = t.count
	if t.read.Less(end) && acked >= t.next {
		s.Backlog += int64(acked - t.next + 1)
	}
	if t.head < len(t.open) {
		s.OldestAcceptMS = t.open[t.head].acceptMS
	}
	return s
}
