package bus

import (
	"context"
	"time"
)

const (
	// AskEvery is the least between two questions to the metastore leader that
	// broadcasts cause: who floods the bus must cost the leader nothing, and the own
	// replica shows the same in any case.
	AskEvery = 5 * time.Second
	// askLeader ends such a question.
	askLeader = 2 * time.Second
	// ToldFor is how long the leader's word counts before the own replica shows it; that
	// takes milliseconds.
	ToldFor = 5 * time.Second
)

// Heard is what a member makes of broadcasts that it is being drained: questions to the
// metastore leader. MemberDraining is safe for concurrent use; the rest belongs to the
// loop that asks.
type Heard struct {
	member string
	c      chan struct{}
	asked  time.Time // when the leader was asked last
}

// NewHeard listens for one member.
func NewHeard(member string) *Heard { return &Heard{member: member, c: make(chan struct{}, 1)} }

// MemberDraining hears a broadcast, which anybody may have sent. It never waits.
func (h *Heard) MemberDraining(member string, draining bool) {
	if member != h.member || !draining {
		return
	}
	select {
	case h.c <- struct{}{}:
	default:
	}
}

// C tells that something was heard since the last receive.
func (h *Heard) C() <-chan struct{} { return h.c }

// Ask puts the question, within 2 s, unless one was put less than AskEvery ago.
func (h *Heard) Ask(ctx context.Context, question func(context.Context)) {
	now := time.Now()
	if now.Sub(h.asked) < AskEvery {
		return
	}
	h.asked = now
	ctx, cancel := context.WithTimeout(ctx, askLeader)
	defer cancel()
	question(ctx)
}
