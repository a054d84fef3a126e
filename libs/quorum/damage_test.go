package quorum

import (
	"errors"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// damaged is the answer of a copy that cannot read all that it has.
func damaged(a FenceAnswer) FenceAnswer {
	a.Damaged = true
	return a
}

// settled is the answer of a copy that led up to epoch, in this process, and counted
// up to hwm.
func settled(a FenceAnswer, epoch topic.Epoch, hwm int64) FenceAnswer {
	a.Settled, a.HWM = epoch, hwm
	return a
}

// A damaged copy promises, and tells what others may have committed; it is never
// chosen, and nobody is who may lack what it vouched for.
func TestElectBesideDamage(t *testing.T) {
	two, three, five := replicas(2), replicas(3), replicas(5)
	for name, c := range map[string]struct {
		set     []Replica
		answers []FenceAnswer
		want    Replica
		err     error
	}{
		"a pair with equal logs":                     {two, []FenceAnswer{damaged(answer(two[0], 9, 3, 100)), answer(two[1], 9, 3, 100)}, two[1], nil},
		"a pair, the healthy one is ahead":           {two, []FenceAnswer{damaged(answer(two[0], 9, 3, 100)), answer(two[1], 9, 4, 90)}, two[1], nil},
		"a pair, it may have committed alone":        {two, []FenceAnswer{damaged(answer(two[0], 9, 3, 100)), answer(two[1], 9, 3, 99)}, Replica{}, ErrOnlyDamaged},
		"a pair, one promise":                        {two, []FenceAnswer{answer(two[1], 9, 3, 100)}, Replica{}, ErrNoMajority},
		"both of a pair":                             {two, []FenceAnswer{damaged(answer(two[0], 9, 3, 100)), damaged(answer(two[1], 9, 3, 100))}, Replica{}, ErrOnlyDamaged},
		"the leader's tail was not committed":        {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 3, 95), answer(two[1], 9, 3, 95)}, two[1], nil},
		"the leader's tail was":                      {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 3, 96), answer(two[1], 9, 3, 95)}, Replica{}, ErrOnlyDamaged},
		"an idle leader of a later epoch":            {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 5, 95), answer(two[1], 9, 3, 95)}, two[1], nil},
		"the leader of an earlier epoch":             {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 2, 10), answer(two[1], 9, 3, 95)}, Replica{}, ErrOnlyDamaged},
		"a leader that never served":                 {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 0, 10), answer(two[1], 9, 3, 95)}, Replica{}, ErrOnlyDamaged},
		"another history of that length":             {two, []FenceAnswer{settled(damaged(answer(two[0], 9, 3, 100)), 3, 95), answer(two[1], 9, 2, 95)}, Replica{}, ErrOnlyDamaged},
		"of three, one behind":                       {three, []FenceAnswer{damaged(answer(three[0], 9, 3, 100)), answer(three[1], 9, 3, 60)}, Replica{}, ErrOnlyDamaged},
		"of three, another answer came":              {three, []FenceAnswer{damaged(answer(three[0], 9, 3, 100)), answer(three[1], 9, 3, 60), answer(three[2], 9, 3, 80)}, three[2], nil},
		"of three, the other is the largest":         {three, []FenceAnswer{damaged(answer(three[0], 9, 3, 100)), answer(three[1], 9, 3, 60), answer(three[2], 9, 4, 80)}, three[2], nil},
		"of three, a later leader than the one":      {three, []FenceAnswer{settled(answer(three[0], 9, 3, 100), 3, 50), answer(three[1], 9, 3, 60), damaged(answer(three[2], 9, 4, 70))}, three[0], nil},
		"of three, its word is outdated":             {three, []FenceAnswer{settled(damaged(answer(three[0], 9, 3, 100)), 3, 50), damaged(answer(three[2], 9, 4, 70)), answer(three[1], 9, 3, 60)}, Replica{}, ErrOnlyDamaged},
		"of five, the largest of three":              {five, []FenceAnswer{damaged(answer(five[0], 9, 3, 100)), answer(five[1], 9, 3, 60), answer(five[2], 9, 3, 70), answer(five[3], 9, 3, 80)}, five[3], nil},
		"of five, the largest of two":                {five, []FenceAnswer{damaged(answer(five[0], 9, 3, 100)), answer(five[1], 9, 3, 60), answer(five[2], 9, 3, 70)}, Replica{}, ErrOnlyDamaged},
		"damage was found between its two answers":   {two, []FenceAnswer{answer(two[0], 9, 3, 100), damaged(answer(two[0], 9, 3, 100)), answer(two[1], 9, 3, 100)}, two[1], nil},
		"damage was found, and it is ahead":          {two, []FenceAnswer{answer(two[0], 9, 3, 100), damaged(answer(two[0], 9, 3, 100)), answer(two[1], 9, 3, 99)}, Replica{}, ErrOnlyDamaged},
		"damage below a larger answer of the copy":   {two, []FenceAnswer{damaged(answer(two[0], 9, 3, 100)), answer(two[0], 9, 3, 110), answer(two[1], 9, 3, 110)}, two[1], nil},
		"the wanted one is damaged":                  {three, []FenceAnswer{answer(three[0], 9, 3, 100), damaged(answer(three[1], 9, 3, 100))}, three[0], nil},
		"a healthy one that may lead is not outdone": {three, []FenceAnswer{settled(damaged(answer(three[0], 9, 3, 100)), 3, 50), answer(three[1], 9, 3, 60), answer(three[2], 9, 3, 70)}, three[2], nil},
	} {
		out, err := Elect(9, c.answers, c.set, c.set[1])
		if !errors.Is(err, c.err) || out.Leader != c.want {
			t.Errorf("%s: %v, %v", name, out.Leader, err)
		}
	}
}

// A leader's word about its HWM counts from when that covers everything committed,
// and the promise makes it final.
func TestWordOfTheLastLeader(t *testing.T) {
	set := replicas(2)
	fence := fenced(t, set[0], set, 4)
	l, err := Lead(fence, Config{Replicas: set}, 4, Log{LEO: 10, HWM: 5, LastEpoch: 3})
	if err != nil {
		t.Fatal(err)
	}
	history := []EpochStart{{3, 0}, {4, 10}}
	ask := func(epoch topic.Epoch) FenceAnswer {
		t.Helper()
		if err := fence.Promise(epoch, Leadership{Epoch: epoch}); err != nil {
			t.Fatal(err)
		}
		fence.Stored(epoch)
		a, err := fence.Answer(epoch, history, l.LEO(), l.HWM(), 0)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	l.Synced(12)
	if _, err := l.Fetched(set[1], 4, 10); err != nil {
		t.Fatal(err)
	}
	if fence.settled != 0 {
		t.Errorf("an inherited HWM is a leader's word for %d", fence.settled)
	}
	if _, err := l.Fetched(set[1], 4, 11); err != nil {
		t.Fatal(err)
	}
	if a := ask(5); a.Settled != 4 || a.HWM != 11 {
		t.Errorf("it answers %+v", a)
	}
	if moved, err := l.Fetched(set[1], 4, 12); moved || err == nil {
		t.Errorf("it counts after its promise: %v", err)
	}
	lone := NewFence(set[0], 0)
	if _, err := Lead(lone, Config{Replicas: set[:1]}, 6, Log{LEO: 7, HWM: 7, LastEpoch: 3}); err != nil || lone.settled != 6 {
		t.Errorf("a lone copy without a tail knows what is committed: %d, %v", lone.settled, err)
	}
	if _, err := Lead(lone, Config{Replicas: set[:1]}, 7, Log{LEO: 9, HWM: 7, LastEpoch: 6}); err != nil || lone.settled != 6 {
		t.Errorf("one with a tail does not yet: %d, %v", lone.settled, err)
	}
}
