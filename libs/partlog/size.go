package partlog

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/narad-mq/narad/libs/vfs"
)

// BytesFrom is about how many bytes of the log stand at or above an offset: never
// fewer, and at most one entry of the index more, or a whole segment where none is
// in memory. It reads nothing.
func (l *Log) BytesFrom(offset int64) int64 {
	l.mu.Lock()
	if offset >= l.written {
		l.mu.Unlock()
		return 0
	}
	p, indexed := l.locateLocked(offset)
	l.mu.Unlock()
	total := int64(0)
	for _, s := range l.seg.Segments() {
		if base := int64(s.Base); base >= p.base { // a segment's base is an offset here
			total += s.Size
			if indexed && base == p.base {
				total -= p.pos
			}
		}
	}
	return max(total, 0)
}

// PeekState reads the state of a copy that is not open, without changing anything;
// found is false when none is there or none is valid.
func PeekState(fsys vfs.FS, dir string) (st State, found bool, err error) {
	st, _, found, err = peek(fsys, dir)
	return st, found, err
}

// PeekEpochs reads the epoch history of a copy that is not open, as it was when its
// state was saved last: none when no state is there or valid, and newer epochs may
// be in the log.
func PeekEpochs(fsys vfs.FS, dir string) ([]EpochStart, error) {
	_, snap, _, err := peek(fsys, dir)
	return snap.epochs, err
}

func peek(fsys vfs.FS, dir string) (st State, snap snapshot, found bool, err error) {
	generation := uint64(0)
	s := slots{fs: fsys, dir: dir}
	for i := range s.files {
		b, err := readWhole(fsys, s.name(i))
		if errors.Is(err, fs.ErrNotExist) || err == nil && b == nil {
			continue
		}
		if err != nil {
			return State{}, snapshot{}, false, fmt.Errorf("read the state in %s: %w", dir, err)
		}
		if g, slot, has, perr := parseSlot(b); perr == nil && (!found || g > generation) {
			generation, st, snap, found = g, slot, has, true
		}
	}
	return st, snap, found, nil
}
