package route

import (
	"sync/atomic"
	"testing"
	"time"
)

// TestSuspectedNodesAreAskedLast: a consumer does not come to a node that is
// probably dead while others have something, but for one round in a few; and what
// only a suspected node has is found all the same.
func TestSuspectedNodesAreAskedLast(t *testing.T) {
	run(t, 3, func(f *fixture) {
		f.r.deps.Suspected = func(id string) bool { return id == "n0" }
		for i, n := range f.nodes {
			n.put(int32(i), 100)
		}
		seen := map[int32]int{}
		for range 60 {
			a := f.consume(time.Second)
			f.expect(a, 1)
			seen[a.res.Deliveries[0].Partition]++
		}
		if seen[0] == 0 || seen[0] > 12 {
			t.Fatalf("of 60 deliveries %d are of the suspected node; want a few", seen[0])
		}
	})
	run(t, 3, func(f *fixture) {
		var all atomic.Bool
		f.r.deps.Suspected = func(id string) bool { return all.Load() || id == "n0" }
		f.nodes[0].put(0, 1)
		f.expect(f.consume(0), 1)
		all.Store(true)
		f.nodes[0].put(0, 1)
		f.expect(f.consume(0), 1)
	})
}
