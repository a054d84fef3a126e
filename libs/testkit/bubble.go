package testkit

import (
	"testing"
	"testing/synctest"
	"time"
)

// Bubble is synctest.Test for tests of several nodes. Under the race detector the first
// timer of a bubble that fires by being read sets up what all its timers share, without a
// lock: two goroutines that read one at the same moment, as nodes that start together do,
// crash the detector (SIGSEGV in SlotLock; Go 1.26). Here one timer fires before.
func Bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		<-time.NewTimer(0).C
		f(t)
	})
}
