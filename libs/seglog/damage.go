package seglog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/vfs"
)

// maxSeen bounds the memory of damage already reported; beyond it a range may be
// reported twice.
const maxSeen = 4096

// report copies a damaged range aside and tells the caller of it, once, and of its
// segment's header if that is damaged too. When it returns the bytes are kept, whoever
// met them first; a range that could not be kept is tried again whenever it is met.
func (l *Log) report(seg *segment, from, to int64) {
	l.asideMu.Lock()
	found := l.reportLocked(seg, from, to)
	l.asideMu.Unlock()
	if l.opt.OnDamage == nil {
		return
	}
	for _, d := range found {
		l.opt.OnDamage(d)
	}
}

// reportLocked is report with asideMu held; it returns what was not known before.
func (l *Log) reportLocked(seg *segment, from, to int64) (found []Damage) {
	at := Pos{seg.base, from}
	l.mu.Lock()
	kept, known := l.seen[at]
	l.mu.Unlock()
	if kept {
		return nil
	}
	err := l.copyAside(seg, from, to)
	l.mu.Lock()
	if known || len(l.seen) < maxSeen {
		l.seen[at] = err == nil
	}
	l.mu.Unlock()
	if known {
		return nil
	}
	found = append(found, Damage{seg.base, from, to, err == nil})
	if l.opt.Headers && from >= HeaderSize && l.headerRotten(seg) { // what wrote over a frame may have hit it too
		found = append(found, l.reportLocked(seg, 0, HeaderSize)...)
	}
	return found
}

// headerRotten tells whether what stands now where the header of a segment that has
// frames was is none: that in memory may be from before it rotted.
func (l *Log) headerRotten(seg *segment) bool {
	f, err := l.acquire(seg)
	if err != nil {
		return false // it was removed meanwhile
	}
	b := make([]byte, HeaderSize+1)
	n, err := f.ReadAt(b, 0)
	l.release(seg)
	if n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	h, err := parseHeader(b[:HeaderSize])
	return err != nil || h.Base != seg.base
}

// WasDamaged tells whether damage was ever met in the log of a directory that nobody
// has open, or in one that it was made from: see [Log.Aside].
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

// copyAside keeps a damaged range. The caller holds asideMu.
func (l *Log) copyAside(seg *segment, from, to int64) error {
	name := fmt.Sprintf("%0*d-%d", nameDigits, seg.base, from)
	if done, err := l.keptBefore(name, to-from); done || err != nil {
		return err
	}
	return l.keep(name, to-from, func() ([]byte, error) {
		b := make([]byte, to-from)
		_, err := l.readSeg(seg, to, b, from)
		return b, err
	})
}
