package seglog

import "io"

// Reader walks the frames of a log in order. It is for one goroutine; it holds
// no file open between calls.
type Reader struct {
	l   *Log
	pos Pos
	w   window
}

// NewReader starts at from, which is a frame's position, an end, or the start
// of a segment. A position whose segment is gone starts at the next one there.
func (l *Log) NewReader(from Pos) *Reader { return &Reader{l: l, pos: from} }

// Pos is where the next frame is looked for.
func (r *Reader) Pos() Pos { return r.pos }

// Seek goes on at pos.
func (r *Reader) Seek(pos Pos) { r.pos = pos }

// Next returns the next frame that ends at or before limit (a position that a
// frame ends at, such as Log.Synced), or io.EOF. Damage is skipped and
// reported. Frame.Bytes is valid until the next call. After another error the
// call may be repeated.
func (r *Reader) Next(limit Pos) (Frame, error) {
	for {
		seg, end, more := r.step(limit)
		if seg == nil {
			return Frame{}, io.EOF
		}
		if r.w.seg != seg {
			h, err := r.l.header(seg)
			if err != nil {
				return Frame{}, err
			}
			r.w = window{l: r.l, seg: seg, h: h, buf: r.w.buf[:0]}
		}
		if r.pos.Offset < end {
			b, err := r.w.frame(r.pos.Offset, end)
			if err != nil {
				return Frame{}, err
			}
			if b != nil {
				f := Frame{r.pos, r.w.h, b}
				r.pos.Offset += int64(len(b))
				return f, nil
			}
			next, zeros, err := r.w.resync(r.pos.Offset, end)
			if err != nil {
				return Frame{}, err
			}
			if next < end || !zeros {
				r.l.report(seg, r.pos.Offset, next)
			}
			r.pos.Offset = next
			continue
		}
		if !more {
			return Frame{}, io.EOF
		}
		r.pos = Pos{seg.base + 1, 0} // step finds the next one
	}
}

// step finds the segment at r.pos, or the next one, and how far it may be read.
// more tells that the limit lies in a later segment.
func (r *Reader) step(limit Pos) (seg *segment, end int64, more bool) {
	l := r.l
	l.mu.Lock()
	defer l.mu.Unlock()
	i, ok := l.findLocked(r.pos.Segment)
	if i == len(l.segs) || l.segs[i].base > limit.Segment {
		return nil, 0, false
	}
	seg = l.segs[i]
	if !ok {
		r.pos = Pos{seg.base, HeaderSize}
	}
	r.pos.Offset = max(r.pos.Offset, HeaderSize)
	end = l.sizeLocked(seg)
	if seg.base == limit.Segment {
		return seg, min(end, limit.Offset), false
	}
	return seg, end, i+1 < len(l.segs)
}
