package lease

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

// settledOf lists what a table has settled below end.
func settledOf(t *Table, end int64) map[int64]bool {
	out := map[int64]bool{}
	for off := int64(0); off < end; off++ {
		if off < t.frontier || t.settled.contains(off) {
			out[off] = true
		}
	}
	return out
}

// A merge knows exactly what one of the two knew, and breaks no invariant.
func TestMergeIsTheUnion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const end, now = 40, 1000
		draw := func(label string) *Table {
			tab := New(int64(rapid.IntRange(0, 10).Draw(t, label+" start")))
			for range rapid.IntRange(0, 12).Draw(t, label+" steps") {
				lo := int64(rapid.IntRange(0, end-1).Draw(t, label+" lo"))
				hi := min(lo+int64(rapid.IntRange(1, 5).Draw(t, label+" n")), end)
				if rapid.Bool().Draw(t, label+" skip") {
					tab.Skip(lo, hi)
				} else {
					tab.cover(lo, hi)
				}
			}
			if rapid.Bool().Draw(t, label+" delayed") { // an entry that the other one may have settled
				leases, _ := tab.Reserve(now, end, 3, 1000, Limits{MaxInFlight: 9, MaxAckedAhead: 99}, func(n *Nonce) { n[0]++ }, nil)
				for _, l := range leases {
					tab.Nack(now, l.Offset, l.Nonce, 5000)
				}
			}
			return tab
		}
		one, two := draw("one"), draw("two")
		hwm := int64(rapid.IntRange(10, end).Draw(t, "hwm"))
		merged, err := Restore(one.AppendSnapshot(nil, 1<<20), now, 0, hwm)
		if err != nil {
			t.Fatal(err)
		}
		if err := merged.Merge(two.AppendSnapshot(nil, 1<<20), now, 0, hwm); err != nil {
			t.Fatal(err)
		}
		if err := merged.Check(); err != nil {
			t.Fatal(err)
		}
		a, b, got := settledOf(one, hwm), settledOf(two, hwm), settledOf(merged, hwm)
		for off := int64(0); off < hwm; off++ {
			if got[off] != (a[off] || b[off]) {
				t.Fatalf("offset %d settled %t, of one %t, of two %t", off, got[off], a[off], b[off])
			}
		}
		if merged.frontier > hwm {
			t.Fatalf("frontier %d above the high watermark %d", merged.frontier, hwm)
		}
	})
}

func TestMergeRefusesDamage(t *testing.T) {
	tab := New(3)
	if err := tab.Merge([]byte("x"), 0, 0, 10); !errors.Is(err, ErrSnapshot) || tab.Frontier() != 3 {
		t.Fatalf("%v, frontier %d", err, tab.Frontier())
	}
}
