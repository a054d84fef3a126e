package decommission

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// meta is a metastore of one thought: what each member's state is.
type meta struct {
	metastate.View // nil: only what is below is asked
	states         map[string]*State
	did            []string
	fail           string // the step that fails once
	loss           bool
	looks          int // at states
	emptyAt        int // the look at which gateways have become empty; 0: none does
}

func (m *meta) Changed() <-chan struct{} { return nil }

func (m *meta) Members() *metastate.MemberTable {
	t := &metastate.MemberTable{ByID: map[string]*topic.Member{}}
	for id, s := range m.states {
		t.ByID[id] = &s.Member
	}
	return t
}

func (m *meta) State(_ context.Context, id string) (*State, error) {
	m.looks++
	if s := m.states[id]; s != nil {
		one := *s
		if m.looks == m.emptyAt {
			one.Gateway = sound("g1").Gateway
		}
		return &one, nil
	}
	return nil, nil
}

func (m *meta) do(what string) error {
	m.did = append(m.did, what)
	if m.fail == what {
		m.fail = ""
		return errors.New("it failed")
	}
	return nil
}

func (m *meta) Evacuate(_ context.Context, id string, list []topic.Assignment) error {
	return m.do("evacuate " + id + " of " + list[0].Topic)
}

func (m *meta) Transfer(context.Context) error { return m.do("transfer") }

func (m *meta) RemoveServer(_ context.Context, s *State) error {
	err := m.do("remove " + s.Member.ID)
	if err == nil {
		m.states[s.Member.ID].Server = nil
	}
	return err
}

func (m *meta) Bury(_ context.Context, member *topic.Member, loss bool) error {
	m.loss = m.loss || loss
	err := m.do("bury " + member.ID)
	if err == nil {
		delete(m.states, member.ID)
	}
	return err
}

// passes runs n passes.
func (m *meta) passes(t *testing.T, n int, log *slog.Logger) *Runner {
	t.Helper()
	r := New(Config{View: m, Meta: m, Log: log})
	for range n {
		r.pass(t.Context())
	}
	return r
}

var quiet = slog.New(slog.DiscardHandler)

func TestTheLeaderComesLast(t *testing.T) {
	m := &meta{states: map[string]*State{"s1": sound("s1"), "v1": sound("v1"), "v2": sound("v2")}}
	m.passes(t, 1, quiet)
	if want := []string{"remove s1", "bury s1", "remove v2", "bury v2", "transfer"}; !slices.Equal(m.did, want) {
		t.Errorf("%q, want %q", m.did, want)
	}
}

// What is moving already is left alone, and what nobody can move, too.
func TestWhatIsLeftIsMovedAway(t *testing.T) {
	s := sound("s1")
	s.copies("pay", "s1")
	s.copies("orders", "s1")
	s.Moving[s.Copies[0].Ref] = true
	m := &meta{states: map[string]*State{"s1": s}}
	m.passes(t, 1, quiet)
	s.change("s1", dead)
	m.passes(t, 1, quiet)
	if want := []string{"evacuate s1 of orders"}; !slices.Equal(m.did, want) {
		t.Errorf("%q", m.did)
	}
}

// Whatever step fails, or is the last one of a leadership, the next pass goes on there.
func TestStepsAreRepeatedUntilTheyAreDone(t *testing.T) {
	for _, fail := range []string{"remove s1", "bury s1"} {
		m := &meta{states: map[string]*State{"s1": sound("s1")}, fail: fail}
		m.passes(t, 2, quiet)
		if want := []string{"remove s1", "bury s1", "bury s1"}; fail == "bury s1" && !slices.Equal(m.did, want) {
			t.Errorf("%s fails: %q", fail, m.did)
		}
		if len(m.states) != 0 {
			t.Errorf("%s fails: it is never removed", fail)
		}
	}
}

func TestAcceptedLossIsLoggedBeforeItHappens(t *testing.T) {
	s := sound("s1")
	s.copies("pay", "s1")
	s.copies("orders", "s1")
	s.change("s1", dead)
	s.change("s1", accepted)
	m := &meta{states: map[string]*State{"s1": s}, fail: "remove s1"}
	var log bytes.Buffer
	m.passes(t, 1, slog.New(slog.NewTextHandler(&log, nil)))
	said := log.String()
	at, then := strings.Index(said, "AUDIT"), strings.Index(said, "leaves the raft configuration")
	if at < 0 || then < at || !strings.Contains(said, "pay/0@") || !strings.Contains(said, "orders/1@") || !strings.Contains(said, "by=ann") {
		t.Errorf("the log says %s", said)
	}
	m.passes(t, 1, quiet)
	if !m.loss || len(m.states) != 0 {
		t.Errorf("%q, with loss %v", m.did, m.loss)
	}
	// Of what is accepted after its server has gone, too.
	late := sound("s1")
	late.copies("pay", "s1")
	late.change("s1", dead)
	late.change("s1", accepted)
	late.Server = nil
	log.Reset()
	(&meta{states: map[string]*State{"s1": late}}).passes(t, 1, slog.New(slog.NewTextHandler(&log, nil)))
	said = log.String()
	at, then = strings.Index(said, "AUDIT"), strings.Index(said, "the member was removed")
	if at < 0 || then < at || !strings.Contains(said, "pay/0@") || !strings.Contains(said, "by=ann") {
		t.Errorf("the log says %s", said)
	}
	g := sound("g1")
	g.Gateway = nil
	g.change("g1", dead)
	g.change("g1", accepted)
	log.Reset()
	(&meta{states: map[string]*State{"g1": g}}).passes(t, 1, slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "AUDIT") {
		t.Errorf("a gateway went silently: %s", log.String())
	}
}

func TestWhatKeepsAMemberIsSaidOnce(t *testing.T) {
	s := sound("g1")
	s.Gateway = nil
	m := &meta{states: map[string]*State{"g1": s}}
	var log bytes.Buffer
	r := m.passes(t, 3, slog.New(slog.NewTextHandler(&log, nil)))
	if n := strings.Count(log.String(), "kept back"); n != 1 || len(m.did) != 0 {
		t.Errorf("said %d times, did %q", n, m.did)
	}
	delete(m.states, "g1")
	r.pass(t.Context())
	if len(r.said) != 0 {
		t.Error("what was said of a member that is gone is kept")
	}
}

// Run looks again without any change: a gateway's log gets empty unseen.
func TestRunLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sound("g1")
		s.Gateway = nil
		m := &meta{states: map[string]*State{"g1": s}, emptyAt: 3}
		ctx, cancel := context.WithTimeout(t.Context(), 5*passEvery)
		defer cancel()
		New(Config{View: m, Meta: m, Log: quiet}).Run(ctx)
		if len(m.states) != 0 {
			t.Error("it waits for ever")
		}
	})
}
