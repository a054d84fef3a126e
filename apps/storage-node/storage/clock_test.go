package storage_test

import (
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/testkit"
)

// The wall clock is stepped: a delay is measured on the clock that stamped, which
// goes on from the last stamp and never back.
func TestStepsOfTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 365 * 24 * time.Hour} {
		testkit.Bubble(t, func(t *testing.T) {
			f := newFamily(t, 1, 1)
			f.create("later", 1)
			f.attach("later", 10_000)
			f.produce(3)
			pass(2 * time.Second)
			f.shutDown()
			f.clock.Store(int64(step)) // wall and monotonic of the next process: one step between two lives
			f.process = f.start()
			f.produce(3)
			pass(time.Second)
			got := f.contents("later")
			if step <= 0 && len(got) != 0 || step > 0 && len(got) != 3 {
				t.Errorf("step of %v: %d records after 3 s of 10", step, len(got))
			}
			pass(6 * time.Second)
			if got := f.contents("later"); step <= 0 && len(got) != 0 || step > 0 && len(got) != 3 {
				t.Errorf("step of %v: %d records after 9 s of 10", step, len(got))
			}
			pass(5 * time.Second)
			if left := f.owed("later"); len(left) > 0 {
				t.Errorf("step of %v: %v are late", step, left)
			}
			f.settle()
			f.shutDown()
		})
	}
}

const aYear = 365 * 24 * time.Hour

// wallSteps are what a wall clock that is set may jump by: to 1970, to 2262, and by
// what a wrong time zone or a first NTP answer makes of it. Fake time begins in 2000.
var wallSteps = []time.Duration{
	0, time.Second, -time.Second, time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour, aYear, -30 * aYear, 260 * aYear,
}

// stepClock sets the wall clock of the running process.
func (f *family) stepClock(ahead time.Duration) { f.clock.Store(int64(ahead)) }

// The wall clock is set forth and back while the process runs: commit times never
// decrease, and a delay is as long as it is by a clock that is never set.
func TestWallClockIsSetWhileItRuns(t *testing.T) {
	for seed := range uint64(10) {
		testkit.Bubble(t, func(t *testing.T) {
			const delay = 10 * time.Second
			f := newFamily(t, seed, 2)
			f.create("later", 2)
			f.attach("later", delay.Milliseconds())
			sent := map[string]time.Time{}
			l := f.children["later"]
			for range 60 {
				f.stepClock(wallSteps[f.rng.IntN(len(wallSteps))])
				had := len(l.sent[l.now])
				f.produce(1 + f.rng.IntN(3))
				for _, m := range l.sent[l.now][had:] {
					sent[m] = time.Now()
				}
				pass(time.Duration(f.rng.IntN(900)) * time.Millisecond)
				f.timely("later", sent, delay, time.Second)
			}
			pass(delay)
			f.settle()
			f.ordered(parentName)
			f.ordered("later")
			f.shutDown()
		})
	}
}

// timely checks, on a clock that is never set, that what is due has come and what is
// not has not.
func (f *family) timely(name string, sent map[string]time.Time, delay, slack time.Duration) {
	f.t.Helper()
	have := map[string]bool{}
	for _, a := range f.contents(name) {
		have[a.payload] = true
	}
	for m, at := range sent {
		switch passed := time.Since(at); {
		case have[m] && passed < delay:
			f.t.Fatalf("%s came after %v", m, passed)
		case !have[m] && passed > delay+slack:
			f.t.Fatalf("%s has not come after %v", m, passed)
		}
	}
}

// ordered checks that commit times never decrease within a partition.
func (f *family) ordered(name string) {
	f.t.Helper()
	for i := range f.topics[name].Partitions {
		stamps := []int64{}
		for _, a := range f.partition(name, int32(i)) {
			stamps = append(stamps, a.commitMS)
		}
		if !slices.IsSorted(stamps) {
			f.t.Fatalf("commit times of %s, partition %d: %v", name, i, stamps)
		}
	}
}

// A leader's clock is a year ahead. What it committed is due after its delay all the
// same, and what the next leader, whose clock is right, commits, too: the partition
// clock goes on from the last stamp, and time goes by on it as on any other. What went
// by between that stamp and the next leader it does not know: by so much a record of
// before is late.
func TestLeaderAYearAhead(t *testing.T) {
	for _, way := range []string{"stop", "crash", "election"} {
		testkit.Bubble(t, func(t *testing.T) {
			const delay = 10 * time.Second
			f := newFamily(t, 1, 1)
			f.create("later", 1)
			f.attach("later", delay.Milliseconds())
			sent := map[string]time.Time{}
			stamped, slack := time.Now(), time.Second
			produce := func() {
				l := f.children["later"]
				had := len(l.sent[l.now])
				f.produce(3)
				stamped = time.Now()
				for _, m := range l.sent[l.now][had:] {
					sent[m] = time.Now()
				}
			}
			next := func(ahead time.Duration) {
				f.stepClock(ahead)
				switch way {
				case "stop":
					f.shutDown()
					f.process = f.start()
				case "crash":
					f.crash()
				default:
					f.elect()
				}
				pass(500 * time.Millisecond)
				slack += time.Since(stamped)
			}
			next(aYear)
			for range 3 {
				produce()
				pass(time.Second)
			}
			next(0) // it is gone
			for range 3 {
				produce()
				pass(time.Second)
				f.timely("later", sent, delay, slack)
			}
			next(-aYear)
			produce()
			for range 15 {
				f.timely("later", sent, delay, slack)
				pass(time.Second)
			}
			f.timely("later", sent, delay, slack)
			f.ordered(parentName)
			f.ordered("later")
			f.shutDown()
		})
	}
}

// A lease lasts as long as it was given for, and a nack's delay too, wherever the wall
// clock is set meanwhile.
func TestLeasesOutliveStepsOfTheWallClock(t *testing.T) {
	for _, step := range wallSteps {
		testkit.Bubble(t, func(t *testing.T) {
			f := newFamily(t, 1, 1)
			f.produce(2)
			if got := f.take(parentName, 1); len(got) != 1 {
				t.Fatalf("%d records", len(got))
			}
			back := f.take(parentName, 1)
			if st := f.settle1(back[0], 40_000); st != nodeapi.SettleOK {
				t.Fatal(st)
			}
			f.stepClock(step)
			for s := range 50 {
				want := 0
				if s == 30 || s == 40 { // the lease ends after 30 s, and the delay after 40 s
					want = 1
				}
				got := f.take(parentName, 2)
				if len(got) != want {
					t.Fatalf("step of %v: %d records after %d s, want %d", step, len(got), s, want)
				}
				f.ack(parentName, got...)
				pass(time.Second)
			}
			f.shutDown()
		})
	}
}

// settle1 gives one record back, to come again after so many ms.
func (f *family) settle1(d nodeapi.Delivery, delayMS int64) nodeapi.SettleStatus {
	f.t.Helper()
	return f.process.settle(parentName, nodeapi.SettleNack, delayMS, d)[0]
}
