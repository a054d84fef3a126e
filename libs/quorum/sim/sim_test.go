package sim

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit/race"
)

const (
	// runSteps is how long a run is: some elections and changes, and still quick to
	// shrink.
	runSteps = 2000
	// ciSteps is what CI plays of the usual weather; the race detector, which finds
	// nothing in one goroutine, gets a taste.
	ciSteps, raceSteps = 1_200_000, 60_000
)

// seeds is how many seeds `make simulate SEEDS=..` asks for; 0: as many as CI.
func seeds(t *testing.T) uint64 {
	n, err := strconv.ParseUint(os.Getenv("SEEDS"), 10, 64)
	if err != nil && os.Getenv("SEEDS") != "" {
		t.Fatalf("SEEDS: %v", err)
	}
	return n
}

// TestSimulation plays seeds until enough steps are done.
func TestSimulation(t *testing.T) {
	steps, want := ciSteps, seeds(t)
	if race.Enabled {
		steps = raceSteps
	}
	var sum Stats
	began := time.Now()
	seed := uint64(0)
	for seed < want || (want == 0 && sum.Steps < steps) {
		seed++
		stats, f := Run(seed, Options{Steps: runSteps})
		if f != nil {
			t.Fatal(Shrink(f))
		}
		sum.Add(stats)
	}
	took := time.Since(began)
	t.Logf("%d seeds, %d steps in %s: %.0f steps/s; %+v", seed, sum.Steps, took.Round(time.Millisecond), float64(sum.Steps)/took.Seconds(), sum)
	for name, n := range map[string]int{
		"commits": sum.Committed, "elections": sum.Elections, "changes": sum.Changes, "losses": sum.Lost, "damages": sum.Damaged, "truncations": sum.Truncated,
	} {
		if n == 0 {
			t.Errorf("no %s: the weather is too fine", name)
		}
	}
}

// failing is a run that breaks an invariant late.
func failing(t *testing.T) *Failure {
	t.Helper()
	for seed := uint64(1); seed <= bugSeeds; seed++ {
		_, f := Run(seed, Options{Steps: runSteps, Bug: ElectWithoutMajority})
		if f != nil && f.Step > runSteps/2 {
			return f
		}
	}
	t.Fatal("no failure")
	return nil
}

// A seed is a run: the same every time, to the last line of its trace.
func TestDeterministic(t *testing.T) {
	a, b := failing(t), failing(t)
	if a.Seed != b.Seed || a.Step != b.Step || !slices.Equal(Shrink(a).Trace, Shrink(b).Trace) {
		t.Fatalf("differ:\n%v\n%v", a, b)
	}
}

// A failure is shrunk to what it needs, and says what happened.
func TestShrink(t *testing.T) {
	f := failing(t)
	short := Shrink(f)
	if len(short.choices) > len(f.choices)/10 || len(short.Trace) == 0 {
		t.Fatalf("%d steps, shrunk from %d:\n%v", len(short.choices), len(f.choices), short)
	}
	t.Logf("from %d to %d steps:\n%v", len(f.choices), len(short.choices), short)
}
