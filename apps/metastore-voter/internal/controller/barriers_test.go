package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// TestBarriersAreShared: those who ask while one barrier runs share the next;
// none is served by one that began before it asked.
func TestBarriersAreShared(t *testing.T) {
	began, let := make(chan int), make(chan error)
	n := 0
	b := &barriers{pass: func(context.Context) error { n++; began <- n; return <-let }}
	ask := func() chan error {
		got := make(chan error, 1)
		go func() { got <- b.wait(t.Context()) }()
		return got
	}
	first := ask()
	<-began
	later := []chan error{ask(), ask(), ask()}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.wait(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went: %v", err)
	}
	let <- nil
	if err := <-first; err != nil {
		t.Error(err)
	}
	<-began
	lost := errors.New("lost")
	let <- lost
	for i := 0; i < len(later); i++ {
		select {
		case err := <-later[i]:
			if !errors.Is(err, lost) {
				t.Errorf("caller %d: %v", i, err)
			}
		case <-began: // it asked so late that it got one of its own
			let <- lost
			i--
		case <-time.After(patience):
			t.Fatal("somebody waits for ever")
		}
	}
}

func TestRefusedJoinerIsLoggedOnceAMinute(t *testing.T) {
	var l refusalLog
	if !l.due("s1", 0) || l.due("s1", refusedAgainAfter-1) || !l.due("s2", 1) || !l.due("s1", refusedAgainAfter) {
		t.Error("not once a minute and joiner")
	}
	for i := range 3 * maxRefused {
		l.due(string(rune('a'+i)), 0)
	}
	if len(l.at) > maxRefused {
		t.Errorf("it remembers %d joiners", len(l.at))
	}
}

// TestUnknownNameIsSaidOnlyBehindABarrier: a leader that cannot pass one may
// have been replaced, and the name be there.
func TestUnknownNameIsSaidOnlyBehindABarrier(t *testing.T) {
	r := newRig(t)
	r.register(t, "v1", topic.RoleVoter)
	ask := func() error {
		_, err := r.LookupTopic(t.Context(), &metaapi.LookupTopicRequest{Name: "nobody"})
		return err
	}
	if err := ask(); !problem.HasCode(err, problem.TopicNotFound) {
		t.Errorf("a leader: %v", err)
	}
	r.barriers.pass = func(context.Context) error { return raftnode.ErrOutcomeUnknown }
	if err := ask(); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("a leader that may be none: %v", err)
	}
}
