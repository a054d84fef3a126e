package quorum

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

func replicas(n int) []Replica {
	set := make([]Replica, n)
	for i := range set {
		set[i] = Replica{Node: fmt.Sprintf("s%d", i+1), Disk: topic.ID64(i + 1)}
	}
	return set
}

func leading(t *testing.T, n int, epoch topic.Epoch, log Log) (*Leader, []Replica) {
	t.Helper()
	set := replicas(n)
	l, err := BecomeLeader(set[0], set, epoch, log)
	if err != nil {
		t.Fatal(err)
	}
	return l, set
}

func fetch(t *testing.T, l *Leader, r Replica, offset int64) bool {
	t.Helper()
	moved, err := l.Fetched(r, l.Epoch(), offset)
	if err != nil {
		t.Fatal(err)
	}
	return moved
}

func wantHWM(t *testing.T, l *Leader, want int64, when string) {
	t.Helper()
	if l.HWM() != want {
		t.Fatalf("%s: HWM %d, want %d", when, l.HWM(), want)
	}
}

// The example of the seed: 100, 100, 95 commit up to and including record 99.
func TestWorkedExample(t *testing.T) {
	l, set := leading(t, 3, 1, Log{})
	l.Synced(100)
	wantHWM(t, l, 0, "one of three")
	fetch(t, l, set[2], 95)
	wantHWM(t, l, 95, "two of three up to 95")
	fetch(t, l, set[1], 100)
	wantHWM(t, l, 100, "100, 100, 95")
}

// Raft's Figure 8: a record of epoch 2 reaches a majority under a leader of
// epoch 4, which must not commit it by counting: the copy with epoch 3 could
// still win an election and replace it. A record of epoch 4 takes it along.
func TestFigure8(t *testing.T) {
	l, set := leading(t, 5, 4, Log{LEO: 2, HWM: 1, LastEpoch: 2})
	if l.LeaderChange() != AtOnce || l.CanServe() {
		t.Fatal("a tail of an earlier epoch, and no leader change asked for")
	}
	for _, r := range set[1:3] {
		if fetch(t, l, r, 2) {
			t.Fatal("committed a record of epoch 2 by counting")
		}
	}
	l.Synced(3) // the leader-change batch
	wantHWM(t, l, 1, "own record only here")
	fetch(t, l, set[1], 3)
	wantHWM(t, l, 1, "own record on two of five")
	fetch(t, l, set[2], 3)
	wantHWM(t, l, 3, "own record on three of five")
	if !l.CanServe() {
		t.Fatal("may not serve with its leader change committed")
	}
}

func TestEvenNumberNeedsMoreThanHalf(t *testing.T) {
	l, set := leading(t, 4, 1, Log{})
	l.Synced(10)
	fetch(t, l, set[1], 10)
	wantHWM(t, l, 0, "two of four")
	fetch(t, l, set[2], 7)
	wantHWM(t, l, 7, "three of four up to 7")
}

func TestLaggingMinorityDelaysNobody(t *testing.T) {
	l, set := leading(t, 5, 1, Log{})
	l.Synced(50)
	fetch(t, l, set[1], 50)
	fetch(t, l, set[2], 40)
	wantHWM(t, l, 40, "two silent")
}

func TestHWMNeverMovesBack(t *testing.T) {
	l, set := leading(t, 3, 1, Log{})
	l.Synced(10)
	fetch(t, l, set[1], 10)
	if fetch(t, l, set[1], 2) || l.Synced(5) {
		t.Fatal("moved on lower offsets")
	}
	wantHWM(t, l, 10, "a replica went back")
	l.Synced(20)
	wantHWM(t, l, 10, "what the replica lost must not count")
	fetch(t, l, set[2], 12)
	wantHWM(t, l, 12, "the other one counts")
}

func TestMajorityOfOne(t *testing.T) {
	for _, c := range []struct {
		name    string
		log     Log
		start   int64
		change  LeaderChange
		settled bool
	}{
		{"empty log, first epoch", Log{}, 0, NotNeeded, true},
		{"no tail", Log{LEO: 10, HWM: 10, LastEpoch: 3}, 10, BeforeFirstAppend, true},
		{"tail above the stored HWM", Log{LEO: 10, HWM: 8, LastEpoch: 3}, 10, AtOnce, false},
		{"ends below its HWM: a gap", Log{LEO: 5, HWM: 9, LastEpoch: 3}, 9, BeforeFirstAppend, true},
		{"lost everything but its HWM", Log{LEO: 0, HWM: 9}, 9, BeforeFirstAppend, true},
	} {
		l, _ := leading(t, 1, 4, c.log)
		if l.Start() != c.start || l.LeaderChange() != c.change || l.CanServe() != c.settled || l.HWM() != c.log.HWM {
			t.Errorf("%s: start %d, change %d, settled %t, HWM %d", c.name, l.Start(), l.LeaderChange(), l.CanServe(), l.HWM())
		}
		if l.Synced(c.start) && c.log.LEO >= c.log.HWM {
			t.Errorf("%s: committed without a record of its own", c.name)
		}
		if !l.Synced(c.start+1) || l.HWM() != c.start+1 || !l.CanServe() {
			t.Errorf("%s: HWM %d after the first record at %d", c.name, l.HWM(), c.start)
		}
	}
}

func TestRefusals(t *testing.T) {
	set := replicas(3)
	for name, c := range map[string]struct {
		self  Replica
		set   []Replica
		epoch topic.Epoch
		log   Log
		want  error
	}{
		"empty set":            {set[0], nil, 1, Log{}, ErrInvalidSet},
		"large set":            {set[0], replicas(MaxReplicas + 1), 1, Log{}, ErrInvalidSet},
		"twice":                {set[0], []Replica{set[0], set[0]}, 1, Log{}, ErrInvalidSet},
		"self not in it":       {Replica{Node: "s9", Disk: 9}, set, 1, Log{}, ErrInvalidSet},
		"self on another disk": {Replica{Node: "s1", Disk: 9}, set, 1, Log{}, ErrInvalidSet},
		"no epoch":             {set[0], set, 0, Log{}, ErrStaleEpoch},
		"its own old epoch":    {set[0], set, 4, Log{LastEpoch: 4}, ErrStaleEpoch},
		"replicated, lost":     {set[0], set, 5, Log{LEO: 3, HWM: 4, LastEpoch: 4}, ErrBelowHWM},
	} {
		if _, err := BecomeLeader(c.self, c.set, c.epoch, c.log); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	l, _ := leading(t, 3, 5, Log{})
	l.Synced(10)
	for name, c := range map[string]struct {
		r      Replica
		epoch  topic.Epoch
		offset int64
		want   error
	}{
		"observer":       {Replica{Node: "s9", Disk: 9}, 5, 10, ErrNotReplica},
		"another disk":   {Replica{Node: "s2", Disk: 9}, 5, 10, ErrNotReplica},
		"the leader":     {set[0], 5, 10, ErrNotReplica},
		"older epoch":    {set[1], 4, 10, ErrStaleEpoch},
		"newer epoch":    {set[1], 6, 10, ErrNewerEpoch},
		"beyond the end": {set[1], 5, 11, ErrBeyondEnd},
		"negative":       {set[1], 5, -1, ErrBeyondEnd},
	} {
		if moved, err := l.Fetched(c.r, c.epoch, c.offset); moved || !errors.Is(err, c.want) {
			t.Errorf("%s: %t, %v, want %v", name, moved, err, c.want)
		}
	}
	wantHWM(t, l, 0, "after refusals")
}

// TestRuleAgainstOracle drives random reports and compares with the rule as one
// would say it: count, for every offset, who has it.
func TestRuleAgainstOracle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, MaxReplicas).Draw(t, "replicas")
		set := replicas(n)
		hwm := rapid.Int64Range(0, 20).Draw(t, "hwm")
		log := Log{LEO: hwm + rapid.Int64Range(0, 10).Draw(t, "tail"), HWM: hwm, LastEpoch: 3}
		l, err := BecomeLeader(set[0], set, 4, log)
		if err != nil {
			t.Fatal(err)
		}
		ends := make([]int64, n)
		ends[0] = log.LEO
		want := hwm
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "who")
			if i == 0 {
				ends[0] += rapid.Int64Range(0, 5).Draw(t, "synced")
				l.Synced(ends[0])
			} else {
				ends[i] = rapid.Int64Range(0, ends[0]).Draw(t, "fetched")
				if _, err := l.Fetched(set[i], 4, ends[i]); err != nil {
					t.Fatal(err)
				}
			}
			for end := want + 1; end <= ends[0]; end++ {
				have := 0
				for _, e := range ends {
					if e >= end {
						have++
					}
				}
				if 2*have > n && end-1 >= log.LEO { // a majority, and a record of this epoch
					want = end
				}
			}
			if l.HWM() != want || l.HWM() > l.LEO() {
				t.Fatalf("ends %v: HWM %d, want %d", ends, l.HWM(), want)
			}
		}
	})
}
