package gateway

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// drainView is a replica with one member and a latch.
type drainView struct {
	metastate.View // nil: only what is below is asked
	self           *topic.Member
	latched        bool
}

func (v *drainView) Latched() bool { return v.latched }

func (v *drainView) Changed() <-chan struct{} { return nil }

func (v *drainView) Members() *metastate.MemberTable {
	t := &metastate.MemberTable{ByID: map[string]*topic.Member{}}
	if v.self != nil {
		t.ByID[v.self.ID] = v.self
	}
	return t
}

// seal is a log that can be sealed, and whose disk can fail.
type seal struct {
	sealed bool
	fail   error
}

func (s *seal) Seal() error {
	if s.fail == nil {
		s.sealed = true
	}
	return s.fail
}

func (s *seal) Unseal() error {
	if s.fail == nil {
		s.sealed = false
	}
	return s.fail
}

func (s *seal) Sealed() (refuses, saved bool) { return s.sealed, s.sealed }

func newDrainer(v *drainView, s *seal) *drainer {
	d := &drainer{
		id: "g1", disk: 7, nonce: 8, view: v, log: slog.New(slog.DiscardHandler),
		left: func() int64 { return 0 }, read: func() bool { return true }, heard: bus.NewHeard("g1"),
		asks: func(context.Context) (*metaapi.MemberDetailResult, error) {
			return &metaapi.MemberDetailResult{Draining: true}, nil
		},
	}
	if s != nil {
		d.wal = s
	}
	d.open()
	return d
}

func record(draining bool, nonce topic.ID64) *topic.Member {
	return &topic.Member{ID: "g1", DiskID: 7, BootNonce: nonce, Draining: draining}
}

func (d *drainer) drained(t *testing.T) *gatewayapi.DrainedResult {
	t.Helper()
	res, err := d.Drained(t.Context(), &gatewayapi.DrainedRequest{BootNonce: 8})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestDrainedNeedsAllOfIt: mark, seal, everything read and nothing left; each alone missing.
func TestDrainedNeedsAllOfIt(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*drainer, *drainView, *seal)
		want  bool
	}{
		"all of it":      {func(*drainer, *drainView, *seal) {}, true},
		"no mark":        {func(_ *drainer, v *drainView, _ *seal) { v.self = record(false, 8) }, false},
		"not sealed":     {func(_ *drainer, _ *drainView, s *seal) { s.sealed = false }, false},
		"a record":       {func(d *drainer, _ *drainView, _ *seal) { d.left = func() int64 { return 1 } }, false},
		"not read yet":   {func(d *drainer, _ *drainView, _ *seal) { d.read = func() bool { return false } }, false},
		"keeps no log":   {func(d *drainer, _ *drainView, _ *seal) { d.wal = nil }, true},
		"another's disk": {func(_ *drainer, v *drainView, _ *seal) { v.self.DiskID = 9 }, false},
	} {
		v, s := &drainView{self: record(true, 8), latched: true}, &seal{}
		d := newDrainer(v, s)
		if err := d.look(); err != nil || !d.Leaving() {
			t.Fatalf("%s: %v", name, err)
		}
		c.spoil(d, v, s)
		if got := d.drained(t).Drained; got != c.want {
			t.Errorf("%s: drained %v", name, got)
		}
	}
	d := newDrainer(&drainView{self: record(true, 8)}, &seal{})
	if _, err := d.Drained(t.Context(), &gatewayapi.DrainedRequest{BootNonce: 9}); !problem.HasCode(err, problem.PreconditionFailed) {
		t.Errorf("about another start: %v", err)
	}
}

// TestASealedLogWaitsForACancel: after a restart nothing old opens it again.
func TestASealedLogWaitsForACancel(t *testing.T) {
	v, s := &drainView{}, &seal{sealed: true}
	d := newDrainer(v, s)
	for name, self := range map[string]*topic.Member{"no record": nil, "a record of an earlier start": record(false, 5), "not latched": record(false, 8)} {
		v.self, v.latched = self, name == "a record of an earlier start"
		if err := d.look(); err != nil || !d.Leaving() || !s.sealed {
			t.Errorf("%s: %v, it accepts", name, err)
		}
	}
	v.self, v.latched = record(false, 8), true
	s.fail = errors.New("disk")
	if err := d.look(); err == nil || !d.Leaving() {
		t.Error("it accepts although the log could not be unsealed")
	}
	s.fail = nil
	if err := d.look(); err != nil || d.Leaving() || s.sealed {
		t.Errorf("cancelled: %v", err)
	}
	// And it may drain again; a disk that fails keeps it from saying so.
	v.self, s.fail = record(true, 8), errors.New("disk")
	if err := d.look(); err == nil || !d.Leaving() || d.drained(t).Drained {
		t.Error("it is drained without a seal")
	}
}

// TestABroadcastIsNotBelieved: it makes the gateway ask, and the leader's word counts
// for a moment.
func TestABroadcastIsNotBelieved(t *testing.T) {
	synctest.Test(t, believesNothing)
}

func believesNothing(t *testing.T) {
	d := newDrainer(&drainView{self: record(false, 8), latched: true}, &seal{})
	d.heard.MemberDraining("g2", true)
	d.heard.MemberDraining("g1", false)
	if len(d.heard.C()) != 0 {
		t.Fatal("it heard what is not for it")
	}
	d.heard.MemberDraining("g1", true)
	d.heard.MemberDraining("g1", true)
	if len(d.heard.C()) != 1 || d.Leaving() {
		t.Fatal("not heard, or believed")
	}
	asks := d.asks
	d.asks = func(context.Context) (*metaapi.MemberDetailResult, error) { return &metaapi.MemberDetailResult{}, nil }
	if d.ask(t.Context()); d.Leaving() {
		t.Error("it refuses although the leader denies it")
	}
	d.asks = asks
	time.Sleep(bus.AskEvery)
	if d.ask(t.Context()); !d.Leaving() || d.drained(t).Drained {
		t.Error("the leader's word does not count, or for too much")
	}
}

// TestAFloodOfBroadcastsCostsTheLeaderLittle: one question in 5 s, however fast it answers.
func TestAFloodOfBroadcastsCostsTheLeaderLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, asked := newDrainer(&drainView{self: record(false, 8), latched: true}, &seal{}), 0
		d.asks = func(context.Context) (*metaapi.MemberDetailResult, error) {
			asked++
			return &metaapi.MemberDetailResult{}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.Run(ctx) }()
		for range 200 { // 10 s
			d.heard.MemberDraining("g1", true)
			synctest.Wait()
			time.Sleep(50 * time.Millisecond)
		}
		if asked != 2 {
			t.Errorf("the leader was asked %d times", asked)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// commits is a committer that takes everything.
type commits struct{ taken int }

func (c *commits) Commit(*api.CommitRequest) ([]api.Committed, error) {
	c.taken++
	return nil, nil
}

func (c *commits) CanCommit() error { return nil }

// TestNothingIsCommittedOnceItLeaves: ack=committed goes past the log, and so past its
// seal. The leader's word alone refuses it, for as long as it counts.
func TestNothingIsCommittedOnceItLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, under := &drainView{self: record(false, 8), latched: true}, &commits{}
		d := newDrainer(v, &seal{})
		c := whileStaying{under, d.Leaving}
		want := func(when string, refused bool) {
			t.Helper()
			before := under.taken
			_, err := c.Commit(nil)
			if can := c.CanCommit(); problem.HasCode(err, problem.Draining) != refused || problem.HasCode(can, problem.Draining) != refused || (under.taken == before) != refused {
				t.Errorf("%s: %v, %v, taken %d", when, err, can, under.taken)
			}
		}
		want("it stays", false)
		d.ask(t.Context())
		want("the leader said so", true)
		time.Sleep(bus.ToldFor)
		want("the leader said so a while ago, and the replica shows nothing", false)
		v.self = record(true, 8)
		want("the replica shows the mark", true)
	})
}
