package sweeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// named tells how entries ended, as "name outcome decided".
func named(r Report) (out []string) {
	for _, e := range r.Entries {
		out = append(out, fmt.Sprintf("%s %s %v", e.Name, e.outcome(), e.Decided))
	}
	return out
}

// TestReclaim: what is confirmed gone goes, and nothing else is ever asked for; the
// next pass finds nothing of it. A dry run asks for nothing.
func TestReclaim(t *testing.T) {
	s := &store{entries: []nodeapi.InventoryEntry{serving("a", liveID), serving("b", goneID), stale("a", goneID), stale("c", lostID)}}
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}
	if _, err := pass(t, v, nil); !errors.Is(err, ErrUndecided) || len(s.asked) != 0 {
		t.Fatalf("a dry run asked %+v, %v", s.asked, err)
	}
	report, err := clean(t, v, nil)
	want := "[topics/a keep true topics/b reclaimed true topics/a.stale-0000000000000022 reclaimed true topics/c.stale-0000000000000033 keep false]"
	if got := fmt.Sprint(named(report)); got != want || !errors.Is(err, ErrUndecided) {
		t.Errorf("%s, %v", got, err)
	}
	if report.DryRun || report.Summary != (Summary{Live: 1, Gone: 2, Unknown: 1, Undecided: 1, Reclaimed: 2, ReclaimedBytes: 14}) {
		t.Errorf("summary %+v", report.Summary)
	}
	for _, req := range s.asked {
		for _, item := range req.Items {
			if item.Incarnation != goneID || req.AllowLarge {
				t.Errorf("asked %+v", req)
			}
		}
	}
	s.entries = s.entries[:1]
	if report, err = clean(t, v, nil); err != nil || report.Summary != (Summary{Live: 1}) {
		t.Errorf("the next pass: %v, %+v", err, report.Summary)
	}
}

// TestReclaimIsNotBelieved: a node that refuses, of a release without the operation,
// or that keeps something, leaves it undecided with the reason; what is gone when the
// node looks again is no failure.
func TestReclaimIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		refuse  error
		outcome nodeapi.ReclaimStatus
		why     string
	}{
		"refused":          {problem.New(problem.NotReady, "catching up"), nodeapi.Kept, "not_ready: catching up"},
		"an older release": {problem.New(problem.RouteNotFound, "no operation of that name"), nodeapi.Kept, "cannot be told"},
		"renamed":          {nil, nodeapi.Absent, "somebody else"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &store{entries: []nodeapi.InventoryEntry{serving("b", goneID)}, refuse: c.refuse}
			s.listed = func() { // between its inventory and the request
				if c.refuse == nil {
					s.entries = nil
				}
			}
			report, err := clean(t, &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}, nil)
			e := report.Entries[0]
			if e.Outcome != c.outcome || e.Decided != (c.outcome == nodeapi.Absent) || !strings.Contains(e.Why, c.why) || (err == nil) != e.Decided {
				t.Errorf("%+v, %v", e, err)
			}
			if kept := report.Summary.Kept; kept == 1 != (c.outcome == nodeapi.Kept) || report.Summary.Reclaimed != 0 {
				t.Errorf("summary %+v", report.Summary)
			}
		})
	}
}

// TestReclaimGoesOnWhileItHelps: a node that stops in time to answer is asked again
// for the rest, and one that removes nothing is not.
func TestReclaimGoesOnWhileItHelps(t *testing.T) {
	s := &store{most: 2}
	for i := range 5 {
		s.entries = append(s.entries, serving(fmt.Sprint("t", i), goneID))
	}
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}
	report, err := clean(t, v, nil)
	if err != nil || report.Summary.Reclaimed != 5 || len(s.asked) != 3 {
		t.Fatalf("%v, %+v after %d calls", err, report.Summary, len(s.asked))
	}
	s.entries, s.asked, s.most = []nodeapi.InventoryEntry{serving("a", goneID)}, nil, 0
	s.listed = func() { s.entries[0].Incarnation = liveID } // recreated and opened meanwhile
	report, err = clean(t, v, nil)
	if !errors.Is(err, ErrUndecided) || len(s.asked) != 1 || report.Summary.Kept != 1 || len(s.entries) != 1 {
		t.Fatalf("%v, %+v after %d calls", err, report.Summary, len(s.asked))
	}
}

// TestLargePassWaitsForAnOperator: more than 100 directories that are more than a
// tenth are not even asked for, however the requests would be cut; --yes lets it run.
func TestLargePassWaitsForAnOperator(t *testing.T) {
	for _, c := range []struct {
		take, have int
		want       bool
	}{{100, 100, false}, {101, 1009, true}, {101, 1010, false}, {300, 3333, false}, {1200, 3000, true}} {
		if got := tooMany(c.take, c.have); got != c.want {
			t.Errorf("%d of %d: %v", c.take, c.have, got)
		}
	}
	s := &store{}
	for i := range 1200 {
		s.entries = append(s.entries, serving(fmt.Sprint("t", i), goneID))
	}
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}
	report, err := clean(t, v, nil)
	if !errors.Is(err, ErrUndecided) || len(s.asked) != 0 || report.Summary.Kept != 1200 || !strings.Contains(report.Entries[0].Why, nodeapi.ReasonLarge) {
		t.Fatalf("%v, %+v after %d calls", err, report.Summary, len(s.asked))
	}
	report, err = clean(t, v, func(r *Role) { r.cfg.Yes = true })
	if err != nil || report.Summary.Reclaimed != 1200 || !s.asked[0].AllowLarge || len(s.asked) != 1200/reclaimAtOnce {
		t.Fatalf("%v, %+v after %d calls", err, report.Summary, len(s.asked))
	}
}

// TestTwoAtOnce: each directory is reclaimed once, by either, and both passes are clean.
func TestTwoAtOnce(t *testing.T) {
	s := &store{}
	for i := range 50 {
		s.entries = append(s.entries, serving(fmt.Sprint("t", i), goneID), serving(fmt.Sprint("live", i), liveID))
	}
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}
	var reports [2]Report
	var errs [2]error
	var wg sync.WaitGroup
	for i := range reports {
		wg.Go(func() { reports[i], errs[i] = clean(t, v, func(r *Role) { r.page = 7 }) })
	}
	wg.Wait()
	if sum := reports[0].Summary.Reclaimed + reports[1].Summary.Reclaimed; sum != 50 || len(s.entries) != 50 {
		t.Errorf("%d reclaimed, %d left", sum, len(s.entries))
	}
	if err := errors.Join(errs[:]...); err != nil {
		t.Error(err)
	}
}

// TestTroubleDestroysNothing: no leader for confirms, or a pass that is over before
// the request, and no node is asked for anything.
func TestTroubleDestroysNothing(t *testing.T) {
	s := &store{entries: []nodeapi.InventoryEntry{serving("b", goneID)}}
	v := &voter{members: []topic.Member{serveStore(t, "storage-1", s)}}
	v.confirm = func(*metaapi.ConfirmRequest) (*metaapi.ConfirmResult, error) {
		return nil, problem.New(problem.NotReady, "elected just now")
	}
	if report, err := clean(t, v, nil); !errors.Is(err, ErrUndecided) || len(s.asked) != 0 || report.Summary.Undecided != 1 {
		t.Errorf("%v, asked %+v", err, s.asked)
	}
	ctx, over := context.WithCancel(t.Context())
	slow := &store{entries: s.entries, listed: over}
	v = &voter{members: []topic.Member{serveStore(t, "storage-1", slow)}}
	if _, err := passIn(ctx, t, v, func(r *Role) { r.cfg.DryRun = false }); !errors.Is(err, ErrUndecided) || len(slow.asked) != 0 {
		t.Errorf("%v, asked %+v", err, slow.asked)
	}
}
