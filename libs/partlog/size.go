package partlog

import (
	"errors"

	"github.com/narad-mq/narad/libs/seglog"
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

// MoreThan tells whether BytesFrom(offset) is more than bytes. It costs no more than a
// look at the index for an offset near the end, however many segments there are: a
// leader asks it with each fetch.
func (l *Log) MoreThan(offset, bytes int64) bool {
	l.mu.Lock()
	if offset >= l.written {
		l.mu.Unlock()
		return false
	}
	p, _ := l.locateLocked(offset)
	end := l.writtenPos
	l.mu.Unlock()
	switch {
	case uint64(p.base) == end.Segment:
		return end.Offset-p.pos > bytes
	case end.Offset-seglog.HeaderSize > bytes:
		return true
	}
	return l.BytesFrom(offset) > bytes
}

// Remains is what a copy that nobody has open holds.
type Remains struct {
	State  State
	Found  bool         // the state: one was there, and valid
	LEO    int64        // end of its log
	Epochs []EpochStart // of its log
	// Damaged: damage was met in it, or in one that it was made from. What it had there
	// may be nowhere else, whatever lies above. Pieces are what it keeps of that; Whole
	// tells that nothing is known to be damaged that is not kept.
	Damaged bool
	Pieces  []Piece
	Whole   bool
}

// Examine recovers the log of a copy that nobody has open, as Open does, and tells
// what is in it. It costs what Open costs.
func Examine(fsys vfs.FS, dir string, opt Options) (Remains, error) {
	l, err := Open(fsys, dir, opt)
	if err != nil {
		return Remains{}, err
	}
	r := Remains{LEO: l.LEO(), Epochs: l.Epochs()}
	r.State, r.Found = l.State()
	pieces, whole, err := l.seg.Aside()
	if err != nil {
		return Remains{}, errors.Join(err, l.Close())
	}
	r.Damaged, r.Pieces, r.Whole = l.WasDamaged(), named(pieces, r.State), whole
	return r, l.Close()
}
