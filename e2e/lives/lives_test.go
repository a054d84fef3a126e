package lives

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/testkit/race"
)

func TestMain(m *testing.M) { leak.Main(m) }

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

const (
	stepsOfRun = 80
	leastSeeds = 15
	// usualTime is what a run of all tests gives it.
	usualTime = 10 * time.Second
	// raceTime is what it gets under the race detector, which is there for the nodes'
	// goroutines: those of the first seeds do what all others do.
	raceTime = 4 * time.Second
	// shrinkTime is for finding the steps that matter, after a failure.
	shrinkTime = 30 * time.Second
)

// TestLives runs seeds for some seconds; the first ones are always the same.
func TestLives(t *testing.T) {
	limit := usualTime
	if race.Enabled {
		limit = raceTime
	}
	if v := os.Getenv("NARAD_LIVES_TIME"); v != "" {
		var err error
		if limit, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	var sum totals
	seeds := 0
	for end := time.Now().Add(limit); time.Now().Before(end) || seeds < leastSeeds; seeds++ {
		cfg := newConfig(uint64(seeds)+1, noBug, stepsOfRun)
		got, violations := run(t, cfg)
		sum.add(got)
		if len(violations) > 0 {
			explain(t, cfg, violations[0])
			return
		}
	}
	t.Logf("%d seeds: %+v", seeds, sum)
	if sum.kills == 0 || sum.restores == 0 || sum.deliveries == 0 || sum.acks == 0 || sum.audits == 0 || sum.clean == 0 || sum.forgotten == 0 ||
		sum.parked == 0 || sum.discarded == 0 || sum.passed == 0 || sum.volumes == 0 {
		t.Fatalf("the runs do not reach everything: %+v", sum)
	}
}

// explain fails with the fewest steps that break an invariant.
func explain(t *testing.T, cfg config, first string) {
	t.Helper()
	t.Errorf("seed %d: %s", cfg.seed, first)
	small := shrink(cfg, shrinkTime, func(c config) bool {
		_, v := run(t, c)
		return len(v) > 0
	})
	_, violations := run(t, small)
	t.Errorf("%s\n%v", small.trace(), violations)
}

// TestPlantedBugsAreCaught shows that a mistake does not stay unnoticed.
func TestPlantedBugsAreCaught(t *testing.T) {
	if race.Enabled {
		t.Skip("what the checks see does not depend on the race detector")
	}
	const most = 60 // seeds until a bug must have been seen
	for b := noBug + 1; b < bugs; b++ {
		t.Run(bugNames[b], func(t *testing.T) {
			for seed := uint64(1); seed <= most; seed++ {
				if _, violations := run(t, newConfig(seed, b, stepsOfRun)); len(violations) > 0 {
					t.Logf("seed %d: %s", seed, violations[0])
					return
				}
			}
			t.Fatalf("not seen in %d seeds", most)
		})
	}
}
