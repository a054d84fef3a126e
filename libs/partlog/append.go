package partlog

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// BeginEpoch lets a leadership append: under epoch, from offset start on, which
// is what quorum.Leader.Start says: the end of the log, or the stored HWM when
// the log ends below it (the offsets between are a gap). It ends a failure: the
// log goes on at its last synced offset in a new file. Errors: ErrStaleEpoch
// when the epoch is not above all in the log, or those of the file system, after
// which it may be repeated.
func (l *Log) BeginEpoch(epoch topic.Epoch, start int64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.closed.Load() {
		return fmt.Errorf("begin epoch %d: %w", epoch, ErrClosed)
	}
	l.mu.Lock()
	last, written := max(l.epochs.last(), l.began), l.written
	l.mu.Unlock()
	if epoch <= last {
		return fmt.Errorf("begin epoch %d: %w: %d was before", epoch, ErrStaleEpoch, last)
	}
	if start < written {
		return fmt.Errorf("begin epoch %d at %d: the log ends at %d", epoch, start, written)
	}
	if err := l.healLocked(start); err != nil {
		return fmt.Errorf("begin epoch %d: %w", epoch, err)
	}
	if start > written {
		if err := l.rollLocked(start); err != nil {
			return fmt.Errorf("begin epoch %d at %d: %w", epoch, start, err)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began, l.copying, l.failed, l.cut = epoch, false, nil, false
	return nil
}

// healLocked makes a log that has failed end, on disk, where it ends in memory;
// one that goes on at start when its file has to be left behind. The caller holds
// syncMu and appendMu.
func (l *Log) healLocked(start int64) error {
	l.mu.Lock()
	failed, cut := l.failed, l.cut
	l.mu.Unlock()
	if failed == nil || cut || l.cutLocked() == nil {
		return nil
	}
	return l.abandonLocked(start)
}

// abandonLocked leaves a failed file that cannot even be cut behind.
func (l *Log) abandonLocked(start int64) error {
	if err := l.seg.Abandon(uint64(start), l.meta().encode()); err != nil {
		return err
	}
	l.segmentBegan(start)
	return nil
}

func (l *Log) meta() segmentMeta {
	l.mu.Lock()
	defer l.mu.Unlock()
	return segmentMeta{l.written, l.track.now.lastMS, l.epochs.last()}
}

// Append places a batch at the end of the log and writes it; it is not synced.
// The batch must be verified (record.Verify); its placement is overwritten in
// place. commitMS must not be below LastCommitMS. It returns the offset of the
// first record. Errors: ErrStaleEpoch; ErrFailed, now or before: the batch is
// not in the log, and nothing is appended before BeginEpoch; others (a file could
// not be opened or made, the disk is full) mean that nothing was written, or was
// taken back: it may be repeated.
func (l *Log) Append(batch []byte, epoch topic.Epoch, commitMS int64) (int64, error) {
	h, err := record.ParseHeader(batch)
	if err != nil {
		return 0, fmt.Errorf("append: %w", err)
	}
	if h.Size() != len(batch) {
		return 0, fmt.Errorf("append: %w: %d bytes for a batch of %d", record.ErrDamaged, len(batch), h.Size())
	}
	base, err := l.append(batch, &h, epoch, commitMS)
	if errors.Is(err, errWrite) {
		l.syncMu.Lock()
		defer l.syncMu.Unlock()
		return 0, l.fail(err)
	}
	return base, err
}

// errWrite marks an error after which nothing above the synced end is believed.
var errWrite = errors.New("write failed")

func (l *Log) append(batch []byte, h *record.Header, epoch topic.Epoch, commitMS int64) (int64, error) {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.mu.Lock()
	base, began, copying, failed, last := l.written, l.began, l.copying, l.failed, l.track.now.lastMS
	size := l.writtenPos.Offset
	l.mu.Unlock()
	switch {
	case l.closed.Load():
		return 0, fmt.Errorf("append at %d: %w", base, ErrClosed)
	case failed != nil:
		return 0, fmt.Errorf("append at %d: %w: %w", base, ErrFailed, failed)
	case copying:
		return 0, fmt.Errorf("append at %d under epoch %d: %w: epoch %d is followed", base, epoch, ErrStaleEpoch, began)
	case epoch != began || epoch == 0:
		return 0, fmt.Errorf("append at %d under epoch %d: %w: %d began", base, epoch, ErrStaleEpoch, began)
	}
	if err := l.rollIfFull(base, size, int64(len(batch))); err != nil {
		return 0, err
	}
	commitMS = max(commitMS, last)
	record.Place(batch, base, epoch, commitMS)
	h.BaseOffset, h.LeaderEpoch, h.CommitMS = base, epoch, commitMS
	pos, err := l.seg.Append(batch)
	if err != nil {
		return 0, fmt.Errorf("append at %d: %w", base, l.judge(err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wroteLocked(h, pos)
	return base, nil
}

// wroteLocked takes note of a batch that stands at pos. The caller holds mu.
func (l *Log) wroteLocked(h *record.Header, pos seglog.Pos) {
	l.written = h.EndOffset()
	l.writtenPos = seglog.Pos{Segment: pos.Segment, Offset: pos.Offset + int64(h.Size())}
	l.epochs = l.epochs.add(h.LeaderEpoch, h.BaseOffset)
	e := entryOf(h)
	l.track.apply(&e)
	l.sinceSnap += int64(h.Size())
	l.index.add(int64(pos.Segment), h, pos.Offset)
}

// maxOversize is how far beyond its size a segment may grow while no next one
// can be made (no descriptors, no room for a file): an error then.
const maxOversize = 2

// rollIfFull begins a segment when there is none to append to or the active one
// is full.
func (l *Log) rollIfFull(base, size, n int64) error {
	appendable := l.seg.Appendable()
	full := size > seglog.HeaderSize && size+n > l.opt.SegmentBytes
	if appendable && !full {
		return nil
	}
	err := l.rollLocked(base)
	if err == nil {
		return nil
	}
	if appendable {
		if err = l.judge(err); !errors.Is(err, errWrite) && size+n <= maxOversize*l.opt.SegmentBytes {
			return nil // the old one goes on, the next append tries again
		}
	}
	return fmt.Errorf("append at %d: %w", base, err)
}

// judge tells a failed write or sync, which leaves the segment unusable, from an
// operation that could not begin, such as an open without descriptors.
func (l *Log) judge(err error) error {
	if l.seg.Appendable() {
		return err
	}
	return fmt.Errorf("%w: %w", errWrite, err)
}

// rollLocked seals the active segment, synced, and begins one at base.
func (l *Log) rollLocked(base int64) error {
	if err := l.seg.Roll(uint64(base), l.meta().encode()); err != nil {
		return err
	}
	l.segmentBegan(base)
	return nil
}

// segmentBegan takes note of a new active segment. Everything before it is on
// disk.
func (l *Log) segmentBegan(base int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.bases); n == 0 || l.bases[n-1] < base {
		l.bases = append(l.bases, base)
	}
	l.written, l.synced = base, base
	l.writtenPos = seglog.Pos{Segment: uint64(base), Offset: seglog.HeaderSize}
	l.syncedPos = l.writtenPos
	l.index.put(base, nil)
}

// Sync makes durable what was appended before the call and returns the synced
// end, the LEO. Calls that wait at the same time share one fsync; Append may run
// beside it. Errors: ErrFailed, now or before.
func (l *Log) Sync() (int64, error) {
	l.mu.Lock()
	want := l.written
	l.mu.Unlock()
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.Lock()
	synced, failed := l.synced, l.failed
	end, pos := l.written, l.writtenPos
	l.mu.Unlock()
	if l.closed.Load() {
		return synced, fmt.Errorf("sync: %w", ErrClosed)
	}
	if failed != nil {
		return synced, fmt.Errorf("sync: %w: %w", ErrFailed, failed)
	}
	if synced >= want {
		return synced, nil
	}
	if err := l.seg.Sync(); err != nil {
		err = fmt.Errorf("sync up to %d: %w", end, l.judge(err))
		if errors.Is(err, errWrite) {
			err = l.fail(err)
		}
		return synced, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil { // an append failed meanwhile; it waits for syncMu to cut
		return l.synced, fmt.Errorf("sync: %w: %w", ErrFailed, l.failed)
	}
	if end > l.synced {
		l.synced, l.syncedPos = end, pos
	}
	return l.synced, nil
}

// fail ends appending and cuts the log at its last synced offset. The caller
// holds syncMu. The result wraps ErrFailed.
func (l *Log) fail(cause error) error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.cuts.Add(1)
	defer l.cuts.Add(1)
	l.mu.Lock()
	if l.failed == nil {
		l.failed = cause
		l.backTo(l.synced, l.syncedPos)
	}
	first, cut := l.failed, l.cut
	l.mu.Unlock()
	if !cut {
		// A file that cannot be cut now is cut, or left behind, by BeginEpoch.
		_ = l.cutLocked()
	}
	return fmt.Errorf("%w: %w", ErrFailed, first)
}

// backTo takes back in memory what lies above an offset. The caller holds mu.
func (l *Log) backTo(end int64, pos seglog.Pos) {
	l.written, l.writtenPos, l.synced, l.syncedPos = end, pos, end, pos
	l.track.truncate(end)
	l.epochs = l.epochs.truncate(end)
	l.index.truncate(end)
	for n := len(l.bases); n > 1 && uint64(l.bases[n-1]) > pos.Segment; n-- {
		l.bases = l.bases[:n-1]
	}
}

// cutLocked cuts the files at the synced end. The caller holds appendMu.
func (l *Log) cutLocked() error {
	l.mu.Lock()
	pos := l.syncedPos
	l.mu.Unlock()
	if pos.Segment == 0 && pos.Offset == 0 {
		return l.markCut() // there never was a segment
	}
	if err := l.seg.TruncateTo(pos); err != nil {
		return fmt.Errorf("cut at %s: %w", pos, err)
	}
	return l.markCut()
}

func (l *Log) markCut() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	return nil
}

// Truncate removes everything from offset to on: a batch that holds the offset goes
// as a whole, so that the log ends at or below it, as WrittenEnd tells then. Producer
// numbers and epochs go back with it. Nothing below the HWM is removed (ErrBelowHWM).
// It is durable when it returns; after another error the log has failed, or could
// not be read and is as it was. A follower uses it, between leaderships.
func (l *Log) Truncate(to int64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.mu.Lock()
	hwm, written, failed := max(l.track.hwm, l.state.HWM, l.track.base.at), l.written, l.failed
	l.mu.Unlock()
	switch {
	case l.closed.Load():
		return fmt.Errorf("truncate to %d: %w", to, ErrClosed)
	case to < hwm:
		return fmt.Errorf("truncate to %d: %w: it is %d", to, ErrBelowHWM, hwm)
	case failed != nil:
		return fmt.Errorf("truncate to %d: %w: %w", to, ErrFailed, failed)
	case to >= written:
		return nil
	}
	pos, end, err := l.locateCut(to)
	if err != nil {
		return fmt.Errorf("truncate to %d: %w", to, err)
	}
	if end < hwm {
		return fmt.Errorf("truncate to %d, the end of a batch at %d: %w: it is %d", to, end, ErrBelowHWM, hwm)
	}
	l.appendMu.Lock()
	l.cuts.Add(1)
	err = l.seg.TruncateTo(pos)
	if err == nil {
		l.mu.Lock()
		l.backTo(end, pos)
		l.mu.Unlock()
	}
	l.cuts.Add(1)
	l.appendMu.Unlock()
	if err != nil {
		return l.fail(fmt.Errorf("truncate to %d: %w", to, err))
	}
	return nil
}
