package lease

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
)

// A snapshot is what survives a restart: frontier, settled spans, the delays of
// nacks, delivery counts of 2 and more, the count of dropped records. Leases do
// not: a restart ends them.
//
//	offset size  field (big-endian; uvarint as in encoding/binary)
//	0      4     magic "NLS1" (the last character is the format version)
//	4      8     frontier
//	12     8     records that retention dropped unsettled
//	20     ..    spans: a run of (gap, length, skipped), gap >= 1 from the frontier or the
//	             end of the span before, length >= 1; all uvarint; skipped is the number of
//	             its offsets that count as skipped, which are its first ones; a gap of 0 ends the run
//	..     ..    entries: a run of (step, count, due), step >= 1 from the entry before
//	             (the first from frontier - 1), ascending; count >= 0; due is Unix ms at which
//	             a delay ends, 0: none; all uvarint; a step of 0 ends the run
//	..     4     CRC-32C (Castagnoli) of everything before
//
// What does not fit into the size that the owner allows is left out from the
// highest offset down: those records are delivered again, never lost.
const (
	snapshotMagic = "NLS1"
	snapshotFixed = 4 + 8 + 8
	snapshotTail  = 1 + 1 + 4 // both ends of runs and the CRC
	snapshotItem  = 3 * 10    // the largest span or entry
)

// MinSnapshot is the size in bytes of a snapshot with neither span nor entry.
const MinSnapshot = snapshotFixed + snapshotTail

// ErrSnapshot is below every error of Restore.
var ErrSnapshot = errors.New("damaged consumer snapshot")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendSnapshot appends the snapshot to dst, at most limit bytes of it (at
// least MinSnapshot). Delays and counts get up to half of the
// space (they are few); spans get the rest, lowest first.
func (t *Table) AppendSnapshot(dst []byte, limit int) []byte {
	start := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.frontier))
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.dropped))
	entries := t.appendEntries(nil, (limit-snapshotFixed-snapshotTail)/2)
	room := start + limit - snapshotTail - len(entries) - snapshotItem
	end := t.frontier
	t.settled.each(func(sp span) bool {
		if len(dst) > room {
			return false
		}
		dst = binary.AppendUvarint(dst, uint64(sp.lo-end))
		dst = binary.AppendUvarint(dst, uint64(sp.hi-sp.lo))
		dst = binary.AppendUvarint(dst, uint64(t.skipped.within(sp)))
		end = sp.hi
		return true
	})
	dst = append(dst, 0)
	dst = append(append(dst, entries...), 0)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

// within counts the offsets of sp that are in the set.
func (s *spans) within(sp span) (n int64) {
	if s.n == 0 {
		return 0
	}
	s.each(func(o span) bool {
		n += max(0, min(o.hi, sp.hi)-max(o.lo, sp.lo))
		return o.lo < sp.hi
	})
	return n
}

func (t *Table) appendEntries(dst []byte, limit int) []byte {
	var keep []uint32
	for _, slot := range t.index {
		if e := &t.entries[slot]; e.state == delayed || e.count > 1 {
			keep = append(keep, slot)
		}
	}
	slices.SortFunc(keep, func(a, b uint32) int { return int(t.entries[a].offset - t.entries[b].offset) })
	last := t.frontier - 1
	for _, slot := range keep {
		if len(dst) > limit-snapshotItem {
			break
		}
		e := &t.entries[slot]
		due := int64(0)
		if e.state == delayed {
			due = e.due
		}
		dst = binary.AppendUvarint(dst, uint64(e.offset-last))
		dst = binary.AppendUvarint(dst, uint64(e.count))
		dst = binary.AppendUvarint(dst, uint64(due))
		last = e.offset
	}
	return dst
}

// Restore reads a snapshot into a table for a log that now starts at logStart
// and whose high watermark is hwm. What lies outside of them is cut: below, as
// Advance does; above, because such offsets will be written anew. Delays are cut
// to MaxVisibilityMS from now, so that a clock that was wrong holds nothing for
// ever. Errors wrap ErrSnapshot; nothing of a damaged snapshot is used.
func Restore(data []byte, now, logStart, hwm int64) (*Table, error) {
	if len(data) < MinSnapshot || string(data[:4]) != snapshotMagic {
		return nil, fmt.Errorf("%w: no header in %d bytes", ErrSnapshot, len(data))
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, fmt.Errorf("%w: checksum differs", ErrSnapshot)
	}
	frontier, dropped := int64(binary.BigEndian.Uint64(body[4:])), int64(binary.BigEndian.Uint64(body[12:]))
	if frontier < 0 || dropped < 0 {
		return nil, fmt.Errorf("%w: negative frontier or count", ErrSnapshot)
	}
	t := New(min(frontier, hwm))
	t.dropped = dropped
	r := reader{buf: body[snapshotFixed:]}
	t.restoreSpans(&r, frontier, hwm)
	t.restoreEntries(&r, frontier, hwm, now)
	if r.bad || len(r.buf) != 0 {
		return nil, fmt.Errorf("%w: malformed runs", ErrSnapshot)
	}
	t.setFrontier(t.frontier)
	t.Advance(now, logStart)
	return t, nil
}

func (t *Table) restoreSpans(r *reader, end, hwm int64) {
	for {
		gap := r.next(0, maxOffset-end)
		if gap == 0 || r.bad {
			return
		}
		lo := end + gap
		n := r.next(1, maxOffset-lo)
		skip := r.next(0, n)
		end = lo + n
		if !r.bad && lo < hwm {
			t.settled.add(lo, min(end, hwm))
			t.skipped.add(lo, min(lo+skip, hwm))
		}
	}
}

func (t *Table) restoreEntries(r *reader, frontier, hwm, now int64) {
	off := frontier - 1
	for {
		step := r.next(0, maxOffset-off)
		if step == 0 || r.bad {
			return
		}
		off += step
		count, due := r.next(0, 1<<31), r.next(0, maxOffset)
		if r.bad || off >= hwm || t.settled.contains(off) {
			continue
		}
		slot := t.insert(off)
		e := &t.entries[slot]
		e.count = uint32(count)
		t.restored = off + 1
		if due <= now {
			e.state = returned
			t.ready.push(t.entries, slot, off)
			continue
		}
		e.state, e.due = delayed, min(due, now+MaxVisibilityMS)
		t.delays++
		t.due.push(t.entries, slot, e.due)
	}
}

// maxOffset keeps sums of offsets from overflowing.
const maxOffset = 1 << 62

type reader struct {
	buf []byte
	bad bool
}

// next reads a uvarint of low..high, or sets bad and returns 0.
func (r *reader) next(low, high int64) int64 {
	v, n := binary.Uvarint(r.buf)
	if r.bad || n <= 0 || high < low || v > uint64(high) || v < uint64(low) {
		r.bad = true
		return 0
	}
	r.buf = r.buf[n:]
	return int64(v)
}
