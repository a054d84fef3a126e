package quorum

import (
	"errors"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// led is a leadership of s1 under epoch 5 with a committed leader-change record:
// set of n, everything up to 11.
func led(t *testing.T, n int) (*Leader, *Fence, []Replica, LogView) {
	t.Helper()
	set := replicas(n)
	fence := fenced(t, set[0], set, 5)
	l, err := Lead(fence, Config{Version: 1, Replicas: set}, 5, Log{LEO: 10, HWM: 10, LastEpoch: 4})
	if err != nil {
		t.Fatal(err)
	}
	view := LogView{Written: 11, History: []EpochStart{{4, 0}, {5, 10}}}
	l.Synced(11)
	for _, r := range set[1:] {
		get(t, l, Fetch{From: r, Epoch: 5, Offset: 11, LastEpoch: 5}, view, 0)
	}
	wantHWM(t, l, 11, "leader change on all")
	return l, fence, set, view
}

func get(t *testing.T, l *Leader, f Fetch, view LogView, now int64) Answer {
	t.Helper()
	a, _, err := l.Fetch(f, view, now)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Forged and foreign fetches are refused and change nothing.
func TestBadFetches(t *testing.T) {
	for name, c := range map[string]struct {
		f    Fetch
		want error
	}{
		"a stranger":               {Fetch{From: Replica{Node: "s9"}, Epoch: 5, Offset: 11, LastEpoch: 5}, ErrNotReplica},
		"the leader":               {Fetch{From: replicas(1)[0], Epoch: 5, Offset: 11, LastEpoch: 5}, ErrNotReplica},
		"an older epoch":           {Fetch{Epoch: 4, Offset: 11, LastEpoch: 4}, ErrStaleEpoch},
		"beyond the end":           {Fetch{Epoch: 5, Offset: 12, LastEpoch: 5}, ErrBeyondEnd},
		"negative":                 {Fetch{Epoch: 5, Offset: -1, LastEpoch: 5}, ErrBeyondEnd},
		"a last epoch to come":     {Fetch{Epoch: 5, Offset: 11, LastEpoch: 6}, ErrInvalidFetch},
		"no last epoch":            {Fetch{Epoch: 5, Offset: 11}, ErrInvalidFetch},
		"an epoch before its time": {Fetch{Epoch: 5, Offset: 10, LastEpoch: 5}, ErrInvalidFetch},
		"a round to come":          {Fetch{Epoch: 5, Offset: 11, LastEpoch: 5, Round: 1}, ErrInvalidFetch},
	} {
		l, _, set, view := led(t, 3)
		if c.f.From == (Replica{}) {
			c.f.From = set[1]
		}
		before := l.Progress()
		if _, moved, err := l.Fetch(c.f, view, 9); moved || !errors.Is(err, c.want) {
			t.Errorf("%s: %t, %v, want %v", name, moved, err, c.want)
		}
		if l.Ended() != nil || !slices.Equal(before, l.Progress()) {
			t.Errorf("%s: changed the leader", name)
		}
	}
	l, _, set, view := led(t, 3)
	if _, _, err := l.Fetch(Fetch{From: set[1], Epoch: 6, Offset: 11, LastEpoch: 5}, view, 9); !errors.Is(err, ErrNewerEpoch) || l.Ended() == nil {
		t.Errorf("a newer epoch: %v, ended %v", err, l.Ended())
	}
}

// A log that has left the leader's does not count, however long it is.
func TestDivergedEndsDoNotCount(t *testing.T) {
	set := replicas(3)
	l, err := Lead(fenced(t, set[0], set, 5), Config{Replicas: set}, 5, Log{LEO: 10, HWM: 5, LastEpoch: 2})
	if err != nil {
		t.Fatal(err)
	}
	l.Synced(11)
	view := LogView{Written: 11, History: []EpochStart{{2, 0}, {5, 10}}}
	a := get(t, l, Fetch{From: set[1], Epoch: 5, Offset: 11, LastEpoch: 3}, view, 0)
	if a.Kind != Diverged || a.ToEpoch != 2 || a.ToEnd != 10 {
		t.Fatalf("%+v", a)
	}
	wantHWM(t, l, 5, "a diverged log of 11")
}

// A leadership is over with a promise, a failed sync, or a set without it, and
// another one needs another epoch.
func TestLeadershipEnds(t *testing.T) {
	for name, end := range map[string]func(*Leader, *Fence){
		"promise":     func(_ *Leader, f *Fence) { _ = f.Promise(6, Leadership{Epoch: 5, Leader: "s1"}) },
		"failed sync": func(l *Leader, _ *Fence) { l.Failed() },
		"step down":   func(l *Leader, _ *Fence) { l.StepDown(6) },
		"removed": func(l *Leader, _ *Fence) {
			_, _ = l.Apply(Config{Version: 2, Replicas: replicas(3)[1:]}, 11)
		},
	} {
		l, fence, set, view := led(t, 3)
		end(l, fence)
		_, _, err := l.Fetch(Fetch{From: set[1], Epoch: 5, Offset: 11, LastEpoch: 5}, view, 1)
		if !errors.Is(l.Ended(), ErrEnded) || !errors.Is(err, ErrEnded) || l.Synced(20) || l.MayServe(1) {
			t.Errorf("%s: goes on: %v, %v", name, l.Ended(), err)
		}
		if v := l.Vouch(func(int64) bool { return true }); v.Settled || v.Epoch != 0 {
			t.Errorf("%s: still vouches: %+v", name, v)
		}
		if _, err := Lead(fence, Config{Replicas: set}, 5, Log{LEO: 10, HWM: 10, LastEpoch: 4}); !errors.Is(err, ErrStaleEpoch) {
			t.Errorf("%s: leads again in the same epoch: %v", name, err)
		}
	}
	set := replicas(3)
	if _, err := Lead(fenced(t, set[0], set, 4), Config{Replicas: set}, 5, Log{}); !errors.Is(err, ErrStaleEpoch) {
		t.Errorf("leads an epoch that it has not promised: %v", err)
	}
}

// A leader serves for LeaseMS after a majority, itself included, has fetched.
func TestLease(t *testing.T) {
	l, _, set, view := led(t, 5)
	at := func(r Replica, now int64) { get(t, l, Fetch{From: r, Epoch: 5, Offset: 11, LastEpoch: 5}, view, now) }
	at(set[1], 1000)
	if !l.MayServe(LeaseMS-1) || l.MayServe(LeaseMS) {
		t.Error("all fetched at 0, one at 1000: the lease is that of the second")
	}
	at(set[2], 2000)
	if !l.MayServe(1000+LeaseMS-1) || l.MayServe(1000+LeaseMS) {
		t.Error("two of five fetched at 1000 and 2000")
	}
	fresh, err := BecomeLeader(set[0], set, 6, Log{LEO: 11, HWM: 11, LastEpoch: 5})
	if err != nil || fresh.MayServe(0) {
		t.Error("serves before its leader-change batch is committed", err)
	}
	if _, _, ok := fresh.Confirm(); ok {
		t.Error("confirms by an inherited HWM")
	}
	alone, _ := leading(t, 1, 1, Log{})
	if !alone.MayServe(1 << 40) {
		t.Error("a lone copy needs nobody")
	}
}

// A confirm round ends with fetches that were sent after it began.
func TestConfirm(t *testing.T) {
	l, _, set, view := led(t, 3)
	round, hwm, ok := l.Confirm()
	if !ok || hwm != 11 || l.Confirmed(round) {
		t.Fatalf("%d, %d, %t", round, hwm, ok)
	}
	a := get(t, l, Fetch{From: set[1], Epoch: 5, Offset: 11, LastEpoch: 5}, view, 0) // was under way
	if l.Confirmed(round) {
		t.Fatal("confirmed by a fetch that may be older")
	}
	get(t, l, Fetch{From: set[1], Epoch: 5, Offset: 11, LastEpoch: 5, Round: a.Round}, view, 0)
	if !l.Confirmed(round) {
		t.Fatal("not confirmed")
	}
}

// A change waits for a record that was appended after the leader applied the
// version and is committed by it; the HWM of before proves nothing.
func TestSettled(t *testing.T) {
	l, _, set, view := led(t, 3)
	if !l.Settled() {
		t.Fatal("the leader-change record settles the version of the beginning")
	}
	four := replicas(4)
	l.Synced(12)
	if _, err := l.Apply(Config{Version: 2, Replicas: four}, 12); err != nil {
		t.Fatal(err)
	}
	if l.Settled() || !l.NeedsBatch() {
		t.Fatal("settled by what was appended before")
	}
	view.Written = 12
	for _, r := range four[1:] {
		get(t, l, Fetch{From: r, Epoch: 5, Offset: 12, LastEpoch: 5}, view, 0)
	}
	if wantHWM(t, l, 12, "old record"); l.Settled() {
		t.Fatal("settled by a record that was appended before")
	}
	l.Synced(13)
	view.Written = 13
	get(t, l, Fetch{From: set[1], Epoch: 5, Offset: 13, LastEpoch: 5}, view, 0)
	if l.Settled() || l.NeedsBatch() {
		t.Fatal("two of four")
	}
	get(t, l, Fetch{From: set[2], Epoch: 5, Offset: 13, LastEpoch: 5}, view, 0)
	if !l.Settled() {
		t.Fatal("three of four")
	}
	if moved, err := l.Apply(Config{Version: 1, Replicas: set}, 13); moved || err != nil || l.Version() != 2 {
		t.Fatalf("an older version: %t, %v", moved, err)
	}
}

// A copy in the place of a lost one: its first fetch erases what the lost one had
// said, for good, and it is vouched for once it has everything committed.
func TestReadmission(t *testing.T) {
	l, _, set, view := led(t, 3)
	l.Synced(20)
	view.Written = 20
	other := Replica{Node: set[1].Node, Disk: 77, Copy: 78}
	get(t, l, Fetch{From: other, Epoch: 5}, view, 0)
	if _, _, err := l.Fetch(Fetch{From: set[1], Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0); !errors.Is(err, ErrNotReplica) {
		t.Fatalf("a late fetch of the lost copy: %v", err)
	}
	wantHWM(t, l, 11, "only the leader has more")
	if l.Readmissible(other) {
		t.Fatal("vouched for with an empty log")
	}
	get(t, l, Fetch{From: set[2], Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0)
	wantHWM(t, l, 20, "two of three without the lost one")
	get(t, l, Fetch{From: other, Epoch: 5, Offset: 19, LastEpoch: 5}, view, 0)
	if l.Readmissible(other) {
		t.Fatal("vouched for below the HWM")
	}
	get(t, l, Fetch{From: other, Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0)
	v := l.Vouch(func(int64) bool { return true })
	if !slices.Equal(v.Readmissible, []Replica{other}) || len(v.Near) != 0 {
		t.Fatalf("%+v", v)
	}
	to := []Replica{set[0], other, set[2]}
	next, err := NextSet(Set{Version: 1, Replicas: set}, Leadership{5, "s1"}, to, v)
	if err != nil || next.Before != nil || next.Version != 2 {
		t.Fatalf("%+v, %v", next, err)
	}
	if _, err := l.Apply(Config{Version: 2, Replicas: to}, 20); err != nil || !l.HasAll(other) {
		t.Fatalf("%v: what the copy had fetched counts now", err)
	}
	inherited, err := Lead(fenced(t, set[0], set, 6), Config{Replicas: set}, 6, Log{LEO: 20, HWM: 11, LastEpoch: 5})
	if err != nil {
		t.Fatal(err)
	}
	view.History = append(view.History, EpochStart{6, 20})
	get(t, inherited, Fetch{From: other, Epoch: 6, Offset: 20, LastEpoch: 5}, view, 0)
	if inherited.Readmissible(other) {
		t.Fatal("vouched for by an inherited HWM")
	}
}

// What a copy said before the metastore named another one in its place may arrive
// after that, from a process that is gone: it counts for nothing, and the new copy
// counts all the same.
func TestLateFetchOfASupersededCopy(t *testing.T) {
	l, _, set, view := led(t, 3)
	other := Replica{Node: set[1].Node, Disk: 77, Copy: 78}
	get(t, l, Fetch{From: other, Epoch: 5, Offset: 11, LastEpoch: 5}, view, 0)
	to := []Replica{set[0], other, set[2]}
	if _, err := l.Apply(Config{Version: 2, Replicas: to}, 11); err != nil {
		t.Fatal(err)
	}
	late := Fetch{From: set[1], Epoch: 5, Offset: 11, LastEpoch: 5}
	if _, _, err := l.Fetch(late, view, 0); !errors.Is(err, ErrNotReplica) {
		t.Fatalf("it is taken for a copy in the place of the new one: %v", err)
	}
	l.Synced(20)
	view.Written = 20
	get(t, l, Fetch{From: other, Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0)
	wantHWM(t, l, 20, "the new copy has it")
	third := Replica{Node: set[1].Node, Disk: 77, Copy: 79} // it is lost in turn
	get(t, l, Fetch{From: third, Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0)
	if _, _, err := l.Fetch(Fetch{From: other, Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0); !errors.Is(err, ErrNotReplica) {
		t.Fatalf("a late fetch of the lost copy: %v", err)
	}
	// A change that is taken back names a copy again that was there before.
	if _, err := l.Apply(Config{Version: 3, Replicas: []Replica{set[0], set[2]}}, 20); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Apply(Config{Version: 4, Replicas: []Replica{set[0], other, set[2]}}, 20); err != nil {
		t.Fatal(err)
	}
	get(t, l, Fetch{From: other, Epoch: 5, Offset: 20, LastEpoch: 5}, view, 0)
	if _, _, err := l.Fetch(late, view, 0); !errors.Is(err, ErrNotReplica) {
		t.Fatalf("the first of all: %v", err)
	}
}

// A copy has nothing above the place that it fetches from, unless it says so, or its
// log is not the leader's.
func TestPlaced(t *testing.T) {
	placed := func(l *Leader) bool { return l.Progress()[1].Placed }
	l, _, set, view := led(t, 3)
	at := Fetch{From: set[1], Epoch: 5, Offset: 10, LastEpoch: 4}
	unheard, err := Lead(fenced(t, set[0], set, 6), Config{Version: 1, Replicas: set}, 6, Log{LEO: 11, HWM: 11, LastEpoch: 5})
	if err != nil || placed(unheard) {
		t.Fatalf("one that was not heard is placed, %v", err)
	}
	if !placed(l) {
		t.Fatal("one that fetched is not")
	}
	at.More = true
	if get(t, l, at, view, 0); placed(l) {
		t.Error("one that is damaged there is placed")
	}
	at.More = false
	if get(t, l, at, view, 0); !placed(l) {
		t.Error("one that was repaired is not")
	}
	if a := get(t, l, Fetch{From: set[1], Epoch: 5, Offset: 12, LastEpoch: 4}, view, 0); a.Kind != Diverged || placed(l) {
		t.Errorf("one that diverged is placed: %+v", a)
	}
}

// Observers fetch, and never count, whatever they have.
func TestObserversNeverCount(t *testing.T) {
	l, _, set, view := led(t, 3)
	if _, err := l.Apply(Config{Version: 2, Replicas: set, Observers: []string{"s8", "s9"}}, 11); err != nil {
		t.Fatal(err)
	}
	l.Synced(15)
	view.Written = 15
	for _, name := range []string{"s8", "s9"} {
		get(t, l, Fetch{From: Replica{Node: name, Copy: 1}, Epoch: 5, Offset: 15, LastEpoch: 5}, view, 0)
	}
	wantHWM(t, l, 11, "two observers have everything")
	if v := l.Vouch(func(end int64) bool { return end >= 15 }); len(v.Near) != 2 {
		t.Fatalf("%+v", v)
	}
}

func TestNextSet(t *testing.T) {
	set := replicas(4)
	one, two, three := set[:1], set[:2], set[:3]
	vouch := Vouch{Epoch: 7, Version: 3, Settled: true, Near: []Replica{set[3]}}
	unsettled := vouch
	unsettled.Settled = false
	lead := Leadership{7, "s1"}
	for name, c := range map[string]struct {
		now  Set
		lead Leadership
		to   []Replica
		v    Vouch
		want error
	}{
		"add":                        {Set{Version: 3, Replicas: three}, lead, set, vouch, nil},
		"add from afar":              {Set{Version: 3, Replicas: three}, lead, set, Vouch{Epoch: 7, Version: 3, Settled: true}, ErrNotCaughtUp},
		"add, not settled":           {Set{Version: 3, Replicas: three}, lead, set, unsettled, ErrNotSettled},
		"vouched in an older epoch":  {Set{Version: 3, Replicas: three}, Leadership{8, "s1"}, set, vouch, ErrNotSettled},
		"vouched for an old version": {Set{Version: 4, Replicas: three}, lead, set, vouch, ErrNotSettled},
		"no leader":                  {Set{Version: 3, Replicas: three}, Leadership{Epoch: 7}, set, vouch, ErrNotSettled},
		"take away":                  {Set{Version: 3, Replicas: three}, lead, two, vouch, nil},
		"take the leader away":       {Set{Version: 3, Replicas: three}, Leadership{7, "s3"}, two, vouch, ErrInvalidChange},
		"two at once":                {Set{Version: 3, Replicas: three}, lead, one, vouch, ErrInvalidChange},
		"one for another":            {Set{Version: 3, Replicas: three}, lead, []Replica{set[0], set[1], set[3]}, vouch, ErrInvalidChange},
		"nothing":                    {Set{Version: 3, Replicas: three}, lead, three, vouch, ErrInvalidChange},
		"to none":                    {Set{Version: 3, Replicas: one}, lead, nil, vouch, ErrInvalidSet},
		"taken back, nobody asked":   {Set{Version: 3, Replicas: two, Before: one}, Leadership{Epoch: 7}, one, Vouch{}, nil},
		"taken back, it leads":       {Set{Version: 3, Replicas: two, Before: one, Since: 6}, Leadership{7, "s2"}, one, Vouch{}, nil},
		"back, but not to before":    {Set{Version: 3, Replicas: three, Before: []Replica{set[0], set[2]}}, Leadership{Epoch: 7}, two, Vouch{}, ErrNotSettled},
		"added again":                {Set{Version: 3, Replicas: three, Before: set}, lead, set, vouch, nil},
		"added again, other order":   {Set{Version: 3, Replicas: one, Before: two}, lead, []Replica{set[1], set[0]}, Vouch{Epoch: 7, Version: 3, Settled: true, Near: []Replica{set[1]}}, nil},
		"added again from afar":      {Set{Version: 3, Replicas: one, Before: two}, lead, two, Vouch{Epoch: 7, Version: 3, Settled: true}, ErrNotCaughtUp},
		"added again, not settled":   {Set{Version: 3, Replicas: three, Before: set}, lead, set, unsettled, ErrNotSettled},
		"added again, nobody asked":  {Set{Version: 3, Replicas: one, Before: two}, Leadership{Epoch: 7}, two, Vouch{}, ErrNotSettled},
		"two to the old leader":      {Set{Version: 3, Replicas: two, Since: 7}, Leadership{7, "s1"}, one, Vouch{}, ErrNotSettled},
		"two to the later leader":    {Set{Version: 3, Replicas: two, Since: 6}, Leadership{7, "s1"}, one, Vouch{}, nil},
		"two to the other one":       {Set{Version: 3, Replicas: two, Since: 6}, Leadership{7, "s2"}, one, Vouch{}, ErrNotSettled},
		"a copy nobody vouched for":  {Set{Version: 3, Replicas: two}, lead, []Replica{set[0], {Node: "s2", Disk: 9}}, vouch, ErrNotCaughtUp},
		"its first copy id":          {Set{Version: 3, Replicas: two}, lead, []Replica{set[0], {Node: "s2", Disk: 2, Copy: 5}}, Vouch{}, nil},
	} {
		next, err := NextSet(c.now, c.lead, c.to, c.v)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err == nil && (next.Version != 4 || next.Since != c.lead.Epoch || !slices.Equal(next.Replicas, c.to)) {
			t.Errorf("%s: %+v", name, next)
		}
	}
}

func TestJudgeCopy(t *testing.T) {
	recorded := Replica{Node: "s1", Disk: 1, Copy: 2}
	whole := Found{Disk: 1, Directory: true, Copy: 2, FenceValid: true, LEO: 5, HWM: 5}
	with := func(change func(*Found)) Found { f := whole; change(&f); return f }
	for name, c := range map[string]struct {
		found    Found
		recorded Replica
		alone    bool
		want     Verdict
	}{
		"whole":                  {whole, recorded, false, Whole},
		"no directory":           {Found{Disk: 1}, recorded, false, Lost},
		"another disk":           {Found{Disk: 9}, recorded, false, Lost},
		"copied on another disk": {with(func(f *Found) { f.Disk, f.Copy = 9, 3 }), recorded, false, Waiting},
		"no fence":               {with(func(f *Found) { f.FenceValid = false }), recorded, false, Lost},
		"below its HWM":          {with(func(f *Found) { f.LEO = 4 }), recorded, false, Lost},
		"alone below its HWM":    {with(func(f *Found) { f.LEO = 4 }), recorded, true, Whole},
		"alone, never recorded":  {with(func(f *Found) { f.LEO = 4 }), Replica{Node: "s1", Disk: 1}, true, Unopened},
		"alone, another copy":    {with(func(f *Found) { f.LEO, f.Copy = 4, 3 }), recorded, true, Lost},
		"another copy":           {with(func(f *Found) { f.Copy = 3 }), recorded, false, Waiting},
		"never opened":           {Found{Disk: 1}, Replica{Node: "s1", Disk: 1}, false, Unopened},
		"opened, not recorded":   {whole, Replica{Node: "s1", Disk: topic.ID64(1)}, false, Unopened},
		"an observer, new":       {Found{Disk: 1}, Replica{}, false, Lost},
		"an observer":            {whole, Replica{}, false, Waiting},
	} {
		if got := JudgeCopy(c.found, c.recorded, c.alone); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
