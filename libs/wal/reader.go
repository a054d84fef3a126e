package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// Reader gives every durable record from the checkpoint on, in order, each
// once. It is for one goroutine.
type Reader struct {
	w      *WAL
	r      *seglog.Reader
	u      unit
	limits map[uint64]uint64 // segment -> last sequence that counts
	names  interner
}

// Reader returns the reader of this WAL: always the same.
func (w *WAL) Reader() *Reader { return &w.reader }

func (w *WAL) startReader(c checkpoint, limits map[uint64]uint64) {
	from := c.pos
	if end := w.log.End(); end.Less(from) {
		from = seglog.Pos{} // of another life of this directory: repeat rather than lose
	}
	if start := w.log.Start(); from.Less(start) {
		from = start
	}
	w.reader = Reader{w: w, r: w.log.NewReader(from), limits: limits}
	w.tracker.read, w.tracker.saved = from, c.pos
	switch {
	case from == seglog.Pos{}:
		w.tracker.next = w.nextSeq // there is nothing yet
	case from == c.pos:
		w.tracker.next = c.next
	default:
		w.tracker.next = from.Segment // the sequence that a segment starts with
	}
}

// Next waits for the next record. Body is valid until the next call. It fails
// with the error of ctx, ErrClosed, or an error of the disk, after which the
// call may be repeated.
func (r *Reader) Next(ctx context.Context) (Record, error) {
	for {
		rec, ok, err := r.TryNext()
		if ok || err != nil {
			return rec, err
		}
		select {
		case <-r.w.wake:
		case <-r.w.stop:
			return Record{}, ErrClosed
		case <-ctx.Done():
			return Record{}, ctx.Err()
		}
	}
}

// TryNext is Next that does not wait: ok is false when all is read.
func (r *Reader) TryNext() (rec Record, ok bool, err error) {
	for {
		rec, ok, err := r.u.next(&r.names)
		if err != nil {
			return Record{}, false, fmt.Errorf("unit at %s: %w", r.u.pos, err)
		}
		if ok {
			return rec, true, nil
		}
		if ok, err := r.nextUnit(); !ok || err != nil {
			return Record{}, false, err
		}
	}
}

// nextUnit moves to the next unit that counts.
func (r *Reader) nextUnit() (bool, error) {
	for {
		r.u = unit{}
		r.skipRefused()
		f, err := r.r.Next(r.w.log.Synced())
		if errors.Is(err, io.EOF) {
			if r.w.tracker.passed(r.r.Pos()) {
				signal(r.w.dirty)
			}
			return false, nil
		}
		if errors.Is(err, seglog.ErrClosed) {
			return false, ErrClosed
		}
		if err != nil {
			return false, err
		}
		u := openUnit(f)
		limit, limited := r.limits[f.Pos.Segment]
		switch {
		case limited && u.lastSeq() > limit:
			r.nextSegment(f.Pos.Segment)
			continue
		case !u.sound():
			r.w.onDamage(seglog.Damage{Segment: f.Pos.Segment, From: f.Pos.Offset, To: f.Pos.Offset + int64(len(f.Bytes))})
			continue
		}
		r.w.tracker.add(&u, u.acceptMS(), r.r.Pos())
		if limited && u.lastSeq() == limit {
			r.nextSegment(f.Pos.Segment) // what follows was refused, whole or torn
		}
		r.u = u
		return true, nil
	}
}

// skipRefused passes a segment of which nothing was acknowledged, so that its
// remains are not taken for damage.
func (r *Reader) skipRefused() {
	for {
		seg := r.r.Pos().Segment
		if limit, ok := r.limits[seg]; !ok || limit >= seg {
			return
		}
		r.nextSegment(seg)
	}
}

func (r *Reader) nextSegment(seg uint64) { r.r.Seek(seglog.Pos{Segment: seg + 1}) }

// sound walks a unit: its records fill it, and there are as many as it says.
func (u *unit) sound() bool {
	at, n := frameHead, uint32(0)
	for at < len(u.b) {
		if len(u.b)-at < recordHead {
			return false
		}
		size := int(binary.LittleEndian.Uint32(u.b[at:]))
		if size < recordHead || size > len(u.b)-at || recordHead+int(u.b[at+33]) > size {
			return false
		}
		at += size
		n++
	}
	return n == u.count && n > 0
}

func (u *unit) acceptMS() int64 {
	return int64(binary.LittleEndian.Uint64(u.b[frameHead+12:]))
}

// nearRecord is up to which offset in its frame a record is read together with
// the head of the frame.
const nearRecord = 16 << 10

// ReadAt reads one record again. buf is used when it is large enough; Body
// aliases the buffer. Safe for concurrent use with different buffers. The
// record must not be done yet: its segment may go then (seglog.ErrRemoved).
// seglog.ErrDamaged when the bytes are broken.
func (w *WAL) ReadAt(p Position, buf []byte) (Record, error) {
	return readRecord(w.log, p, buf, &w.reader.names)
}

func readRecord(log *seglog.Log, p Position, buf []byte, names *interner) (Record, error) {
	damaged := fmt.Errorf("record at %d+%d+%d: %w", p.Segment, p.Frame, p.Record, seglog.ErrDamaged)
	if p.Size < recordHead || p.Record < frameHead {
		return Record{}, damaged
	}
	lead := int(p.Record)
	if lead > nearRecord {
		lead = frameHead
	}
	need := lead + int(p.Size)
	if cap(buf) < need {
		buf = make([]byte, need)
	}
	buf = buf[:need]
	var err error
	if lead == int(p.Record) {
		err = readFull(log, buf, p.framePos())
	} else if err = readFull(log, buf[:lead], p.framePos()); err == nil {
		err = readFull(log, buf[lead:], seglog.Pos{Segment: p.Segment, Offset: int64(p.Frame) + int64(p.Record)})
	}
	if errors.Is(err, io.EOF) {
		return Record{}, damaged
	}
	if err != nil {
		return Record{}, err
	}
	b := buf[lead:]
	if binary.LittleEndian.Uint32(b) != p.Size || binary.LittleEndian.Uint32(b[4:]) != recordCRC(buf, b) {
		return Record{}, damaged
	}
	rec := Record{}
	first := ID{topic.ID64(binary.LittleEndian.Uint64(buf[24:])), binary.LittleEndian.Uint64(buf[32:])}
	if err := decodeRecord(&rec, first, b, names); err != nil {
		return Record{}, damaged
	}
	rec.Position = p
	return rec, nil
}

func readFull(log *seglog.Log, b []byte, pos seglog.Pos) error {
	n, err := log.ReadAt(b, pos)
	if n == len(b) {
		return nil
	}
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return err
}
