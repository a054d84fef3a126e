package lease

// Merge settles in t what another snapshot of the same partition has settled:
// the union of what several copies know, which is what a new leader starts from.
// Each of them may have learned of settlements that the others have not; none
// has one that did not happen. Delays and counts are those of t: they may be
// early or too low, never lost records. It is for a table on which nothing has
// been reserved yet. Errors wrap ErrSnapshot; t is then as it was.
func (t *Table) Merge(data []byte, now, logStart, hwm int64) error {
	other, err := Restore(data, now, logStart, hwm)
	if err != nil {
		return err
	}
	for off, slot := range t.index { // once, not once per span: both may be a million
		if off < other.frontier || other.settled.contains(off) {
			t.remove(slot)
		}
	}
	t.cover(t.frontier, other.frontier)
	other.settled.each(func(sp span) bool {
		t.cover(sp.lo, sp.hi)
		return true
	})
	other.skipped.each(func(sp span) bool {
		if sp.lo >= t.frontier {
			t.skipped.add(sp.lo, sp.hi)
		}
		return true
	})
	t.dropped = max(t.dropped, other.dropped)
	return nil
}

// cover settles [lo, hi), in which there are no entries.
func (t *Table) cover(lo, hi int64) {
	lo = max(lo, t.frontier)
	if lo >= hi {
		return
	}
	t.settle(lo, hi)
}
