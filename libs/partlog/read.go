package partlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
)

// Chunk is what Read found.
type Chunk struct {
	Batches []byte // whole batches as on disk, verified; may alias the buffer given
	Next    int64  // offset to go on from: the end of the last batch
	Skipped int64  // offsets before the first batch that are lost: a gap
	Buf     []byte // where Batches are: the buffer given, or a larger one in its place
}

// minRead is the least that is read from a file at once.
const minRead = 4 << 10

// Read returns whole batches, from the one that contains offset on, that end at
// or below limit (the HWM for consumers; anything higher for replicas, which fetch
// up to the written end), up to maxBytes but at least one. At
// the limit it returns an empty chunk. Lost offsets are skipped and counted;
// when nothing is left below the limit Next is the limit. buf is used when it is
// large enough; the chunk may alias it. Errors: ErrGone (below LogStart),
// ErrOutOfRange (above WrittenEnd), ErrClosed, or of the file system, which say
// nothing about the bytes and may go away.
func (l *Log) Read(offset, limit int64, maxBytes int, buf []byte) (Chunk, error) {
	for {
		cuts := l.settledCuts()
		chunk, err := l.read(offset, limit, maxBytes, buf, cuts)
		if l.closed.Load() { // whatever was met then, a gap too, may be another's
			return Chunk{}, fmt.Errorf("read at %d: %w", offset, ErrClosed)
		}
		if l.cuts.Load() == cuts {
			return chunk, err
		}
	}
}

// settledCuts is the state of cuts; it waits for one that is under way.
func (l *Log) settledCuts() uint64 {
	if cuts := l.cuts.Load(); cuts%2 == 0 {
		return cuts
	}
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	return l.cuts.Load()
}

func (l *Log) read(offset, limit int64, maxBytes int, buf []byte, cuts uint64) (Chunk, error) {
	l.mu.Lock()
	start, written := l.startLocked(), l.written
	limit = min(limit, written)
	p, ok := l.locateLocked(offset)
	l.mu.Unlock()
	switch {
	case offset > written || offset < 0:
		return Chunk{}, fmt.Errorf("read at %d: %w: it is %d", offset, ErrOutOfRange, written)
	case offset < start:
		return Chunk{}, fmt.Errorf("read at %d: %w: it is %d", offset, ErrGone, start)
	case offset >= limit:
		return Chunk{Next: offset}, nil
	case !ok:
		if err := l.buildIndex(p.base, p.bound); err != nil {
			return Chunk{}, l.readError(offset, err)
		}
		l.mu.Lock()
		p, _ = l.locateLocked(offset)
		l.mu.Unlock()
	}
	for {
		r := run{l: l, place: p, offset: offset, limit: limit, max: maxBytes, buf: buf, fileEnd: l.fileEnd(p.base)}
		if err := r.read(); err != nil {
			return Chunk{}, l.readError(offset, err)
		}
		if len(r.out) > 0 {
			l.mu.Lock()
			if l.cuts.Load() == cuts {
				l.index.remember(r.next, seglog.Pos{Segment: uint64(p.base), Offset: r.end})
			}
			l.mu.Unlock()
			return Chunk{Batches: r.out, Next: r.next, Skipped: max(r.first-offset, 0), Buf: r.buf}, nil
		}
		if r.straddles {
			return Chunk{Next: offset}, nil
		}
		if p.bound >= limit {
			return Chunk{Next: limit, Skipped: limit - offset}, nil
		}
		l.mu.Lock()
		p = l.startOfLocked(p.bound)
		l.mu.Unlock()
		buf = r.buf
	}
}

// readError tells a segment that retention has just removed from a failing disk.
func (l *Log) readError(offset int64, err error) error {
	if start := l.LogStart(); errors.Is(err, seglog.ErrRemoved) && offset < start {
		return fmt.Errorf("read at %d: %w: it is %d", offset, ErrGone, start)
	}
	return fmt.Errorf("read at %d: %w", offset, err)
}

// place is where to look for an offset.
type place struct {
	base  int64 // of the segment
	bound int64 // base of the next one, MaxInt64 for the last
	at    int64 // offset of the batch at pos, at or below the one looked for
	pos   int64 // in the file
}

// locateLocked finds the place to read an offset from; ok is false when the
// segment has no index yet.
func (l *Log) locateLocked(offset int64) (p place, ok bool) {
	i, exact := slices.BinarySearch(l.bases, offset)
	if !exact {
		i--
	}
	if i < 0 {
		return place{}, true
	}
	p = l.startOfLocked(l.bases[i])
	if pos, hinted := l.index.hinted(offset); hinted && pos.Segment == uint64(p.base) {
		p.at, p.pos = offset, pos.Offset
		return p, true
	}
	if exact {
		return p, true
	}
	e, ok := l.index.find(p.base, offset)
	if ok {
		p.at, p.pos = e.offset, e.pos
	}
	return p, ok
}

// startOfLocked is the start of the segment at base.
func (l *Log) startOfLocked(base int64) place {
	p := place{base: base, bound: math.MaxInt64, at: base, pos: seglog.HeaderSize}
	if i, _ := slices.BinarySearch(l.bases, base+1); i < len(l.bases) {
		p.bound = l.bases[i]
	}
	return p
}

// buildIndex scans a segment that has no index.
func (l *Log) buildIndex(base, bound int64) error {
	var entries []indexEntry
	cuts := l.cuts.Load()
	w := walk{next: base, bound: bound}
	err := l.seg.ScanSegment(uint64(base), func(f seglog.Frame) error {
		if h, ok := w.take(f.Bytes); ok {
			entries = addEntry(entries, &h, f.Pos.Offset)
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.index.bySegment[base]; !known && cuts%2 == 0 && l.cuts.Load() == cuts {
		l.index.put(base, entries)
	}
	return nil
}

// run reads batches of one segment.
type run struct {
	l      *Log
	place  place
	offset int64
	limit  int64
	max    int
	buf    []byte

	fileEnd int64 // of the segment, as far as it is known

	straddles bool // the batch at the offset reaches above the limit

	out   []byte // batches found; none: the segment has nothing at or above offset
	first int64  // base offset of the first
	next  int64  // end of the last
	end   int64  // its end in the file
}

// read finds the batches. It trusts the chain of headers up to the first batch
// wanted as long as they follow each other without a gap, and verifies what it
// returns. Where the chain breaks, seglog looks for the next intact batch.
func (r *run) read() error {
	for {
		b, err := r.fill(max(r.max, minRead))
		if err != nil || len(b) == 0 {
			return err
		}
		b, ok := r.hop(b)
		if !ok {
			return r.search()
		}
		if b == nil {
			continue
		}
		h, err := record.ParseHeader(b)
		if err != nil {
			return r.search()
		}
		if len(b) < h.Size() {
			if b, err = r.extend(b, h.Size()); err != nil {
				return err
			}
		}
		if !r.take(b) && !r.straddles {
			return r.search()
		}
		return nil
	}
}

// fileEnd is where the last batch of the segment at base ends; of one that takes
// no more batches somewhere above it.
func (l *Log) fileEnd(base int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writtenPos.Segment == uint64(base) {
		return l.writtenPos.Offset
	}
	return math.MaxInt64
}

// fill reads n bytes at the place, fewer at the end of the segment.
func (r *run) fill(n int) ([]byte, error) { return r.extend(nil, n) }

// extend is fill when those at the place, a part of r.buf, have been read.
func (r *run) extend(have []byte, n int) ([]byte, error) {
	n = int(min(int64(n), max(r.fileEnd-r.place.pos, 0))) // a fetch may ask for much of little
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	at := min(copy(r.buf[:cap(r.buf)], have), n)
	got, err := r.l.seg.ReadAt(r.buf[at:n], seglog.Pos{Segment: uint64(r.place.base), Offset: r.place.pos + int64(at)})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return r.buf[:at+got], nil
}

// hop passes over the batches that end at or below the offset and returns b from
// the first other one on, or nil when reading has to go on behind b. ok is false
// when the chain of headers breaks.
func (r *run) hop(b []byte) (rest []byte, ok bool) {
	off := 0
	for off <= len(b)-record.HeaderSize {
		h, err := record.ParseHeader(b[off:])
		if err != nil || h.BaseOffset != r.place.at {
			return nil, false
		}
		if h.EndOffset() > r.offset {
			r.place.pos += int64(off)
			return b[off:], true
		}
		r.place.at = h.EndOffset()
		off += h.Size()
	}
	r.place.pos += int64(off)
	return nil, off > 0
}

// take returns the intact batches at the start of b, the first whatever its size.
func (r *run) take(b []byte) bool {
	n := 0
	r.next = r.place.at
	for n < len(b) {
		h, batch, _, err := record.Split(b[n:])
		if err != nil || h.BaseOffset != r.next || h.EndOffset() > r.place.bound {
			break
		}
		if n > 0 && (n+len(batch) > r.max || h.EndOffset() > r.limit) {
			break
		}
		if n == 0 && h.EndOffset() > r.limit {
			r.straddles = true
			return false
		}
		n += len(batch)
		r.next = h.EndOffset()
	}
	if n == 0 {
		return false
	}
	r.out, r.first, r.end = b[:n], r.place.at, r.place.pos+int64(n)
	return true
}

// search is the slow way: verified frames from the place on, over damage.
func (r *run) search() error {
	segment := uint64(r.place.base)
	rd := r.l.seg.NewReader(seglog.Pos{Segment: segment, Offset: r.place.pos})
	w := walk{next: r.place.at, bound: r.place.bound}
	out := r.buf[:0]
	for {
		f, err := rd.Next(seglog.Pos{Segment: segment, Offset: math.MaxInt64})
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		h, ok := w.take(f.Bytes)
		if !ok || h.EndOffset() <= r.offset {
			continue
		}
		r.straddles = len(out) == 0 && h.BaseOffset < r.limit && h.EndOffset() > r.limit
		if h.EndOffset() > r.limit || len(out) > 0 && (len(out)+len(f.Bytes) > r.max || h.BaseOffset != r.next) {
			break
		}
		if len(out) == 0 {
			r.first = h.BaseOffset
		}
		out = append(out, f.Bytes...)
		r.next, r.end = h.EndOffset(), rd.Pos().Offset
	}
	r.out, r.buf = out, out
	return nil
}
