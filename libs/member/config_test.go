package member

import (
	"testing"
	"time"
)

// TestDefaultTiming: the numbers of the specification's table, written out: a constant
// that stands there and is given to another field would be wrong as well.
func TestDefaultTiming(t *testing.T) {
	want := Timing{
		JoinEvery:      2 * time.Second, // "every 2s": join attempts and promotion requests
		LeaderlessFor:  15 * time.Second,
		HeartbeatEvery: 5 * time.Second,
		RegisterEvery:  2 * time.Second,
		AskBudget:      2 * time.Second, // "3 rounds, 1s apart, 2s per peer"
		ProbeRounds:    3,
		ProbeEvery:     time.Second,
		StopWait:       5 * time.Second,
		FreshContact:   5 * time.Second,
	}
	if got := DefaultTiming(); got != want {
		t.Errorf("by default %+v, specified %+v", got, want)
	}
	if got := (Timing{}).withDefaults(); got != want {
		t.Errorf("of nothing given %+v, specified %+v", got, want)
	}
	given := want
	given.JoinEvery, given.ProbeRounds = time.Millisecond, 7
	if got := given.withDefaults(); got != given {
		t.Errorf("given %+v, used %+v", given, got)
	}
}
