package testkit

import (
	"testing"
	"time"
)

// PollInterval is how often Poll looks: often enough that a test does not wait
// noticeably, seldom enough that it does not load the machine that it watches.
const PollInterval = 5 * time.Millisecond

// Patience bounds a wait for something that must happen, on a machine that may be doing
// much else: only what hangs reaches it. How soon it happens is not what it tests.
const Patience = time.Minute

// Poll waits until ok returns true and fails the test when it has not within
// the limit. what completes the sentence "gave up waiting until ...".
func Poll(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(PollInterval)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			if ok() {
				return
			}
			t.Fatalf("gave up after %s waiting until %s", limit, what)
		}
	}
}
