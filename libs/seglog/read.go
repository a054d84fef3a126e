package seglog

import (
	"bytes"
	"fmt"
	"io"
)

// readChunk is how much a scan reads at a time: enough that the syscall does
// not count, little enough for the cache.
const readChunk = 256 << 10

// ReadAt reads bytes at a position, like io.ReaderAt; nothing is checked. It
// ends with io.EOF at the end of the segment.
func (l *Log) ReadAt(p []byte, pos Pos) (int, error) {
	seg, size, err := l.segmentAt(pos.Segment)
	if err != nil {
		return 0, err
	}
	return l.readSeg(seg, size, p, pos.Offset)
}

// ReadFrame reads and checks the frame at pos. hint is its expected size in
// bytes (0: unknown); buf is used when it is large enough, and the result may
// alias it. ErrDamaged when no intact frame stands there.
func (l *Log) ReadFrame(pos Pos, hint int, buf []byte) (Frame, error) {
	const guess = 4 << 10
	seg, size, err := l.segmentAt(pos.Segment)
	if err != nil {
		return Frame{}, err
	}
	h, err := l.header(seg)
	if err != nil {
		return Frame{}, err
	}
	want := hint
	if want <= 0 {
		want = guess
	}
	for {
		if cap(buf) < want {
			buf = make([]byte, want)
		}
		n, err := l.readSeg(seg, size, buf[:want], pos.Offset)
		if err != nil && err != io.EOF {
			return Frame{}, err
		}
		need, v := l.opt.Format.Parse(h, buf[:n])
		if v == Whole {
			return Frame{pos, h, buf[:need]}, nil
		}
		if v == NotFrame || n < want || need <= n || need > l.opt.MaxFrame {
			return Frame{}, fmt.Errorf("segment %d at %d: %w", pos.Segment, pos.Offset, ErrDamaged)
		}
		want = need
	}
}

func (l *Log) segmentAt(base uint64) (*segment, int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.findLocked(base)
	if !ok {
		return nil, 0, fmt.Errorf("segment %d: %w", base, ErrRemoved)
	}
	return l.segs[i], l.sizeLocked(l.segs[i]), nil
}

func (l *Log) readSeg(seg *segment, size int64, p []byte, off int64) (int, error) {
	if off >= size {
		return 0, io.EOF
	}
	short := int64(len(p)) > size-off
	if short {
		p = p[:size-off]
	}
	f, err := l.acquire(seg)
	if err != nil {
		return 0, err
	}
	n, err := f.ReadAt(p, off)
	l.release(seg)
	if n == len(p) {
		if err = nil; short {
			err = io.EOF
		}
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("read segment %d at %d: %w", seg.base, off, err)
	}
	return n, err
}

// ScanSegment visits every frame of one segment in order, skipping and
// reporting damage. Frame.Bytes is valid during the call.
func (l *Log) ScanSegment(base uint64, visit func(Frame) error) error {
	seg, size, err := l.segmentAt(base)
	if err != nil {
		return err
	}
	_, _, err = l.scan(seg, size, false, visit)
	return err
}

// scan visits the frames of a segment up to size. It returns the end of the
// last frame, and whether only zeros follow. With torn, what follows the last
// frame is not damage but an unfinished write, and the last frame may be one that
// others follow (Options.Unpromised).
func (l *Log) scan(seg *segment, size int64, torn bool, visit func(Frame) error) (int64, bool, error) {
	h, err := l.header(seg)
	if err != nil {
		return 0, false, err
	}
	w := window{l: l, seg: seg, h: h}
	off := int64(HeaderSize)
	for off < size {
		b, err := w.frame(off, size)
		if err != nil {
			return 0, false, err
		}
		if b != nil {
			if visit != nil {
				if err := visit(Frame{Pos{seg.base, off}, h, b}); err != nil {
					return 0, false, err
				}
			}
			off += int64(len(b))
			continue
		}
		next, zeros, err := w.resync(off, size)
		if err != nil {
			return 0, false, err
		}
		if next == size && (torn || zeros) {
			return off, zeros, nil
		}
		if torn && l.opt.Unpromised != nil {
			lost, err := w.unwritten(off, next)
			if err != nil {
				return 0, false, err
			}
			if lost && l.opt.Unpromised(h) {
				return off, false, nil
			}
		}
		l.report(seg, off, next)
		off = next
	}
	return off, true, nil
}

// window is a sliding buffer over one segment.
type window struct {
	l     *Log
	seg   *segment
	h     *Header
	buf   []byte
	start int64 // offset of buf[0]
}

// at returns the bytes at off: at least n, unless limit comes before.
func (w *window) at(off int64, n int, limit int64) ([]byte, error) {
	n = int(min(int64(n), limit-off))
	if have := w.start + int64(len(w.buf)) - off; off >= w.start && have >= int64(n) {
		b := w.buf[off-w.start:]
		return b[:min(int64(len(b)), limit-off)], nil
	}
	want := int(min(int64(max(n, readChunk)), limit-off))
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf = w.buf[:want]
	w.start = off
	got, err := w.l.readSeg(w.seg, limit, w.buf, off)
	w.buf = w.buf[:got]
	if got < want {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF // the file is shorter than it was
		}
		return nil, fmt.Errorf("read segment %d at %d: %w", w.seg.base, off, err)
	}
	return w.buf, nil
}

// smallFrame is the first look at a frame; most need no second one.
const smallFrame = 4 << 10

// frame returns the intact frame at off, or nil.
func (w *window) frame(off, limit int64) ([]byte, error) {
	n := smallFrame
	for {
		b, err := w.at(off, n, limit)
		if err != nil {
			return nil, err
		}
		need, v := w.l.opt.Format.Parse(w.h, b)
		switch {
		case v == Whole:
			return b[:need], nil
		case v == NotFrame, need <= len(b), need > w.l.opt.MaxFrame, off+int64(need) > limit:
			return nil, nil
		}
		n = need
	}
}

// resync finds the next intact frame behind off, or limit. zeros tells that
// only zeros stand between.
func (w *window) resync(off, limit int64) (next int64, zeros bool, err error) {
	magic := w.l.opt.Format.Magic()
	zeros = true
	for at := off; at < limit; {
		b, err := w.at(at, smallFrame, limit)
		if err != nil {
			return 0, false, err
		}
		skip := 0
		if at == off {
			skip = 1 // known not to be one
		}
		i := bytes.Index(b[skip:], magic[:])
		if i < 0 {
			// The magic may straddle the end of what was read.
			step := len(b) - len(magic) + 1
			if at+int64(len(b)) == limit {
				step = len(b)
			}
			zeros = zeros && allZero(b[:step])
			at += int64(step)
			continue
		}
		i += skip
		zeros = zeros && allZero(b[:i])
		at += int64(i)
		f, err := w.frame(at, limit)
		if err != nil {
			return 0, false, err
		}
		if f != nil {
			return at, zeros, nil
		}
		zeros = false
		at++
	}
	return limit, zeros, nil
}

// sector is what disks write as a whole at least, in bytes.
const sector = 512

// unwritten tells whether a range without a frame, between two frames, shows a sector
// that was never written: it is zero, or was when the frame before ended in it. In one
// that was written and has rotted such a sector is there only if a message has one. The
// sector in which the frame behind begins was written.
func (w *window) unwritten(from, to int64) (bool, error) {
	for at := from; ; {
		end := at/sector*sector + sector
		if end > to {
			return false, nil
		}
		b, err := w.at(at, int(end-at), to)
		if err != nil {
			return false, err
		}
		if allZero(b[:end-at]) {
			return true, nil
		}
		at = end
	}
}

func allZero(b []byte) bool {
	var zero [4096]byte
	for len(b) > len(zero) {
		if !bytes.Equal(b[:len(zero)], zero[:]) {
			return false
		}
		b = b[len(zero):]
	}
	return bytes.Equal(b, zero[:len(b)])
}
