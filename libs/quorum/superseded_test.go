package quorum

import (
	"math/rand/v2"
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// line is a log, offset by offset: the epoch of each record. One epoch has one
// leader, so logs that agree in an offset and its epoch agree in everything below.
type line []topic.Epoch

func (l line) history() (out []EpochStart) {
	for i, e := range l {
		if i == 0 || e != l[i-1] {
			out = append(out, EpochStart{Epoch: e, Start: int64(i)})
		}
	}
	return out
}

// Of all logs that leaders can have made, one after the other, from any part of any
// earlier one: a leader holds a copy exactly when each record of the copy stands,
// with its epoch, below the leader's high watermark.
func TestHoldsExactlyWhatStandsThere(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 5))
	held, not := 0, 0
	for range 20_000 {
		lines := []line{nil}
		for e := topic.Epoch(1); e <= topic.Epoch(2+rng.IntN(5)); e++ {
			from := lines[rng.IntN(len(lines))]
			next := append(line(nil), from[:rng.IntN(len(from)+1)]...)
			for range 1 + rng.IntN(4) {
				next = append(next, e)
			}
			lines = append(lines, next)
		}
		leader := lines[1+rng.IntN(len(lines)-1)]
		start := 0 // of the last epoch: a record of it is committed
		for i, e := range leader {
			if e != leader[len(leader)-1] {
				start = i + 1
			}
		}
		hwm := start + 1 + rng.IntN(len(leader)-start)
		of := lines[rng.IntN(len(lines))]
		old := of[:rng.IntN(len(of)+1)]
		want := len(old) <= hwm
		for i := range min(len(old), len(leader)) {
			want = want && old[i] == leader[i]
		}
		if got := Holds(leader.history(), int64(hwm), old.history(), int64(len(old))); got != want {
			t.Fatalf("leader %v below %d, copy %v: holds %v, want %v", leader, hwm, old, got, want)
		}
		if want {
			held++
		} else {
			not++
		}
	}
	if held < 1000 || not < 1000 {
		t.Errorf("%d held, %d not: the draws prove nothing", held, not)
	}
}

func TestHoldsCases(t *testing.T) {
	for name, c := range map[string]struct {
		history []EpochStart
		hwm     int64
		copied  []EpochStart
		end     int64
		want    bool
	}{
		"nothing was in it":               {[]EpochStart{{5, 40}}, 50, nil, 0, true},
		"the same":                        {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 0}, {5, 40}}, 50, true},
		"its end is the end of an epoch":  {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 0}}, 40, true},
		"one more of an epoch":            {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 0}}, 41, false},
		"the leader is behind":            {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 0}, {5, 40}}, 51, false},
		"an epoch the leader never saw":   {[]EpochStart{{1, 0}, {5, 40}}, 900, []EpochStart{{1, 0}, {3, 30}}, 35, false},
		"an epoch above the leader's":     {[]EpochStart{{1, 0}, {5, 40}}, 900, []EpochStart{{1, 0}, {6, 40}}, 45, false},
		"retention left it":               {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 10}}, 40, true},
		"the leader forgot that epoch":    {[]EpochStart{{4, 30}, {5, 40}}, 50, []EpochStart{{1, 0}}, 20, false},
		"records, and no epoch is known":  {[]EpochStart{{4, 30}, {5, 40}}, 50, nil, 20, false},
		"an epoch that begins at the end": {[]EpochStart{{1, 0}, {5, 40}}, 50, []EpochStart{{1, 0}, {7, 40}}, 40, true},
		"the leader tells nothing":        {nil, 50, []EpochStart{{1, 0}}, 40, false},
	} {
		if got := Holds(c.history, c.hwm, c.copied, c.end); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
