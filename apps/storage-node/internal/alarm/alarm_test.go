package alarm_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
)

// Random settings of many alarms against a list: each rings when it should, at the
// earliest time it was set to, and not at all after its end.
func TestAlarmsRingInTime(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			rng, began := rand.New(rand.NewPCG(seed, 0)), time.Now()
			now := func() int64 { return time.Since(began).Milliseconds() }
			c := alarm.New(now)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx) })
			var mu sync.Mutex // guards want
			want := map[int]int64{}
			all := make([]alarm.Alarm, 20)
			ended := map[int]bool{}
			for i := range all {
				all[i] = alarm.Of(func() {
					mu.Lock()
					defer mu.Unlock()
					if at, ok := want[i]; !ok || at != now() {
						t.Errorf("alarm %d rang at %d, was set to %d (%v)", i, now(), at, ok)
					}
					delete(want, i)
				})
			}
			for range 300 {
				i := rng.IntN(len(all))
				mu.Lock()
				switch k := rng.IntN(10); {
				case k < 6:
					at := now() + 1 + rng.Int64N(5_000_000) // beyond the longest sleep, too
					if rng.IntN(2) == 0 {
						at = now() + 1 + rng.Int64N(100)
					}
					if was, set := want[i]; !ended[i] && (!set || at < was) {
						want[i] = at
					}
					c.At(&all[i], at)
				case k == 6 && rng.IntN(5) == 0:
					c.End(&all[i])
					ended[i] = true
					delete(want, i)
				}
				mu.Unlock()
				<-time.After(time.Duration(rng.IntN(200)) * time.Millisecond)
			}
			<-time.After(2 * time.Hour)
			mu.Lock()
			if len(want) > 0 {
				t.Errorf("these never rang: %v", want)
			}
			mu.Unlock()
			cancel()
			running.Wait()
		})
	}
}
