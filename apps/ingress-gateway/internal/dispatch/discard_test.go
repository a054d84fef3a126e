package dispatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/wal"
)

// verdicts is a metastore leader that was told what to say; what it was not told
// about is unknown.
type verdicts struct {
	mu    sync.Mutex
	says  map[topic.Incarnation]metaapi.Verdict
	err   error
	asked int
}

func (v *verdicts) confirm(_ context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked++
	out := map[topic.Incarnation]metaapi.Verdict{}
	for _, id := range ids {
		out[id] = metaapi.VerdictUnknown
		if say := v.says[id]; say != "" {
			out[id] = say
		}
	}
	return out, v.err
}

func (v *verdicts) set(err error, says map[topic.Incarnation]metaapi.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err, v.says = err, says
}

func (v *verdicts) questions() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked
}

// counter reads a metric of the dispatcher without labels.
func (f *fixture) counter(name string) float64 {
	f.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == name {
			return m.GetMetric()[0].GetCounter().GetValue()
		}
	}
	f.Fatalf("no metric %s", name)
	return 0
}

// discards waits until that many records are counted as given up, which they are a moment
// after they were counted off the logs.
func (f *fixture) discards(n float64) {
	f.Helper()
	testkit.Poll(f, testkit.Patience, fmt.Sprintf("%v records are discarded", n), func() bool { return f.counter("narad_dispatch_discarded_total") >= n })
	if got := f.counter("narad_dispatch_discarded_total"); got != n {
		f.Errorf("%v counted as discarded, want %v", got, n)
	}
}

// held waits until that many records are held.
func (f *fixture) held(n int64) {
	f.Helper()
	testkit.Poll(f, testkit.Patience, fmt.Sprintf("%d records are held", n), func() bool { return f.d.stats.Load().Held == n })
}

// TestCrashRecoveryBug3DispatcherTrustsLocalAbsence is the seed's third bug ("the
// dispatcher trusted a topic's local absence"): this replica was restored from a
// snapshot, so a topic that was created after it reads as deleted, and its records
// had their 202. Nothing is discarded while the replica is behind, nor when the
// leader calls the topic live, or unknown, or does not answer; when the replica has
// the topic again, every record is dispatched.
func TestCrashRecoveryBug3DispatcherTrustsLocalAbsence(t *testing.T) {
	gone := map[topic.Incarnation]metaapi.Verdict{7: metaapi.VerdictGone}
	for name, c := range map[string]struct {
		behind bool
		err    error
		says   map[topic.Incarnation]metaapi.Verdict
	}{
		"restored and behind":         {true, nil, gone}, // not even asked
		"the leader calls it live":    {false, nil, map[topic.Incarnation]metaapi.Verdict{7: metaapi.VerdictLive}},
		"the leader does not know it": {false, nil, nil},
		"a word that nobody knows":    {false, nil, map[topic.Incarnation]metaapi.Verdict{7: "removed"}},
		"no leader answers":           {false, errors.New("no leader"), nil},
		"another topic is gone":       {false, nil, map[topic.Incarnation]metaapi.Verdict{6: metaapi.VerdictGone}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.stop()
			f.cfg.ConfirmAgain = time.Millisecond
			f.behind.Store(c.behind)
			f.verdicts.set(c.err, c.says)
			f.meta.DeleteTopic("a") // what the snapshot shows
			f.start()
			f.append("a", 7, 0, numbered(1, 100)...)
			f.append("a", 7, 1, numbered(101, 200)...)
			f.held(200)
			asked := f.verdicts.questions()
			if c.behind {
				stats := f.d.stats.Load()
				testkit.Poll(t, testkit.Patience, "two more looks", func() bool { s := f.d.stats.Load(); ok := s != stats; stats = s; return ok })
				if n := f.verdicts.questions(); n != 0 {
					t.Errorf("a replica that is behind asked %d times", n)
				}
			} else {
				testkit.Poll(t, testkit.Patience, "it asked twice", func() bool { return f.verdicts.questions() >= asked+2 })
			}
			if left, n := f.d.Left(), f.counter("narad_dispatch_discarded_total"); left != 200 || n != 0 {
				t.Fatalf("%d left, %v discarded", left, n)
			}
			f.put("a", 7, "n1") // caught up
			f.empty()
			if got := len(f.store.all()); got != 200 {
				t.Fatalf("%d of 200 dispatched", got)
			}
		})
	}
}

// TestConfirmedEndDiscards: what is in the WAL and what was parked, each record
// counted once; records of the next life and of other topics are dispatched before
// and after, also behind 10,000 that are held.
func TestConfirmedEndDiscards(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ParkAfter, f.cfg.ReparkAfter, f.cfg.ConfirmAgain = 50*time.Millisecond, 20*time.Millisecond, time.Millisecond
	f.verdicts.set(errors.New("no leader"), nil)
	f.put("b", 3, "")
	f.start()
	f.append("a", 6, 0, numbered(1, 50)...) // the life before
	f.append("b", 3, 1, "waits for a leader")
	for range 20 {
		f.append("gone", 9, 0, numbered(1, 500)...)
	}
	f.append("a", 7, 0, "x")
	testkit.Poll(t, testkit.Patience, "the record behind them is dispatched", func() bool { return len(f.store.all()) == 1 })
	testkit.Poll(t, testkit.Patience, "they are parked", func() bool { return f.d.parked.left() == 10_051 })
	f.append("gone", 9, 0, numbered(1, 7)...)
	f.verdicts.set(nil, map[topic.Incarnation]metaapi.Verdict{9: metaapi.VerdictGone, 6: metaapi.VerdictGone, 3: metaapi.VerdictLive})
	testkit.Poll(t, testkit.Patience, "all but the live one are discarded", func() bool { return f.d.Left() == 1 })
	f.discards(10_057)
	testkit.Poll(t, testkit.Patience, "their logs are removed", func() bool {
		left, err := wal.ListParked(f.fs, "wal")
		return err == nil && len(left) == 1 && left[0].Incarnation == 3
	})
	f.append("a", 7, 0, "y")
	f.put("b", 3, "n1")
	f.empty()
	if got := f.payloads(); len(got) != 3 {
		t.Errorf("dispatched %v", got)
	}
	testkit.Poll(t, testkit.Patience, "nothing is remembered of them", func() bool {
		f.d.parked.mu.Lock()
		defer f.d.parked.mu.Unlock()
		for q := range f.d.parked.logs {
			if q.Incarnation == 9 || q.Incarnation == 6 {
				return false
			}
		}
		return true
	})
}

// TestParkedRecordsOfADeadLifeAfterARestart: they are held again, and discarded
// when their end is confirmed to this process; nothing is remembered from before.
func TestParkedRecordsOfADeadLifeAfterARestart(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ParkAfter = 20 * time.Millisecond
	f.cfg.ConfirmAgain = time.Millisecond
	f.start()
	f.append("gone", 9, 0, numbered(1, 100)...)
	testkit.Poll(t, testkit.Patience, "they are parked", func() bool { return f.d.parked.left() == 100 })
	f.stop()
	f.space.bytes = 0
	f.start()
	f.append("gone", 9, 0, "late")
	testkit.Poll(t, testkit.Patience, "all that lay here is read", f.d.Recovered)
	if f.d.parked.left() != 100 {
		t.Error("it says so before parked logs are")
	}
	f.held(101)
	f.verdicts.set(nil, map[topic.Incarnation]metaapi.Verdict{9: metaapi.VerdictGone})
	f.empty()
	if f.discards(101); len(f.store.all()) != 0 {
		t.Errorf("dispatched %v", f.payloads())
	}
	f.stop()
	f.start()
	f.empty()
	testkit.Poll(t, testkit.Patience, "a gateway that has nothing says that all is read", f.d.Recovered)
	if n := f.counter("narad_dispatch_discarded_total"); n != 0 {
		t.Errorf("%v discarded again after a restart", n)
	}
}

// TestRefusedBatchOfAnEndedLife: the leader knew of the end first; the record is
// kept while this replica shows the topic, whatever the verdict would be.
func TestRefusedBatchOfAnEndedLife(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ConfirmAgain = time.Millisecond
	f.verdicts.set(nil, map[topic.Incarnation]metaapi.Verdict{7: metaapi.VerdictGone})
	f.start()
	f.store.set(func(*nodeapi.CommitRequest) error { return problem.New(problem.IncarnationMismatch, "no") })
	f.append("a", 7, 0, "x")
	f.held(1)
	if n := f.verdicts.questions(); n != 0 {
		t.Errorf("%d questions about a topic that the view shows", n)
	}
	f.meta.DeleteTopic("a")
	f.empty()
	f.discards(1)
}
