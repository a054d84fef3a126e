package sim

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit/race"
)

// TestModelHolds runs seeds for a few seconds; the first ones are always the same.
func TestModelHolds(t *testing.T) {
	var sum Result
	seeds := 0
	for end := time.Now().Add(runTime()); time.Now().Before(end) || seeds < 20; seeds++ {
		cfg := DefaultConfig(uint64(seeds) + 1)
		r := Run(cfg)
		if len(r.Violations) > 0 {
			t.Fatalf("seed %d: %d violations, first: %s", cfg.Seed, len(r.Violations), r.Violations[0])
		}
		sum.Steps += r.Steps
		sum.Records += r.Records
		sum.Restarts += r.Restarts
		sum.Restores += r.Restores
		sum.Parkings += r.Parkings
		sum.Rerouted += r.Rerouted
		sum.Suspicions += r.Suspicions
	}
	t.Logf("%d seeds: %+v", seeds, sum)
	if sum.Restarts == 0 || sum.Restores == 0 || sum.Parkings == 0 || sum.Rerouted == 0 || sum.Suspicions == 0 {
		t.Fatalf("the runs do not reach everything: %+v", sum)
	}
}

func runTime() time.Duration {
	if testing.Short() || race.Enabled {
		return time.Second
	}
	return 5 * time.Second
}

// TestModelCatchesPlantedBugs shows that a mistake does not stay unnoticed.
func TestModelCatchesPlantedBugs(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine")
	}
	const most = 60 // seeds until a bug must have been seen
	for name, bug := range map[string]Bug{
		"a duplicate answered before commit":      EarlyDuplicateAnswer,
		"a number used twice":                     NumberReuse,
		"a record that overtakes another":         Overtake,
		"a stuck record copied behind newer ones": CopyBehind,
		"an unknown outcome taken for a refusal":  LostAnswerCalledRefused,
		"a suspicion taken for death":             SuspicionTakenForDeath,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= most; seed++ {
				cfg := DefaultConfig(seed)
				cfg.Bug = bug
				if r := Run(cfg); len(r.Violations) > 0 {
					t.Logf("seed %d: %s", seed, r.Violations[0])
					return
				}
			}
			t.Fatalf("not seen in %d seeds", most)
		})
	}
}

// TestSeedIsARun: without it a failing seed would be no help.
func TestSeedIsARun(t *testing.T) {
	a, b := Run(DefaultConfig(3)), Run(DefaultConfig(3))
	if a.Steps != b.Steps || a.Rerouted != b.Rerouted || a.Records != b.Records {
		t.Fatalf("two runs of one seed differ: %+v, %+v", a, b)
	}
}
