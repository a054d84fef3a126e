package fanout

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// view is a replica that answers as the test says.
type view struct {
	*testkit.Meta
	latched bool
	err     error // of AssignmentsOf
}

func (v *view) Latched() bool { return v.latched }

func (v *view) AssignmentsOf(node string) ([]topic.Assignment, error) {
	if v.err != nil {
		return nil, v.err
	}
	return v.Meta.AssignmentsOf(node)
}

// parent is a partition with one position; it notes what is done to it.
type parent struct {
	Parent // what reconcile does not call here
	at     map[topic.ID64]fanout.Position
	tapped bool
	done   int
}

func (p *parent) Tap(f func()) { p.tapped = f != nil }

func (p *parent) Cursors(topic.Epoch) map[topic.ID64]fanout.Position {
	p.done++
	return p.at
}

func (p *parent) DropCursor(_ topic.Epoch, attach topic.ID64) {
	p.done++
	delete(p.at, attach)
}

// TestNothingIsDecidedWithoutAnAnswer: before the latch, and of a view that cannot
// answer, cursors stay as they are and nobody is asked whether they have ended, though
// the view shows neither the partition nor the topic. A view that has caught up and
// shows none ends them; their positions stay.
func TestNothingIsDecidedWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		latched bool
		err     error
		keeps   bool
	}{
		"before the latch":           {false, metastate.ErrUnavailable, true},
		"before the latch, a list":   {false, nil, true},
		"latched, and cannot answer": {true, metastate.ErrUnavailable, true},
		"latched, and fails":         {true, errors.New("disk"), true},
		"latched, and leads nothing": {true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			m, err := New(Config{
				Self: "s1", View: &view{Meta: testkit.NewMeta(), latched: c.latched, err: c.err},
				Confirm: func(_ context.Context, epochs []topic.ID64) (map[topic.ID64]metaapi.Verdict, error) {
					asked++
					return map[topic.ID64]metaapi.Verdict{epochs[0]: metaapi.VerdictGone}, nil
				},
				Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Mono: func() int64 { return 0 },
			})
			if err != nil {
				t.Fatal(err)
			}
			ref := topic.Ref{Topic: "orders", Incarnation: 7}
			p := &parent{at: map[topic.ID64]fanout.Position{5: {Next: 17}}, tapped: true}
			l := &led{ref: ref, epoch: 1, p: p, cursors: map[topic.ID64]*cursor{}, asked: map[topic.ID64]time.Time{}}
			l.list.Store(&[]*cursor{})
			m.led[ref] = l
			again := m.reconcile(t.Context())
			if again || m.known(ref) != c.keeps || p.tapped != c.keeps || p.done != 0 || asked != 0 || len(p.at) != 1 {
				t.Errorf("again %t, led %t, tapped %t, %d questions to it, %d to the leader, positions %v", again, m.known(ref), p.tapped, p.done, asked, p.at)
			}
		})
	}
}
