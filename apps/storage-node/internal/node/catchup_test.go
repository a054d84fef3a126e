package node

import "testing"

// Over any time no more than the rate and one burst goes to copies that catch up,
// with what a batch went past it made up for.
func TestCatchUpIsBounded(t *testing.T) {
	var b bucket
	sent := 0
	const ms = 3000
	for now := int64(1); now <= ms; now++ {
		for range 3 {
			if got := b.take(1<<20, now); got > 0 {
				got += 100 << 10 // the batch that always fits
				b.spent(got)
				sent += got
			}
		}
	}
	most := catchUpRate/1000*ms + catchUpBurst + (1 << 20) + (100 << 10)
	if sent > most || sent < most*8/10 {
		t.Fatalf("%d bytes in %d ms, at most %d", sent, ms, most)
	}
	if got := b.take(1<<20, ms); got > 1<<20 {
		t.Fatalf("more than asked for: %d", got)
	}
}
