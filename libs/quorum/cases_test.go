package quorum

import (
	"errors"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// The edge cases of the seed and of the issue, by name. TestWorkedExample and
// TestFigure8 stand in quorum_test.go.

func answer(r Replica, epoch, last topic.Epoch, leo int64) FenceAnswer {
	return FenceAnswer{Replica: r, Epoch: epoch, LastEpoch: last, LEO: leo}
}

// fenced is a copy that has promised epoch, durably.
func fenced(t *testing.T, r Replica, set []Replica, epoch topic.Epoch) *Fence {
	t.Helper()
	f := NewFence(r, 0)
	f.Recorded(set)
	if err := f.Promise(epoch, Leadership{}); err != nil {
		t.Fatal(err)
	}
	f.Stored(epoch)
	return f
}

// Four voters need three: they tolerate one loss, as three do.
func TestEvenNumberOfVoters(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4} {
		if Majority(n) != want {
			t.Errorf("majority of %d: %d, want %d", n, Majority(n), want)
		}
	}
	set := replicas(4)
	half := []FenceAnswer{answer(set[0], 2, 1, 9), answer(set[1], 2, 1, 9)}
	if _, err := Elect(2, half, set, Replica{}); !errors.Is(err, ErrNoMajority) {
		t.Fatalf("two of four elect: %v", err)
	}
}

func TestLaggingMinority(t *testing.T) {
	l, set := leading(t, 5, 1, Log{})
	l.Synced(50)
	fetch(t, l, set[1], 50)
	fetch(t, l, set[2], 50)
	wantHWM(t, l, 50, "two of five have nothing")
}

// The HWM of nobody exceeds its own LEO: the leader's when followers synced
// first, a follower's when the leader is ahead of it.
func TestHWMAgainstLEO(t *testing.T) {
	l, set := leading(t, 3, 1, Log{})
	l.Appended(10)
	l.Synced(4)
	fetch(t, l, set[1], 10)
	fetch(t, l, set[2], 10)
	wantHWM(t, l, 4, "both followers are ahead of the leader's sync")
	if !l.Synced(10) {
		t.Fatal("what followers had reported does not count when the own sync returns")
	}
	wantHWM(t, l, 10, "all synced")
	f := follower(t, set[1], Local{LEO: 5, HWM: 2, LastEpoch: 1}, 1)
	take(t, f, Answer{Epoch: 1, Offset: 5, LastEpoch: 1, HWM: 10}, nil)
	if f.HWM() != 5 {
		t.Fatalf("told 10 with an end of 5: HWM %d", f.HWM())
	}
	f.Appended(8, 1)
	if f.HWM() != 5 {
		t.Fatalf("written is not synced: HWM %d", f.HWM())
	}
	f.Synced(8)
	if f.HWM() != 8 {
		t.Fatalf("HWM %d after the sync", f.HWM())
	}
}

// Records of epochs 1 and 2 become committed with the leader-change record of
// epoch 3, and not before.
func TestTransitiveCommitByTheLeaderChangeRecord(t *testing.T) {
	l, set := leading(t, 3, 3, Log{LEO: 20, HWM: 5, LastEpoch: 2})
	fetch(t, l, set[1], 20)
	fetch(t, l, set[2], 20)
	wantHWM(t, l, 5, "the tail is on all three")
	l.Synced(21)
	fetch(t, l, set[1], 21)
	wantHWM(t, l, 21, "the leader-change record is on two")
}

// Retention passed a replica: it takes the leader's snapshot and fetches on, and
// start <= HWM <= LEO holds at every moment.
func TestReplicaBelowTheLogStart(t *testing.T) {
	l, set := leading(t, 3, 4, Log{LEO: 100, HWM: 90, LastEpoch: 3})
	history := []EpochStart{{2, 40}, {3, 70}, {4, 100}}
	view := LogView{Start: 60, Written: 101, History: history}
	f := follower(t, set[1], Local{LEO: 30, HWM: 20, LastEpoch: 1}, 4)
	req, _ := f.Request()
	a, _, err := l.Fetch(req, view, 0)
	if err != nil || a.Kind != Snapshot || a.LogStart != 60 {
		t.Fatalf("%+v, %v", a, err)
	}
	step := take(t, f, a, []EpochStart{{1, 0}})
	if step != (Step{Install, 60}) {
		t.Fatalf("%+v", step)
	}
	f.Installed(60, EpochAt(history, 60))
	if f.HWM() != 60 || f.LEO() != 60 {
		t.Fatalf("HWM %d, LEO %d after the snapshot", f.HWM(), f.LEO())
	}
	req, _ = f.Request()
	if a, _, err = l.Fetch(req, view, 0); err != nil || a.Kind != Records {
		t.Fatalf("after the snapshot: %+v, %v", a, err)
	}
}

// A and B have committed, C lags, B's disk is wiped, A dies: nobody is elected
// among C and what stands in B's place. When A returns nothing is lost.
func TestWhoCounts(t *testing.T) {
	set := replicas(3)
	a, c := set[0], set[2]
	wiped := Replica{Node: set[1].Node, Disk: 99, Copy: 99}
	if v := JudgeCopy(Found{Disk: 99}, set[1], false); v != Lost {
		t.Fatalf("an empty disk is %d", v)
	}
	f := NewFence(wiped, 0)
	f.Recorded(set)
	if err := f.Promise(2, Leadership{Epoch: 1}); !errors.Is(err, ErrNotReplica) {
		t.Fatalf("a wiped copy promises: %v", err)
	}
	answers := []FenceAnswer{answer(c, 2, 1, 40), answer(wiped, 2, 0, 0)}
	if out, err := Elect(2, answers, set, Replica{}); !errors.Is(err, ErrNoMajority) {
		t.Fatalf("elected %v: %v", out, err)
	}
	out, err := Elect(2, append(answers, answer(a, 2, 1, 100)), set, c)
	if err != nil || out.Leader != a {
		t.Fatalf("with A back: %v, %v", out, err)
	}
}

// Elections: the newest epoch wins over the longest log, the wanted one among
// equals only, repeated and foreign answers do not make a majority.
func TestElect(t *testing.T) {
	set := replicas(3)
	for name, c := range map[string]struct {
		answers []FenceAnswer
		wanted  Replica
		want    Replica
		err     error
	}{
		"newest epoch":      {[]FenceAnswer{answer(set[0], 5, 2, 100), answer(set[1], 5, 3, 10)}, set[0], set[1], nil},
		"longest log":       {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(set[1], 5, 3, 11)}, set[0], set[1], nil},
		"wanted of equals":  {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(set[2], 5, 3, 10)}, set[2], set[2], nil},
		"repeated":          {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(set[0], 5, 3, 10)}, set[0], Replica{}, ErrNoMajority},
		"another epoch":     {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(set[1], 4, 3, 10)}, set[0], Replica{}, ErrNoMajority},
		"an observer":       {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(Replica{Node: "s9"}, 5, 3, 10)}, set[0], Replica{}, ErrNoMajority},
		"the old disk":      {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(Replica{Node: "s2", Disk: 9}, 5, 3, 10)}, set[0], Replica{}, ErrNoMajority},
		"answered twice up": {[]FenceAnswer{answer(set[0], 5, 3, 10), answer(set[1], 5, 3, 9), answer(set[1], 5, 3, 12)}, set[0], set[1], nil},
	} {
		out, err := Elect(5, c.answers, set, c.wanted)
		if !errors.Is(err, c.err) || out.Leader != c.want {
			t.Errorf("%s: %v, %v", name, out.Leader, err)
		}
	}
	seek := answer(set[2], 5, 1, 1)
	seek.Generation = 7
	out, err := Elect(5, []FenceAnswer{answer(set[0], 5, 3, 10), seek}, set, Replica{})
	if err != nil || !slices.Equal(out.Positions, []Replica{set[2]}) {
		t.Errorf("positions of %v, %v: those of the newest generation are wanted", out.Positions, err)
	}
}
