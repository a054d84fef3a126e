package seglog

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/narad-mq/narad/libs/vfs"
)

// RemoveBelow removes the segments of which every number is below base (the next
// segment starts at or below it), oldest first, never the last one. Some are kept as files to recycle. One that cannot be
// removed does not hold up the others; it stays listed and is tried again by
// the next call.
func (l *Log) RemoveBelow(base uint64) error {
	l.mu.Lock()
	var gone []*segment
	for i, s := range l.segs {
		if i+1 < len(l.segs) && l.segs[i+1].base <= base {
			gone = append(gone, s)
		}
	}
	l.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	var errs error
	var spares []string
	for _, s := range gone {
		spare, err := l.remove(s, len(spares))
		errs = errors.Join(errs, err)
		if spare != "" {
			spares = append(spares, spare)
		}
	}
	if err := l.fs.SyncDir(l.dir); err != nil {
		// Spares may not be written to: their old names may come back.
		return errors.Join(errs, fmt.Errorf("remove segments below %d: %w", base, err))
	}
	l.mu.Lock()
	l.spares = append(l.spares, spares...)
	l.mu.Unlock()
	return errs
}

// remove takes one segment out of the list and its file away. It returns the
// name of a spare when the file is kept.
func (l *Log) remove(s *segment, pending int) (string, error) {
	l.mu.Lock()
	// A file that someone reads must not get new content under the reader.
	keep := len(l.spares)+pending < l.opt.Recycle && s.refs == 0 && s.size > HeaderSize
	i, ok := l.findLocked(s.base)
	var f vfs.File
	if ok {
		l.segs = slices.Delete(l.segs, i, i+1)
		f = l.doomLocked(s)
	}
	l.mu.Unlock()
	if !ok {
		return "", nil
	}
	if f != nil {
		_ = f.Close() // sealed and synced before
	}
	name, spare := fileName(s.base, logSuffix), ""
	var err error
	if keep {
		spare = fileName(s.base, spareSuffix)
		err = l.fs.Rename(l.path(name), l.path(spare))
	} else {
		err = l.fs.Remove(l.path(name))
	}
	if err == nil {
		return spare, nil
	}
	l.mu.Lock()
	back := &segment{base: s.base, size: s.size, hdr: s.hdr}
	i, _ = l.findLocked(s.base)
	l.segs = slices.Insert(l.segs, i, back)
	l.mu.Unlock()
	return "", fmt.Errorf("remove segment %d: %w", s.base, err)
}

// TruncateTo removes every frame from pos on: later segments first, newest
// first, then the rest of pos's segment. It is durable on return. A log that
// had failed has not after it, but the file takes no more frames: Roll. After
// an error the log has failed and TruncateTo must be repeated.
func (l *Log) TruncateTo(pos Pos) error {
	l.mu.Lock()
	i, ok := l.findLocked(pos.Segment)
	if !ok || pos.Offset > l.sizeLocked(l.segs[i]) {
		l.mu.Unlock()
		return fmt.Errorf("truncate to %s: %w", pos, ErrRemoved)
	}
	seg, failed, later := l.segs[i], l.failed != nil, slices.Clone(l.segs[i+1:])
	l.mu.Unlock()
	h, err := l.header(seg)
	if err != nil {
		return err
	}
	if err := l.truncate(seg, later, pos.Offset); err != nil {
		return l.fail(fmt.Errorf("truncate to %s: %w", pos, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end, l.synced, l.filled = pos.Offset, pos.Offset, pos.Offset
	l.appendable = !h.Damaged && (!failed || len(later) > 0) && pos.Offset >= HeaderSize
	l.failed = nil
	return nil
}

func (l *Log) truncate(seg *segment, later []*segment, off int64) error {
	for _, s := range slices.Backward(later) {
		if err := l.fs.Remove(l.path(fileName(s.base, logSuffix))); err != nil {
			return fmt.Errorf("remove segment %d: %w", s.base, err)
		}
		l.mu.Lock()
		l.segs = l.segs[:len(l.segs)-1]
		last := l.activeLocked()
		l.end, l.synced, l.filled, l.appendable = last.size, last.size, last.size, false
		f := l.doomLocked(s)
		l.mu.Unlock()
		if f != nil {
			_ = f.Close() // it has no name any more
		}
	}
	if len(later) > 0 {
		if err := l.fs.SyncDir(l.dir); err != nil {
			return err
		}
	}
	f, err := l.acquire(seg)
	if err != nil {
		return err
	}
	defer l.release(seg)
	if err := f.Truncate(off); err != nil {
		return err
	}
	return f.Sync()
}

// RemoveAll removes every segment, spare and unfinished file of a log that nobody
// has open, durably; other files and the damaged bytes set aside stay. It may be
// repeated.
func RemoveAll(fsys vfs.FS, dir string) error {
	entries, err := fsys.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("remove the segments in %s: %w", dir, err)
	}
	for _, e := range entries {
		name := e.Name()
		base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, logSuffix), tmpSuffix), spareSuffix)
		if _, ok := parseName(base + logSuffix); !ok || base == name {
			continue
		}
		if err := fsys.Remove(path.Join(dir, name)); err != nil {
			return fmt.Errorf("remove the segments in %s: %w", dir, err)
		}
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("remove the segments in %s: %w", dir, err)
	}
	return nil
}
