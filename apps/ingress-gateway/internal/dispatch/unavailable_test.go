package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// faulty is a view that answers as the test says.
type faulty struct {
	*testkit.Meta
	latched bool
	err     error // of Assignments; nil: as Meta answers
}

func (v *faulty) Latched() bool { return v.latched }

func (v *faulty) Assignments(name string) (*metastate.Partitions, error) {
	if v.err != nil {
		return nil, v.err
	}
	return v.Meta.Assignments(name)
}

// TestOnlyALatchedAnswerIsBelieved: a life is gone by the word of a view that is latched
// and says so. Whatever else it answers, the records are held.
func TestOnlyALatchedAnswerIsBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		latched bool
		err     error
		id      topic.Incarnation
		want    dispatchq.State
	}{
		"latched":                       {true, nil, 7, dispatchq.Live},
		"latched, another life":         {true, nil, 8, dispatchq.Gone},
		"latched, no topic":             {true, metastate.ErrNoTopic, 7, dispatchq.Gone},
		"latched, and cannot say":       {true, metastate.ErrUnavailable, 7, dispatchq.Unavailable},
		"latched, and fails":            {true, errors.New("disk"), 7, dispatchq.Unavailable},
		"not latched":                   {false, metastate.ErrUnavailable, 7, dispatchq.Unavailable},
		"not latched, and has it":       {false, nil, 7, dispatchq.Unavailable},
		"not latched, has another life": {false, nil, 8, dispatchq.Unavailable},
		"not latched, and has no topic": {false, metastate.ErrNoTopic, 7, dispatchq.Unavailable},
	} {
		meta := testkit.NewMeta()
		meta.PutTopic(topic.Topic{Name: "a", Incarnation: 7, Config: topic.DefaultConfig()}, []topic.Assignment{{Ref: topic.Ref{Topic: "a", Incarnation: 7}}})
		w := newWorld(&faulty{Meta: meta, latched: c.latched, err: c.err})
		if got := w.Route("a", c.id).State; got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestUnlatchedReplicaHoldsAndAsksNobody: before the latch nothing is sent, nothing is
// asked and nothing is discarded, even if the leader would call the topic gone.
func TestUnlatchedReplicaHoldsAndAsksNobody(t *testing.T) {
	f := newFixture(t)
	f.stop()
	f.cfg.ConfirmAgain = time.Millisecond
	f.verdicts.set(nil, map[topic.Incarnation]metaapi.Verdict{7: metaapi.VerdictGone})
	f.meta.SetState(true, false)
	f.start()
	f.append("a", 7, 0, numbered(1, 100)...)
	testkit.Poll(t, testkit.Patience, "it knows all records", func() bool { return f.d.stats.Load().Items == 100 })
	stats := f.d.stats.Load()
	for range 2 {
		testkit.Poll(t, testkit.Patience, "another look", func() bool { s := f.d.stats.Load(); ok := s != stats; stats = s; return ok })
	}
	if left, asked, sent := f.d.Left(), f.verdicts.questions(), len(f.store.all()); left != 100 || asked != 0 || sent != 0 {
		t.Fatalf("%d left, %d questions, %d sent", left, asked, sent)
	}
	f.meta.SetState(true, true)
	f.empty()
	if got := len(f.store.all()); got != 100 {
		t.Fatalf("%d of 100 dispatched", got)
	}
}
