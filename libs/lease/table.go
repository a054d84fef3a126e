package lease

import "fmt"

// MaxVisibilityMS bounds every visibility and every delay (12 h, api.md): what
// is larger or negative is cut to the range, so that no deadline overflows.
const MaxVisibilityMS = 43_200_000

// keepSlots is the slab size that an emptied table keeps.
const keepSlots = 256

// Nonce is the unguessable part of a lease.
type Nonce [12]byte

// Limits are the topic's caps, given with each call because they may change.
type Limits struct {
	MaxInFlight   int // leased records at which nothing more is handed out
	MaxAckedAhead int // settled or delayed records above the frontier at which only the frontier is handed out
}

// Lease is one reserved record.
type Lease struct {
	Offset int64
	Nonce  Nonce
	Count  int // deliveries of this record, this one included
}

// state of an entry. Untouched and settled offsets have no entry.
type state uint8

const (
	leased   state = iota // in the due heap, key = expiry
	delayed               // in the due heap, key = when it is deliverable again
	returned              // in the ready heap, key = offset
)

type entry struct {
	offset int64
	due    int64 // Unix ms; leased and delayed
	nonce  Nonce // leased
	count  uint32
	pos    int32 // in the heap of its state
	state  state
}

// Table is the consumer state of one partition. Not safe for concurrent use.
// Create it with New or Restore.
type Table struct {
	frontier int64 // every offset below is settled
	next     int64 // no offset at or above was handed out since New or Restore; frontier <= next
	restored int64 // entries that Restore made are below it; they may be above next
	settled  spans // settled offsets above the frontier
	skipped  spans // those of settled that were never deliverable: not counted by the cap

	entries []entry          // slab
	unused  []uint32         // free slots of the slab
	index   map[int64]uint32 // offset -> slot of every entry
	due     heap             // leased and delayed, by deadline
	ready   heap             // returned, by offset
	leases  int              // entries in state leased
	delays  int              // entries in state delayed

	memory  memory
	version uint64 // grows with every change that a snapshot would show
	dropped int64  // unsettled records that retention removed
}

// New returns the state of a partition of which nothing was consumed: the
// frontier at start, usually the log start.
func New(start int64) *Table {
	return &Table{frontier: start, next: start}
}

// Frontier is the offset below which every record is settled.
func (t *Table) Frontier() int64 { return t.frontier }

// SettledAhead counts settled offsets above the frontier, skipped ones included.
func (t *Table) SettledAhead() int64 { return t.settled.total }

// InFlight counts live leases, expired ones that Expire has not seen included.
func (t *Table) InFlight() int { return t.leases }

// Delayed counts records that wait out the delay of a nack.
func (t *Table) Delayed() int { return t.delays }

// Dropped counts unsettled records that Advance passed, since New or Restore
// and what the snapshot had.
func (t *Table) Dropped() int64 { return t.dropped }

// Version changes whenever a snapshot would.
func (t *Table) Version() uint64 { return t.version }

// OldestUnsettled returns the lowest offset below hwm that is not settled.
func (t *Table) OldestUnsettled(hwm int64) (int64, bool) { return t.frontier, t.frontier < hwm }

// NextDeadline returns the earliest expiry or end of a delay.
func (t *Table) NextDeadline() (int64, bool) {
	if len(t.due.items) == 0 {
		return 0, false
	}
	return t.due.items[0].key, true
}

// Expire ends every lease and delay whose time has come and returns how many
// records became deliverable by it.
func (t *Table) Expire(now int64) int {
	n := 0
	for len(t.due.items) > 0 && t.due.items[0].key <= now {
		t.toReady(t.due.items[0].slot)
		n++
	}
	if n == 0 {
		t.memory.forget(now)
	}
	return n
}

// Advance tells that the log now starts at logStart, at most the high
// watermark: what lies below is over. It returns how many unsettled records
// were dropped by it. The holder of a lease of a dropped record may still ack:
// the record is as gone as its ack would make it.
func (t *Table) Advance(now, logStart int64) int64 {
	if logStart <= t.frontier {
		return 0
	}
	for off, slot := range t.index {
		if off >= logStart {
			continue
		}
		if e := &t.entries[slot]; e.state == leased && e.due > now {
			t.memory.add(now, off, e.nonce, opAck)
		}
		t.remove(slot)
	}
	lost := logStart - t.frontier - t.settled.dropBelow(logStart)
	t.dropped += lost
	t.version++
	t.setFrontier(logStart)
	return lost
}

// Skip settles [lo, hi) without delivery: control batches, gaps and unreadable
// records. hi is at most the high watermark. Leases in the range end.
func (t *Table) Skip(lo, hi int64) {
	lo = max(lo, t.frontier)
	if lo >= hi {
		return
	}
	if hi-lo <= int64(len(t.index)) {
		for off := lo; off < hi; off++ {
			if slot, ok := t.index[off]; ok {
				t.remove(slot)
			}
		}
	} else {
		for off, slot := range t.index {
			if off >= lo && off < hi {
				t.remove(slot)
			}
		}
	}
	t.skipped.add(lo, hi)
	t.settle(lo, hi)
}

// settle marks [lo, hi) settled and moves the frontier when it can.
func (t *Table) settle(lo, hi int64) {
	t.version++
	if lo > t.frontier {
		t.settled.add(lo, hi)
		return
	}
	t.setFrontier(hi)
}

// setFrontier moves the frontier to at least off and over what is settled there.
func (t *Table) setFrontier(off int64) {
	off = t.settled.nextGap(off)
	t.settled.dropBelow(off)
	t.skipped.dropBelow(off)
	t.frontier = off
	t.next = max(t.next, off)
}

// remove forgets the entry in slot, whatever its state.
func (t *Table) remove(slot uint32) {
	t.unlink(slot)
	delete(t.index, t.entries[slot].offset)
	t.unused = append(t.unused, slot)
	if len(t.index) == 0 && cap(t.entries) > keepSlots {
		// A burst is over: an idle partition keeps no slab.
		t.entries, t.unused, t.index, t.due, t.ready = nil, nil, nil, heap{}, heap{}
	}
}

// unlink takes an entry out of its heap and out of the counts of its state.
func (t *Table) unlink(slot uint32) {
	e := &t.entries[slot]
	switch e.state {
	case leased:
		t.leases--
		t.due.remove(t.entries, int(e.pos))
	case delayed:
		t.delays--
		t.due.remove(t.entries, int(e.pos))
	case returned:
		t.ready.remove(t.entries, int(e.pos))
	}
}

// toReady makes an entry deliverable.
func (t *Table) toReady(slot uint32) {
	t.unlink(slot)
	e := &t.entries[slot]
	if e.state == delayed || e.count > 1 {
		t.version++
	}
	e.state, e.due, e.nonce = returned, 0, Nonce{}
	t.ready.push(t.entries, slot, e.offset)
}

// Check returns an error when an invariant of the package comment is broken.
// It looks at everything: for tests, and for an owner that suspects damage.
func (t *Table) Check() error {
	if t.next < t.frontier || t.settled.contains(t.frontier) {
		return fmt.Errorf("frontier %d is not the longest settled prefix (next %d)", t.frontier, t.next)
	}
	counts := [3]int{}
	for off, slot := range t.index {
		e := &t.entries[slot]
		h := &t.due
		if e.state == returned {
			h = &t.ready
		}
		counts[e.state]++
		switch {
		case e.offset != off || off < t.frontier || off >= max(t.next, t.restored) || t.settled.contains(off):
			return fmt.Errorf("entry of offset %d does not belong (frontier %d, next %d)", off, t.frontier, t.next)
		case int(e.pos) >= len(h.items) || h.items[e.pos].slot != slot:
			return fmt.Errorf("entry of offset %d is not where it says in its heap", off)
		}
	}
	if counts[leased] != t.leases || counts[delayed] != t.delays ||
		len(t.due.items) != t.leases+t.delays || len(t.ready.items) != counts[returned] {
		return fmt.Errorf("counts differ: %v, leases %d, delays %d", counts, t.leases, t.delays)
	}
	return nil
}
