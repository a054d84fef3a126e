package seglog

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/narad-mq/narad/libs/vfs"
)

// Append writes one or more whole frames behind the last one with one write
// and returns where they start. They are not synced. After an error other than
// ErrFailed and ErrRollNeeded the segment has failed, but see Options.UndoFull:
// whether it has is what Appendable tells.
func (l *Log) Append(b []byte) (Pos, error) { return l.AppendInPieces(b, 0) }

// AppendInPieces is Append with a sync behind each piece bytes but the last ones; 0: none.
// The sync of another file on the disk waits for what was written before it, and so for one
// piece and not for all of b. Nothing counts as synced by it: a crash leaves an unfinished frame.
func (l *Log) AppendInPieces(b []byte, piece int) (Pos, error) {
	seg, f, err := l.acquireActive()
	if err != nil {
		return Pos{}, err
	}
	defer l.release(seg)
	at := l.fillAhead(f, int64(len(b)))
	if synced, err := writePieces(f, b, at, piece); err != nil {
		if l.opt.UndoFull && synced && l.undone(f, at, err) {
			return Pos{}, fmt.Errorf("append to segment %d: %w", seg.base, err)
		}
		return Pos{}, l.fail(fmt.Errorf("append to segment %d: %w", seg.base, err))
	}
	l.mu.Lock()
	l.end = at + int64(len(b))
	l.filled = max(l.filled, l.end)
	l.mu.Unlock()
	return Pos{seg.base, at}, nil
}

// writePieces writes b at an offset. synced is false after a sync that failed.
func writePieces(f vfs.File, b []byte, at int64, piece int) (synced bool, err error) {
	for piece > 0 && len(b) > piece {
		if _, err := f.WriteAt(b[:piece], at); err != nil {
			return true, err
		}
		if err := f.Sync(); err != nil {
			return false, err
		}
		b, at = b[piece:], at+int64(piece)
	}
	_, err = f.WriteAt(b, at)
	return true, err
}

// undone takes back what a write left that found no room, together with the zeros
// ahead of it. Everything below is as it was: a write has no say in other bytes of
// the file, and no sync has failed.
func (l *Log) undone(f vfs.File, at int64, err error) bool {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) || f.Truncate(at) != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.filled = at
	return true
}

// fillAhead writes zeros ahead of a write of n bytes when it is time, and
// returns where the write goes. A failure only costs speed: the write itself
// tells whether there is room.
func (l *Log) fillAhead(f vfs.File, n int64) (end int64) {
	l.mu.Lock()
	end, filled := l.end, l.filled
	l.mu.Unlock()
	if l.opt.FillAhead <= 0 || end+n <= filled {
		return end
	}
	upTo := end + n + l.opt.FillAhead
	zero := make([]byte, min(l.opt.FillAhead, fillWrite))
	for at := filled; at < upTo; {
		z := zero[:min(int64(len(zero)), upTo-at)]
		if _, err := f.WriteAt(z, at); err != nil {
			break
		}
		at += int64(len(z))
		l.mu.Lock()
		l.filled = at
		l.mu.Unlock()
	}
	return end
}

// fillWrite bounds the memory of one write of zeros.
const fillWrite = 1 << 20

// Sync makes every frame durable whose Append returned before. It may run
// beside Append. After an error the segment has failed.
func (l *Log) Sync() error {
	seg, f, err := l.acquireActive()
	if err != nil {
		return err
	}
	defer l.release(seg)
	l.mu.Lock()
	end := l.end
	l.mu.Unlock()
	if err := f.Sync(); err != nil {
		return l.fail(fmt.Errorf("sync segment %d: %w", seg.base, err))
	}
	l.mu.Lock()
	if l.activeLocked() == seg && l.failed == nil {
		l.synced = max(l.synced, end)
	}
	l.mu.Unlock()
	return nil
}

func (l *Log) acquireActive() (*segment, vfs.File, error) {
	l.mu.Lock()
	seg, ok, failed := l.activeLocked(), l.appendable, l.failed
	l.mu.Unlock()
	if failed != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrFailed, failed)
	}
	if seg == nil || !ok {
		return nil, nil, ErrRollNeeded
	}
	f, err := l.acquire(seg)
	return seg, f, err
}

func (l *Log) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = err
	}
	return err
}

// Roll seals the last segment (truncated to its last frame, synced) and starts
// the next one, whose base must be above it, or the same when it is empty. It
// is durable when Roll returns. When only the new segment cannot be made, the
// old one goes on.
func (l *Log) Roll(base uint64, meta []byte) error {
	l.mu.Lock()
	old, end, size, synced, failed := l.activeLocked(), l.end, l.filled, l.synced, l.failed
	l.mu.Unlock()
	if failed != nil {
		return fmt.Errorf("roll to %d: %w: %w", base, ErrFailed, failed)
	}
	if err := l.checkBase(base); err != nil {
		return err
	}
	if old != nil && (end != size || end != synced) {
		if err := l.seal(old, end, size); err != nil {
			return err
		}
	}
	return l.start(base, meta, end)
}

func (l *Log) checkBase(base uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.activeLocked()
	if old == nil || base > old.base || base == old.base && l.end <= HeaderSize {
		return nil
	}
	return fmt.Errorf("roll to %d: not above segment %d", base, old.base)
}

// seal cuts the active file at its last frame and syncs it.
func (l *Log) seal(seg *segment, end, size int64) error {
	f, err := l.acquire(seg)
	if err != nil {
		return err
	}
	defer l.release(seg)
	if size != end {
		err = f.Truncate(end)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return l.fail(fmt.Errorf("seal segment %d: %w", seg.base, err))
	}
	l.mu.Lock()
	l.filled, l.synced = end, end
	l.mu.Unlock()
	return nil
}

// Abandon starts a new segment after a failure and leaves the failed file as it
// is: this process shows it up to its synced end. A later Open may find more
// in it, which the caller's meta must tell how to judge. When nothing in the
// file was synced it is removed, so that a full disk leaves no heap of them.
func (l *Log) Abandon(base uint64, meta []byte) error {
	l.mu.Lock()
	synced := l.synced
	old := l.activeLocked()
	l.mu.Unlock()
	if old != nil && base <= old.base {
		return fmt.Errorf("abandon for %d: not above segment %d", base, old.base)
	}
	if err := l.start(base, meta, synced); err != nil {
		return err
	}
	if old != nil && synced <= HeaderSize {
		// A failure keeps it listed, and RemoveBelow tries again.
		_, _ = l.remove(old, l.opt.Recycle)
	}
	return nil
}

// start makes a segment and makes it the active one; the old one ends at oldEnd.
func (l *Log) start(base uint64, meta []byte, oldEnd int64) error {
	h := &Header{Base: base, Nonce: l.opt.Nonce(), Meta: append([]byte(nil), meta...)}
	f, size, err := l.create(h)
	if err != nil {
		return fmt.Errorf("start segment %d: %w", base, err)
	}
	seg := &segment{base: base, hdr: h, file: f}
	l.mu.Lock()
	var close vfs.File
	if old := l.activeLocked(); old != nil {
		old.size = oldEnd
		if old.base == base { // empty, and its file was replaced
			l.segs = l.segs[:len(l.segs)-1]
			close = l.doomLocked(old)
		}
	}
	l.segs = append(l.segs, seg)
	l.end, l.synced, l.filled = HeaderSize, HeaderSize, size
	l.appendable, l.failed = true, nil
	shed := l.shedLocked()
	l.mu.Unlock()
	if close != nil {
		_ = close.Close() // an empty file without a name
	}
	if shed != nil {
		_ = shed.Close() // sealed
	}
	return nil
}

// doomLocked marks a segment removed and returns the file to close, if it is
// not in use.
func (l *Log) doomLocked(s *segment) vfs.File {
	s.doomed = true
	if s.refs > 0 {
		return nil
	}
	f := s.file
	s.file = nil
	return f
}

// create makes the file under a temporary name (a recycled one keeps its
// content behind the header), and gives it its name when the header is synced.
func (l *Log) create(h *Header) (vfs.File, int64, error) {
	head, err := h.encode()
	if err != nil {
		return nil, 0, err
	}
	f, tmp, err := l.blank(h.Base)
	if err != nil {
		return nil, 0, err
	}
	name := l.path(fileName(h.Base, logSuffix))
	size, err := int64(0), error(nil)
	if _, err = f.WriteAt(head, 0); err == nil {
		err = f.Sync()
	}
	if err == nil {
		size, err = f.Size()
	}
	if err == nil {
		err = l.fs.Rename(tmp, name)
	}
	if err == nil {
		tmp = name
		err = l.fs.SyncDir(l.dir)
	}
	if err != nil {
		// Leave nothing behind; Open also removes what stays.
		return nil, 0, errors.Join(err, f.Close(), l.fs.Remove(tmp))
	}
	return f, size, nil
}

// blank takes a spare file or makes a new one.
func (l *Log) blank(base uint64) (vfs.File, string, error) {
	l.mu.Lock()
	var spare string
	if n := len(l.spares); n > 0 {
		spare, l.spares = l.path(l.spares[n-1]), l.spares[:n-1]
	}
	l.mu.Unlock()
	if spare != "" {
		if f, err := l.fs.Open(spare); err == nil {
			return f, spare, nil
		}
		// It stays for the next Open; a new file will do.
	}
	tmp := l.path(fileName(base, tmpSuffix))
	f, err := l.fs.Create(tmp)
	return f, tmp, err
}

// Close syncs what was appended, cuts what was filled ahead, and closes the
// files. A log that failed is closed as it is.
func (l *Log) Close() error {
	l.asideMu.Lock()
	defer l.asideMu.Unlock()
	l.mu.Lock()
	seg, end, size, synced := l.activeLocked(), l.end, l.filled, l.synced
	clean := l.failed != nil || !l.appendable || end == size && end == synced
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	var err error
	if seg != nil && !clean {
		err = l.seal(seg, end, size)
	}
	l.mu.Lock()
	l.closed = true
	var files []vfs.File
	for _, s := range l.segs {
		if s.file != nil && s.refs == 0 {
			files = append(files, s.file)
			s.file = nil
		}
	}
	l.mu.Unlock()
	for _, f := range files {
		err = errors.Join(err, f.Close())
	}
	return err
}
