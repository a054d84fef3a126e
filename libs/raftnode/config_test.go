package raftnode

import (
	"testing"
	"time"
)

// TestSpecifiedTimes: the numbers of the specification's table, written out, where this
// package uses them.
func TestSpecifiedTimes(t *testing.T) {
	for what, c := range map[string]struct{ got, want time.Duration }{
		"how old the leader's word may be, by default":       {DefaultTiming().FreshContact, 5 * time.Second},
		"how old the leader's word may be, of nothing given": {Timing{}.withDefaults().FreshContact, 5 * time.Second},
		"the barrier of a new leader":                        {BarrierTimeout, 5 * time.Second},
		"how long a failed heartbeat counts":                 {HeartbeatFailureMemory, 12 * time.Second},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, specified %s", what, c.got, c.want)
		}
	}
}
