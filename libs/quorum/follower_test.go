package quorum

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

func follower(t *testing.T, r Replica, at Local, epoch topic.Epoch) *Follower {
	t.Helper()
	f, err := NewFollower(NewFence(r, 0), at)
	if err == nil {
		err = f.Follow(epoch)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func take(t *testing.T, f *Follower, a Answer, history []EpochStart) Step {
	t.Helper()
	step, err := f.Take(a, history)
	if err != nil {
		t.Fatal(err)
	}
	return step
}

// A follower with a tail of an old leader is led back to where both agree, epoch
// by epoch, and never below.
func TestDivergence(t *testing.T) {
	leader := []EpochStart{{1, 0}, {3, 50}, {6, 80}}
	for name, c := range map[string]struct {
		own  []EpochStart
		end  int64
		want int64 // where the log is a prefix of the leader's
	}{
		"a prefix":                       {[]EpochStart{{1, 0}, {3, 50}}, 70, 70},
		"a tail of an unknown epoch":     {[]EpochStart{{1, 0}, {3, 50}, {4, 60}}, 75, 60},
		"two unknown epochs":             {[]EpochStart{{1, 0}, {2, 30}, {4, 60}}, 75, 30},
		"a shared epoch that went on":    {[]EpochStart{{1, 0}}, 65, 50},
		"a newer tail of a known epoch":  {[]EpochStart{{1, 0}, {3, 50}}, 95, 80},
		"nothing in common":              {[]EpochStart{{2, 0}}, 20, 0},
		"an unknown epoch over a shared": {[]EpochStart{{1, 0}, {2, 10}}, 12, 10},
	} {
		own, end := c.own, c.end
		for turn := 0; ; turn++ {
			epoch, to, diverged := Diverging(leader, 90, EpochAt(own, end), end)
			if !diverged {
				break
			}
			cut := TruncateTo(own, end, epoch, to)
			if cut >= end || cut < c.want || turn > len(c.own)+1 {
				t.Fatalf("%s: cut from %d to %d", name, end, cut)
			}
			for end = cut; len(own) > 0 && own[len(own)-1].Start >= end; {
				own = own[:len(own)-1]
			}
		}
		if end != c.want {
			t.Errorf("%s: ends at %d, want %d", name, end, c.want)
		}
	}
}

// A leader that asks to cut what is committed is not believed: the copy stops.
func TestNeverCutsBelowTheHWM(t *testing.T) {
	for name, a := range map[string]Answer{
		"divergence": {Kind: Diverged, Epoch: 5, Offset: 20, LastEpoch: 3, ToEpoch: 2, ToEnd: 9},
		"snapshot":   {Kind: Snapshot, Epoch: 5, Offset: 20, LastEpoch: 3, LogStart: 9, HWM: 30},
		"no cut":     {Kind: Diverged, Epoch: 5, Offset: 20, LastEpoch: 3, ToEpoch: 3, ToEnd: 20},
	} {
		f := follower(t, replicas(1)[0], Local{LEO: 20, HWM: 10, LastEpoch: 3}, 5)
		history := []EpochStart{{2, 0}, {3, 5}}
		if name == "divergence" {
			history = []EpochStart{{2, 0}, {3, 9}}
		}
		if step, err := f.Take(a, history); !errors.Is(err, ErrBelowHWM) {
			t.Errorf("%s: %+v, %v", name, step, err)
		}
		if _, ok := f.Request(); ok {
			t.Errorf("%s: goes on fetching", name)
		}
	}
}

// Answers that come late or twice change nothing: the position is another one, or
// the epoch, or a promise was made.
func TestLateAnswers(t *testing.T) {
	set := replicas(3)
	f := follower(t, set[1], Local{LEO: 20, HWM: 10, LastEpoch: 3}, 5)
	history := []EpochStart{{3, 0}}
	cut := Answer{Kind: Diverged, Epoch: 5, Offset: 20, LastEpoch: 3, ToEpoch: 3, ToEnd: 15}
	if step := take(t, f, cut, history); step != (Step{Truncate, 15}) {
		t.Fatalf("%+v", step)
	}
	f.Truncated(15, 3)
	f.Appended(20, 4)
	f.Synced(20)
	if step := take(t, f, cut, history); step.Do != Nothing {
		t.Fatalf("a repeated divergence cuts again: %+v", step)
	}
	if _, err := f.Take(Answer{Epoch: 4, Offset: 20, LastEpoch: 4}, history); !errors.Is(err, ErrStaleEpoch) {
		t.Fatalf("an older epoch: %v", err)
	}
	if _, err := f.Take(Answer{Epoch: 6, Offset: 20, LastEpoch: 4}, history); !errors.Is(err, ErrNewerEpoch) {
		t.Fatalf("a newer epoch: %v", err)
	}
	f.fence.Recorded([]Replica{set[1]})
	if err := f.fence.Promise(7, Leadership{Epoch: 5, Leader: "s1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Take(Answer{Epoch: 5, Offset: 20, LastEpoch: 4}, history); !errors.Is(err, ErrStaleEpoch) {
		t.Fatalf("after a promise: %v", err)
	}
	if _, ok := f.Request(); ok {
		t.Fatal("fetches under an older epoch than promised")
	}
	if err := f.Follow(6); !errors.Is(err, ErrStaleEpoch) {
		t.Fatalf("follows an older epoch than promised: %v", err)
	}
}

// Only synced ends are reported, and a copy whose log knows a newer epoch does not
// follow an older one, promise or not.
func TestFollowerReportsSyncedEndsOnly(t *testing.T) {
	f := follower(t, replicas(1)[0], Local{LEO: 5, LastEpoch: 2}, 3)
	f.Appended(9, 3)
	if _, ok := f.Request(); ok {
		t.Fatal("asks before what it wrote is synced")
	}
	f.Synced(9)
	if req, ok := f.Request(); !ok || req.Offset != 9 || req.LastEpoch != 3 {
		t.Fatalf("%+v, %t", req, ok)
	}
	again, err := NewFollower(NewFence(replicas(1)[0], 0), Local{LEO: 9, LastEpoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Follow(2); !errors.Is(err, ErrStaleEpoch) {
		t.Fatalf("follows 2 with a log of 3: %v", err)
	}
	for name, bad := range map[string][2]int64{"before the end": {8, 3}, "of a later epoch": {9, 4}, "of an earlier epoch": {9, 2}} {
		if err := f.MayAppend(bad[0], topic.Epoch(bad[1])); !errors.Is(err, ErrInvalidFetch) {
			t.Errorf("a batch %s: %v", name, err)
		}
	}
	if _, err := NewFollower(NewFence(replicas(1)[0], 0), Local{LEO: 5, HWM: 6}); !errors.Is(err, ErrBelowHWM) {
		t.Fatalf("opened below its HWM: %v", err)
	}
}

// A fence answer speaks of the synced part only, is given after the promise is
// durable, and never understates the log.
func TestFenceAnswersTheSyncedEnd(t *testing.T) {
	set := replicas(3)
	f := NewFence(set[0], 0)
	f.Recorded(set)
	if err := f.Promise(4, Leadership{Epoch: 3, Leader: "s2"}); err != nil {
		t.Fatal(err)
	}
	history := []EpochStart{{1, 0}, {3, 100}}
	if _, err := f.Answer(4, history, 100, 90, 0); !errors.Is(err, ErrNotStored) {
		t.Fatalf("before it is durable: %v", err)
	}
	f.Stored(4)
	if a, err := f.Answer(4, history, 100, 90, 0); err != nil || a.LastEpoch != 1 || a.LEO != 100 {
		t.Fatalf("epoch 3 is written and not synced: %+v, %v", a, err)
	}
	if _, err := f.Answer(4, []EpochStart{{3, 100}}, 100, 90, 0); !errors.Is(err, ErrNoEpoch) {
		t.Fatalf("a history trimmed at the end of the log: %v", err)
	}
	for name, c := range map[string]struct {
		epoch topic.Epoch
		lead  Leadership
		want  error
	}{
		"repeated":        {4, Leadership{Epoch: 4}, nil},
		"older":           {3, Leadership{Epoch: 3}, ErrStaleEpoch},
		"older than seen": {5, Leadership{Epoch: 6}, ErrStaleEpoch},
		"with a leader":   {4, Leadership{Epoch: 4, Leader: "s3"}, ErrEpochHasLeader},
	} {
		if err := f.Promise(c.epoch, c.lead); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.Promise(9, Leadership{}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Answer(4, history, 100, 90, 0); !errors.Is(err, ErrStaleEpoch) {
		t.Fatalf("an answer for 4 after 9 is promised: %v", err)
	}
}
