package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace: one removal at a time, the first at once, each other after a rest that
// grows with what the one before took and has a bound; who gives up holds up nobody.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, p, begin := context.Background(), newPacer(), time.Now()
		remove := func(takes time.Duration) (entered time.Duration) {
			if err := p.enter(ctx); err != nil {
				t.Error(err)
			}
			defer p.leave()
			entered = time.Since(begin)
			time.Sleep(takes)
			return entered
		}
		if at := remove(time.Millisecond); at != 0 {
			t.Errorf("the first began after %s", at)
		}
		if at := remove(time.Second); at != (1+restFor)*time.Millisecond {
			t.Errorf("the second began after %s", at)
		}
		third := time.Since(begin) + maxRest
		short, cancel := context.WithTimeout(ctx, maxRest/2)
		if err := p.enter(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it did not give up: %v", err)
		}
		cancel()
		if at := remove(0); at != third {
			t.Errorf("the third began after %s, want %s", at, third)
		}
		time.Sleep(time.Hour)
		at := time.Since(begin)
		if got := remove(0); got != at {
			t.Errorf("after an hour it waited for %s", got-at)
		}
	})
}
