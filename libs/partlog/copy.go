package partlog

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// BeginFollow lets AppendCopied take batches from the leader of epoch. It ends a
// leadership, and a failure: the log goes on at its last synced offset in a new
// file, under the same epoch too, because a follower appends only what its leader
// wrote there (a leader could write something else). It may be called again with
// the same epoch at any time. Errors: ErrStaleEpoch when a newer epoch was led or
// followed or stands in the log, or this one was led by this log; or those of the
// file system, after which it may be repeated.
//
// A log whose LEO is below its stored HWM has lost something: it may follow, and
// gets it again, but no gap stays (see BeginEpoch).
func (l *Log) BeginFollow(epoch topic.Epoch) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.closed.Load() {
		return fmt.Errorf("follow epoch %d: %w", epoch, ErrClosed)
	}
	l.mu.Lock()
	last, began, copying, written := l.epochs.last(), l.began, l.copying, l.written
	l.mu.Unlock()
	if epoch == 0 || epoch < max(last, began) || epoch == began && !copying {
		return fmt.Errorf("follow epoch %d: %w: %d was before", epoch, ErrStaleEpoch, max(last, began))
	}
	if err := l.healLocked(written); err != nil {
		return fmt.Errorf("follow epoch %d: %w", epoch, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.copying, l.failed, l.cut = epoch, true, nil, false
	return nil
}

// AppendCopied appends batches byte for byte as they are on the leader's disk,
// and returns the written end; none of them counts as synced. With a piece other than 0
// the disk is synced behind each so many bytes, for the sake of the syncs of other logs
// (see seglog.Log.AppendInPieces). All of them are judged before
// the first is written: each is whole and both of its checksums hold; the first
// begins where the log ends, and each where the one before ended, or above it
// where the leader has a gap that ends at or below hwm, the leader's HWM (what
// lies there was committed, so that it is not sent again); epochs never go back
// and are not above the one that BeginFollow named. Otherwise ErrBadCopy, and
// nothing was appended.
//
// Other errors are those of Append: ErrStaleEpoch without a BeginFollow; ErrFailed,
// after which nothing is appended before BeginFollow and the log ends at its LEO;
// others mean that nothing or only the first batches were written, as the end
// tells, and that it may be repeated from there.
func (l *Log) AppendCopied(batches []byte, hwm int64, piece int) (end int64, err error) {
	end, err = l.copyIn(batches, hwm, piece)
	if errors.Is(err, errWrite) {
		l.syncMu.Lock()
		defer l.syncMu.Unlock()
		err = l.fail(err)
		return l.WrittenEnd(), err
	}
	return end, err
}

func (l *Log) copyIn(batches []byte, hwm int64, piece int) (int64, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.mu.Lock()
	c := continuation{next: l.written, epoch: l.epochs.last(), most: l.began, hwm: hwm}
	copying, failed := l.copying, l.failed
	l.mu.Unlock()
	switch {
	case l.closed.Load():
		return c.next, fmt.Errorf("copy at %d: %w", c.next, ErrClosed)
	case failed != nil:
		return c.next, fmt.Errorf("copy at %d: %w: %w", c.next, ErrFailed, failed)
	case !copying:
		return c.next, fmt.Errorf("copy at %d: %w: no epoch is followed", c.next, ErrStaleEpoch)
	}
	at := c.next
	if err := c.judge(batches); err != nil {
		return at, fmt.Errorf("copy at %d: %w: %w", at, ErrBadCopy, err)
	}
	for len(batches) > 0 {
		n, err := l.copyRun(batches, piece)
		if err != nil {
			return l.WrittenEnd(), err
		}
		batches = batches[n:]
	}
	return l.WrittenEnd(), nil
}

// continuation judges whether batches are what comes next.
type continuation struct {
	next  int64       // where the batch before ends
	epoch topic.Epoch // of it
	most  topic.Epoch // the highest there may be
	hwm   int64       // a gap may end here
}

var (
	errBase  = errors.New("wrong base offset")
	errEpoch = errors.New("wrong leader epoch")
)

func (c continuation) judge(b []byte) error {
	for len(b) > 0 {
		h, _, rest, err := record.Split(b)
		switch {
		case err != nil:
			return fmt.Errorf("batch at %d: %w", c.next, err)
		case h.BaseOffset < c.next || h.BaseOffset > c.next && h.BaseOffset > c.hwm:
			return fmt.Errorf("batch at %d: %w %d", c.next, errBase, h.BaseOffset)
		case h.LeaderEpoch == 0 || h.LeaderEpoch < c.epoch || h.LeaderEpoch > c.most:
			return fmt.Errorf("batch at %d: %w %d, between %d and %d", c.next, errEpoch, h.LeaderEpoch, c.epoch, c.most)
		}
		c.next, c.epoch, b = h.EndOffset(), h.LeaderEpoch, rest
	}
	return nil
}

// copyRun writes as many of the judged batches as follow each other and fit into
// one segment, with one write, and returns their length.
func (l *Log) copyRun(b []byte, piece int) (int, error) {
	h, err := record.ParseHeader(b)
	if err != nil {
		return 0, err // cannot be: it was judged
	}
	l.mu.Lock()
	written, size := l.written, l.writtenPos.Offset
	l.mu.Unlock()
	if h.BaseOffset > written {
		err = l.skipTo(h.BaseOffset)
	} else {
		err = l.rollIfFull(written, size, int64(h.Size()))
	}
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	room := l.opt.SegmentBytes - l.writtenPos.Offset
	l.mu.Unlock()
	n := runLength(b, room)
	pos, err := l.seg.AppendInPieces(b[:n], piece)
	if err != nil {
		return 0, fmt.Errorf("copy at %d: %w", h.BaseOffset, l.judge(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := 0; at < n; at += h.Size() {
		if h, err = record.ParseHeader(b[at:]); err != nil {
			return 0, err // cannot be: it was judged
		}
		l.wroteLocked(&h, seglog.Pos{Segment: pos.Segment, Offset: pos.Offset + int64(at)})
	}
	return n, nil
}

// skipTo leaves a gap as the leader has one: the header of the next segment says
// that it is on purpose.
func (l *Log) skipTo(base int64) error {
	appendable := l.seg.Appendable()
	err := l.rollLocked(base)
	if err != nil && appendable {
		err = l.judge(err)
	}
	if err != nil {
		return fmt.Errorf("skip to %d: %w", base, err)
	}
	return nil
}

// runLength is the length of the batches at the start of b, one at least, that
// follow each other without a gap and fit into room.
func runLength(b []byte, room int64) int {
	n, next := 0, int64(0)
	for n < len(b) {
		h, err := record.ParseHeader(b[n:])
		if err != nil || n > 0 && (h.BaseOffset != next || int64(n+h.Size()) > room) {
			break
		}
		n, next = n+h.Size(), h.EndOffset()
	}
	return n
}
