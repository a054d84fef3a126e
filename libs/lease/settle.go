package lease

// Status is the outcome of an operation on a lease.
type Status uint8

// The outcomes.
const (
	OK     Status = iota // done
	Repeat               // was done before by the same operation: answered as OK, changes nothing
	Lost                 // no live lease with that nonce
)

// op is an operation that ends a lease, as it is remembered.
type op uint8

const (
	opAck op = iota + 1
	opNack
	opRelease
)

// live returns the slot of the live lease, or the status to answer.
func (t *Table) live(now, offset int64, n Nonce, o op) (uint32, Status) {
	slot, ok := t.index[offset]
	if ok {
		if e := &t.entries[slot]; e.state == leased && e.nonce == n && e.due > now {
			return slot, OK
		}
	}
	if o != 0 && t.memory.did(now, offset, n, o) {
		return 0, Repeat
	}
	return 0, Lost
}

// Ack settles a leased record for good. It is never refused for a cap.
func (t *Table) Ack(now, offset int64, n Nonce) Status {
	slot, st := t.live(now, offset, n, opAck)
	if st != OK {
		return st
	}
	t.memory.add(now, offset, n, opAck)
	t.remove(slot)
	t.settle(offset, offset+1)
	return OK
}

// Extend makes a lease end visibilityMS from now, earlier or later than before.
func (t *Table) Extend(now, offset int64, n Nonce, visibilityMS int64) Status {
	slot, st := t.live(now, offset, n, 0)
	if st != OK {
		return st
	}
	e := &t.entries[slot]
	e.due = now + min(max(visibilityMS, 0), MaxVisibilityMS)
	t.due.rekey(t.entries, int(e.pos), e.due)
	return OK
}

// Nack gives a record back, deliverable again delayMS from now.
func (t *Table) Nack(now, offset int64, n Nonce, delayMS int64) Status {
	slot, st := t.live(now, offset, n, opNack)
	if st != OK {
		return st
	}
	t.memory.add(now, offset, n, opNack)
	if delayMS <= 0 {
		t.toReady(slot)
		return OK
	}
	t.unlink(slot)
	e := &t.entries[slot]
	e.state, e.nonce, e.due = delayed, Nonce{}, now+min(delayMS, MaxVisibilityMS)
	t.delays++
	t.due.push(t.entries, slot, e.due)
	t.version++
	return OK
}

// Release gives a record back at once as if it had not been delivered: its
// answer was never written.
func (t *Table) Release(now, offset int64, n Nonce) Status {
	slot, st := t.live(now, offset, n, opRelease)
	if st != OK {
		return st
	}
	t.memory.add(now, offset, n, opRelease)
	t.entries[slot].count--
	t.toReady(slot)
	return OK
}

// Undo takes a reservation back that never left the owner: like Release, but
// nothing is remembered, because nobody holds the nonce.
func (t *Table) Undo(now, offset int64, n Nonce) {
	if slot, st := t.live(now, offset, n, 0); st == OK {
		t.entries[slot].count--
		t.toReady(slot)
	}
}
