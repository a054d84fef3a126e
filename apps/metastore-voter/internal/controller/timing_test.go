package controller

import (
	"testing"
	"time"
)

// TestDefaultTiming: the numbers of the specification's table, written out, and those of
// the design.
func TestDefaultTiming(t *testing.T) {
	want := Timing{
		DeadAfter:    30 * time.Second,
		JudgeEvery:   time.Second,
		StampEvery:   2 * time.Second,
		PromoteAfter: 12 * time.Second,
		Propose:      10 * time.Second,
		Transfer:     3 * time.Second,
	}
	if got := DefaultTiming(); got != want {
		t.Errorf("by default %+v, specified %+v", got, want)
	}
	if got := (Timing{}).withDefaults(); got != want {
		t.Errorf("of nothing given %+v, specified %+v", got, want)
	}
	if refusedAgainAfter != time.Minute {
		t.Errorf("a joiner's refusals are logged every %s", refusedAgainAfter)
	}
}
