package sim

import "testing"

func TestSmoke(t *testing.T) {
	var sum Stats
	for seed := uint64(1); seed <= 1000; seed++ {
		st, f := Run(seed, Options{Steps: 2000})
		sum.Add(st)
		if f != nil {
			t.Fatal(Shrink(f))
		}
	}
	t.Logf("%+v", sum)
}
