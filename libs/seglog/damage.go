package seglog

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/vfs"
)

const (
	// maxAsideBytes bounds the copies of damaged bytes: enough for one whole
	// segment to be looked at, never a second log.
	maxAsideBytes = 64 << 20
	// maxSeen bounds the memory of damage already reported; beyond it a range
	// may be reported twice.
	maxSeen = 4096
)

// report copies a damaged range aside and tells the caller of it, once.
func (l *Log) report(seg *segment, from, to int64) {
	at := Pos{seg.base, from}
	l.mu.Lock()
	known := l.seen[at]
	if !known && len(l.seen) < maxSeen {
		l.seen[at] = true
	}
	l.mu.Unlock()
	if known {
		return
	}
	err := l.copyAside(seg, from, to)
	if l.opt.OnDamage != nil {
		l.opt.OnDamage(Damage{seg.base, from, to, err == nil})
	}
}

// WasDamaged tells whether damage was ever met in the log of a directory that nobody
// has open: what could be read of it lies beside the segments, and nowhere else.
func WasDamaged(fsys vfs.FS, dir string) (bool, error) {
	_, err := fsys.Stat(path.Join(dir, asideDir))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for damage of %s: %w", dir, err)
	}
	return true, nil
}

var errAsideFull = errors.New("no room for more damaged bytes")

func (l *Log) copyAside(seg *segment, from, to int64) error {
	dir := path.Join(l.dir, asideDir)
	if err := l.fs.MkdirAll(dir); err != nil {
		return err
	}
	if !l.takeAside(dir, to-from) {
		return errAsideFull
	}
	b := make([]byte, to-from)
	if _, err := l.readSeg(seg, to, b, from); err != nil {
		return err
	}
	f, err := l.fs.Create(path.Join(dir, fmt.Sprintf("%0*d-%d", nameDigits, seg.base, from)))
	switch {
	case errors.Is(err, fs.ErrExist): // by an earlier process, which may not have got further
	case err != nil:
		return err
	default:
		if err := errors.Join(writeSynced(f, b), f.Close()); err != nil {
			return err
		}
	}
	// What is copied may be cut from the log next, and that there was damage keeps the
	// copy of a partition that moved away: neither may go with a power cut.
	return errors.Join(l.fs.SyncDir(dir), l.fs.SyncDir(l.dir))
}

func writeSynced(f vfs.File, b []byte) error {
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	return f.Sync()
}

// takeAside counts n more bytes, and refuses those above the bound.
func (l *Log) takeAside(dir string, n int64) bool {
	l.mu.Lock()
	known := l.asideBytes >= 0
	l.mu.Unlock()
	var size int64
	if !known {
		entries, err := l.fs.ReadDir(dir)
		if err != nil {
			return false
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				size += info.Size()
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asideBytes < 0 {
		l.asideBytes = size
	}
	if l.asideBytes+n > maxAsideBytes {
		return false
	}
	l.asideBytes += n
	return true
}
