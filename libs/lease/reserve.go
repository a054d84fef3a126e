package lease

// Left says why a Reserve stopped, or what the next one would find.
type Left uint8

// What a partition has left to give.
const (
	More   Left = iota // the asked number was served; there may be more
	Empty              // nothing deliverable below the high watermark
	Capped             // at a cap: nothing until something settles, expires or is released
)

// Reserve leases up to n of the lowest deliverable offsets below hwm until
// now + visibilityMS, appends them to out and says what is left. draw fills a
// nonce with fresh unguessable bytes. Records whose lease or delay has ended by
// now count as deliverable. It allocates only what new leases need to be kept.
func (t *Table) Reserve(now, hwm int64, n int, visibilityMS int64, lim Limits, draw func(*Nonce), out []Lease) ([]Lease, Left) {
	t.Expire(now)
	due := now + min(max(visibilityMS, 0), MaxVisibilityMS)
	for range n {
		off, left := t.candidate(hwm, lim)
		if left != More {
			return out, left
		}
		slot := t.take(off)
		e := &t.entries[slot]
		e.state, e.due = leased, due
		e.count++
		draw(&e.nonce)
		t.leases++
		t.due.push(t.entries, slot, due)
		if e.count > 1 {
			t.version++
		}
		out = append(out, Lease{Offset: off, Nonce: e.nonce, Count: int(e.count)})
	}
	return out, More
}

// Left tells what a Reserve at this moment would find: More when it would give
// at least one record. It does not look at the time: call Expire first.
func (t *Table) Left(hwm int64, lim Limits) Left {
	_, left := t.candidate(hwm, lim)
	return left
}

// candidate is the lowest deliverable offset, or why there is none.
func (t *Table) candidate(hwm int64, lim Limits) (int64, Left) {
	off := t.untouched()
	if len(t.ready.items) > 0 {
		off = min(off, t.ready.items[0].key)
	}
	switch {
	case off >= hwm:
		return 0, Empty
	case t.leases >= lim.MaxInFlight:
		return 0, Capped
	case off != t.frontier && t.ahead() >= int64(lim.MaxAckedAhead):
		return 0, Capped
	}
	return off, More
}

// untouched is the lowest offset at or above next that was not handed out.
func (t *Table) untouched() int64 {
	off := t.settled.nextGap(t.next)
	for off < t.restored {
		if _, ok := t.index[off]; !ok {
			break
		}
		off = t.settled.nextGap(off + 1)
	}
	t.next = off
	return off
}

// ahead is what MaxAckedAhead bounds. Delayed records count as settled ones do:
// both are passed over while the frontier waits, and both cost memory.
func (t *Table) ahead() int64 { return t.settled.total - t.skipped.total + int64(t.delays) }

// take returns the slot of a deliverable offset, out of every heap.
func (t *Table) take(off int64) uint32 {
	if slot, ok := t.index[off]; ok {
		t.unlink(slot)
		return slot
	}
	t.next = off + 1
	return t.insert(off)
}

// insert makes an entry for off that is in no heap yet.
func (t *Table) insert(off int64) uint32 {
	if t.index == nil {
		t.index = make(map[int64]uint32)
	}
	var slot uint32
	if last := len(t.unused) - 1; last >= 0 {
		slot, t.unused = t.unused[last], t.unused[:last]
		t.entries[slot] = entry{offset: off}
	} else {
		slot = uint32(len(t.entries))
		t.entries = append(t.entries, entry{offset: off})
	}
	t.index[off] = slot
	return slot
}
