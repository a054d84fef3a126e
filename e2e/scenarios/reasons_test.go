//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// watchEvery is between looks at who leads.
	watchEvery = 50 * time.Millisecond
	// onTheWay is how much later than it was leased a delivery may be booked, and how
	// much later than it was made a change of the leader may be seen, on a machine
	// that does ten things at once.
	onTheWay = 2 * time.Second
	// ackLoss is how old an ack may be that a crash takes with it: positions travel
	// every 100 ms, and on such a machine later.
	ackLoss = 2 * time.Second
)

// watch records what README's list of reasons for a duplicate names, as it happens:
// changes of a partition's leader, and storage nodes that died or stood still.
type watch struct {
	stop func()

	mu      sync.Mutex // guards all below
	changes map[string][]leaderChange
	crashes []crash
}

// leaderChange is a new epoch of a partition, seen between two looks.
type leaderChange struct {
	after, before time.Time
	old, next     string
}

// crash is a storage node that was killed, or frozen until it was thawed.
type crash struct {
	node     string
	at, till time.Time
}

// startWatch looks at who leads the partitions of topics until end is called.
func startWatch(ctx context.Context, t *testing.T, cl *client.Client, topics ...string) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{changes: map[string][]leaderChange{}}
	var looks sync.WaitGroup
	w.stop = func() { cancel(); looks.Wait() }
	t.Cleanup(w.stop)
	for _, name := range topics {
		looks.Go(func() { w.look(ctx, cl, name) })
	}
	return w
}

func (w *watch) end() { w.stop() }

type reign struct {
	epoch  uint64
	leader string
	at     time.Time // of the look, when it began
}

func (w *watch) look(ctx context.Context, cl *client.Client, name string) {
	known := map[uint32]reign{}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		d, err := cl.Topic(ctx, name)
		if err != nil {
			continue
		}
		for _, p := range d.PartitionDetails {
			if p.Leader == nil || p.LeaderEpoch == nil {
				continue
			}
			was, ok := known[p.Index]
			if ok && was.epoch != *p.LeaderEpoch {
				w.mu.Lock()
				key := fmt.Sprintf("%s/%d", name, p.Index)
				w.changes[key] = append(w.changes[key], leaderChange{was.at, time.Now(), was.leader, *p.Leader})
				w.mu.Unlock()
			}
			known[p.Index] = reign{*p.LeaderEpoch, *p.Leader, began}
		}
	}
}

// crashed notes that a node dies now, or stands still until the function that it
// returns is called.
func (w *watch) crashed(node string) (over func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := len(w.crashes)
	w.crashes = append(w.crashes, crash{node: node, at: time.Now(), till: time.Now()})
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.crashes[i].till = time.Now()
	}
}

func (w *watch) hasCrashed(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.crashes, func(c crash) bool { return c.node == node })
}

// judge lets the ledger of a topic judge; every duplicate needs its reason.
func (w *watch) judge(t *testing.T, name string, l *harness.Ledger) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	l.JudgeRepeats(t, func(r harness.Repeat) string { return w.reasonLocked(name, r) })
	for key, list := range w.changes {
		if len(list) > 0 && key[:len(key)-len(fmt.Sprint("/", 0))] == name {
			t.Logf("%s: %d changes of the leader were seen", key, len(list))
		}
	}
}

// reason is why a message came again; "": for none that it knows.
func (w *watch) reason(name string, r harness.Repeat) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.reasonLocked(name, r)
}

// reasonLocked is reason.
func (w *watch) reasonLocked(name string, r harness.Repeat) string {
	if r.From != r.In {
		for _, c := range w.crashes {
			if c.at.Before(r.At) {
				return "rerouted around a node that died"
			}
		}
		return ""
	}
	for _, c := range w.changes[fmt.Sprintf("%s/%d", name, r.In)] {
		// The gateway that is asked who leads may hear of a change after the one through
		// which the message came again.
		if c.before.Before(r.Before.Add(-onTheWay)) || c.after.After(r.At.Add(onTheWay)) {
			continue // it came both times under one leader
		}
		if r.Acked.IsZero() || r.Acked.After(r.At) || r.Acked.After(c.after.Add(-onTheWay/4)) {
			return "leased when the leader changed"
		}
		for _, k := range w.crashes {
			if k.node == c.old && r.Acked.After(k.at.Add(-ackLoss)) && k.at.Before(c.before) {
				return "acked just before the leader crashed"
			}
		}
	}
	return ""
}

// TestReasonsOfDuplicates: what is a reason, and what is none.
func TestReasonsOfDuplicates(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	w := &watch{
		changes: map[string][]leaderChange{"t/0": {{after: at(10), before: at(10.2), old: "s1", next: "s2"}}},
		crashes: []crash{{"s1", at(9.9), at(9.9)}},
	}
	calm := &watch{changes: w.changes}
	for name, c := range map[string]struct {
		watch *watch
		topic string
		r     harness.Repeat
		want  string
	}{
		"never acked":                 {calm, "t", harness.Repeat{Before: at(9), At: at(11)}, "leased when the leader changed"},
		"acked after the change":      {calm, "t", harness.Repeat{Before: at(9), At: at(11), Acked: at(10.5)}, "leased when the leader changed"},
		"acked before the change":     {calm, "t", harness.Repeat{Before: at(8), At: at(11), Acked: at(8.1)}, ""},
		"acked just before a crash":   {w, "t", harness.Repeat{Before: at(8), At: at(11), Acked: at(8.1)}, "acked just before the leader crashed"},
		"acked long before the crash": {w, "t", harness.Repeat{Before: at(8), At: at(11), Acked: at(7)}, ""},
		"both times under one leader": {w, "t", harness.Repeat{Before: at(13), At: at(14)}, ""},
		"before any change":           {w, "t", harness.Repeat{Before: at(6), At: at(7.9)}, ""},
		"the change was seen late":    {calm, "t", harness.Repeat{Before: at(8), At: at(9), Acked: at(9.1)}, "leased when the leader changed"},
		"of another topic":            {w, "u", harness.Repeat{Before: at(9), At: at(11)}, ""},
		"from another partition":      {calm, "t", harness.Repeat{Before: at(9), At: at(11), In: 1}, ""},
		"from another one, crashed":   {w, "t", harness.Repeat{Before: at(9), At: at(11), In: 1}, "rerouted around a node that died"},
	} {
		if got := c.watch.reasonLocked(c.topic, c.r); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
