//go:build e2e

package scenarios

import "testing"

// figureRounds is how often a scenario asks for a promised time at the most.
const figureRounds = 3

// onceInTime runs rounds until one of them kept the promised times, and fails when
// none did. A busy machine is late by itself: one round in time shows that the programs
// are as fast as they say, and programs that are slower never have one. figures is
// what a round measured.
func onceInTime(t *testing.T, promise string, round func() (kept bool, figures string)) {
	t.Helper()
	var all []string
	for range figureRounds {
		kept, figures := round()
		all = append(all, figures)
		if kept {
			t.Logf("%s: %q", promise, all)
			return
		}
	}
	t.Errorf("%s: not once in %d rounds: %q", promise, figureRounds, all)
}
