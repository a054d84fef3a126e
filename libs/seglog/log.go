package seglog

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"

	"github.com/narad-mq/narad/libs/vfs"
)

// Errors of this package.
var (
	// ErrFailed: a write or sync of the last segment failed before; it takes no more frames.
	ErrFailed = errors.New("the segment failed before")
	// ErrRollNeeded: there is no segment that may take frames; call Roll.
	ErrRollNeeded = errors.New("no segment to append to")
	// ErrRemoved: the position lies in a segment that is not there (any more).
	ErrRemoved = errors.New("no such segment")
	// ErrDamaged: the bytes at the position are no intact frame.
	ErrDamaged = errors.New("damaged frame")
	// ErrClosed: the log was closed.
	ErrClosed = errors.New("log closed")
)

// Pos is a place in a log: the segment's base and a byte offset in its file.
type Pos struct {
	Segment uint64
	Offset  int64
}

// Less orders positions of one log.
func (p Pos) Less(q Pos) bool {
	return p.Segment < q.Segment || p.Segment == q.Segment && p.Offset < q.Offset
}

// String is the form for logs and errors.
func (p Pos) String() string { return fmt.Sprintf("%d+%d", p.Segment, p.Offset) }

// Damage is a range that holds no frame although it should.
type Damage struct {
	Segment  uint64
	From, To int64 // byte offsets, To exclusive
	Copied   bool  // the bytes are in `<dir>/damaged`
}

// Frame is one frame and where it stands.
type Frame struct {
	Pos    Pos
	Header *Header // of its segment; not to be changed
	Bytes  []byte
}

// Options of a log. Only Format and MaxFrame are needed.
type Options struct {
	Format   Format
	MaxFrame int // bytes of the largest frame
	// FillAhead is how many bytes of zeros are written ahead of the end at a
	// time, because a sync over written blocks is faster than one that grows
	// the file (BenchmarkWriteSync). 0: none.
	FillAhead int64
	// UndoFull takes back an Append that finds the disk full instead of failing
	// the segment: it did nothing, and may be repeated when there is room.
	UndoFull bool
	// Recycle is how many removed segment files are kept to be used again. 0: none.
	Recycle int
	// Visit, when set, is called by Open with each frame of the last segment,
	// in order. Frame.Bytes is valid during the call. An error ends Open.
	Visit func(Frame) error
	// OnDamage, when set, is called once per damaged range and process, from
	// the goroutine that met it and without a lock.
	OnDamage func(Damage)
	// Suspect, when set, is shown by Open what it is about to cut off behind the last
	// frame (at most MaxFrame bytes), and tells how many bytes look like a frame that
	// was written in full and has rotted since, not like an unfinished write; 0: none.
	// Those are copied aside and reported like other damage, and cut all the same.
	Suspect func(h *Header, b []byte) int
	// Unpromised, when set, is asked by Open about damage between two frames of the last
	// segment in which a sector was never written, as after a power cut in the middle of
	// a sync: whether nobody was told that what comes behind the frame that Visit was
	// shown last is there. Then the log is cut there, as behind its last frame. nil: no.
	Unpromised func(h *Header) bool
	// Headers has a broken header of a segment with frames kept and reported like other
	// damage: for a log whose frames hold without it.
	Headers bool
	// Nonce draws the nonces of segments; nil: crypto/rand.
	Nonce func() uint64
}

// Recovery tells what Open cut off: what it found behind the last frame, see also
// Options.Unpromised.
type Recovery struct {
	TornAt    Pos   // where the log was cut
	TornBytes int64 // bytes cut, 0: none. Old frames of a recycled file count too.
}

// SegmentInfo describes one segment.
type SegmentInfo struct {
	Base uint64
	Size int64 // bytes, header included; of the last one up to its last frame
}

// Log is an open log. Append, Roll, Abandon and TruncateTo are calls of one
// writer at a time; Sync may run beside Append; everything else may run at any
// time. Two Logs on one directory are the caller's bug (lock the directory).
type Log struct {
	fs  vfs.FS
	dir string
	opt Options

	// asideMu is held across the copying of damaged bytes. Taken before mu.
	asideMu sync.Mutex

	mu         sync.Mutex // guards what follows; never held across I/O
	segs       []*segment // ascending by base; the last one is the active one
	spares     []string   // names of files to recycle
	end        int64      // end of the last frame in the active segment
	synced     int64      // end of what is known to be on disk
	filled     int64      // size of the active file
	appendable bool       // the active segment may take frames
	failed     error      // first error of the active segment
	closed     bool
	recovery   Recovery
	seen       map[Pos]bool // damage already reported; true: its bytes are kept
	aside      aside
}

// segment is one file. Fields are guarded by Log.mu.
type segment struct {
	base   uint64
	size   int64   // end of what readers see (the active one: see Log.end)
	hdr    *Header // nil: not read yet
	file   vfs.File
	refs   int  // uses of file in flight
	doomed bool // removed or replaced: file is closed when refs is 0
}

// Segments lists the segments in order.
func (l *Log) Segments() []SegmentInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]SegmentInfo, len(l.segs))
	for i, s := range l.segs {
		out[i] = SegmentInfo{s.base, l.sizeLocked(s)}
	}
	return out
}

// Bytes is the size of all segments.
func (l *Log) Bytes() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, s := range l.segs {
		n += l.sizeLocked(s)
	}
	return n
}

// Start is the position of the first frame, or zero when there is no segment.
func (l *Log) Start() Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.segs) == 0 {
		return Pos{}
	}
	return Pos{l.segs[0].base, HeaderSize}
}

// End is the position behind the last frame written, synced or not.
func (l *Log) End() Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.posLocked(l.end)
}

// Synced is the position behind the last frame that is known to be on disk.
func (l *Log) Synced() Pos {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.posLocked(l.synced)
}

// Appendable tells whether Append may be called: there is a last segment, its
// header is whole and it has not failed. Otherwise Roll or Abandon first.
func (l *Log) Appendable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendable && l.failed == nil && !l.closed
}

// Recovery tells what Open cut.
func (l *Log) Recovery() Recovery { return l.recovery }

func (l *Log) posLocked(off int64) Pos {
	if len(l.segs) == 0 {
		return Pos{}
	}
	return Pos{l.segs[len(l.segs)-1].base, off}
}

func (l *Log) activeLocked() *segment {
	if len(l.segs) == 0 {
		return nil
	}
	return l.segs[len(l.segs)-1]
}

func (l *Log) sizeLocked(s *segment) int64 {
	if s == l.activeLocked() {
		return l.end
	}
	return s.size
}

// findLocked returns the place of a base in segs.
func (l *Log) findLocked(base uint64) (int, bool) {
	return slices.BinarySearchFunc(l.segs, base, func(s *segment, b uint64) int {
		switch {
		case s.base < b:
			return -1
		case s.base > b:
			return 1
		}
		return 0
	})
}

func (l *Log) path(name string) string { return path.Join(l.dir, name) }

func randomNonce() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return binary.LittleEndian.Uint64(b[:])
}
