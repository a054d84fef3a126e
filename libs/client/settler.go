package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

const (
	// maxUnsettled bounds the acks that wait or are being repeated, of one consumer.
	maxUnsettled = 1000
	// settleCalls run at once: one slow answer must not hold up every other ack.
	settleCalls = 2
)

// settlement is one ack or nack to be done.
type settlement struct {
	handle, id string
	ack        bool          // else nack
	delay      time.Duration // of a nack
	expires    time.Time     // when the lease ends: repeating stops
	tries      int
}

// settler coalesces acks and nacks: what arrives while a call is under way goes with
// the next. A refusal that may pass (503 above all) is repeated with backoff until
// the lease ends: an ack that is dropped is a message delivered twice.
type settler struct {
	client  *Client
	topic   string
	onError func(error)
	slots   chan struct{}   // bounds what is unsettled
	queue   chan settlement // as large as slots: sending never blocks
	open    sync.WaitGroup  // unsettled ones
	loops   sync.WaitGroup
}

func newSettler(c *Client, topic string, onError func(error)) *settler {
	return &settler{
		client: c, topic: topic, onError: onError,
		slots: make(chan struct{}, maxUnsettled), queue: make(chan settlement, maxUnsettled),
	}
}

func (s *settler) start(ctx context.Context) {
	for range settleCalls {
		s.loops.Go(func() { s.run(ctx) })
	}
}

// add takes one over; it waits while maxUnsettled are open.
func (s *settler) add(one settlement) {
	s.slots <- struct{}{}
	s.open.Add(1)
	s.queue <- one
}

// drain returns when everything added is settled or given up. Nothing may be added after it.
func (s *settler) drain() {
	s.open.Wait()
	close(s.queue)
	s.loops.Wait()
}

func (s *settler) done() {
	<-s.slots
	s.open.Done()
}

func (s *settler) run(ctx context.Context) {
	for first := range s.queue {
		batch := []settlement{first}
	more:
		for len(batch) < MaxBatchMessages {
			select {
			case next, ok := <-s.queue:
				if !ok {
					break more
				}
				batch = append(batch, next)
			default:
				break more
			}
		}
		for _, group := range groupSettlements(batch) {
			s.send(ctx, group)
		}
	}
}

// groupSettlements splits by what one request can carry: acks, and nacks of one delay.
func groupSettlements(batch []settlement) [][]settlement {
	type kind struct {
		ack   bool
		delay time.Duration
	}
	at := map[kind]int{}
	var groups [][]settlement
	for _, one := range batch {
		k := kind{one.ack, one.delay}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], one)
	}
	return groups
}

func (s *settler) send(ctx context.Context, group []settlement) {
	last := group[0].expires
	handles := make([]string, len(group))
	for i, one := range group {
		handles[i] = one.handle
		if one.expires.After(last) {
			last = one.expires
		}
	}
	call, cancel := context.WithDeadline(ctx, last)
	defer cancel()
	var results []ItemResult
	var err error
	if group[0].ack {
		results, err = s.client.AckMany(call, s.topic, handles)
	} else {
		results, err = s.client.NackMany(call, s.topic, handles, group[0].delay)
	}
	for i, one := range group {
		switch {
		case err != nil:
			s.failed(ctx, one, err)
		case results[i].OK():
			s.done()
		default:
			s.failed(ctx, one, s.itemError(one, results[i]))
		}
	}
}

func (s *settler) itemError(one settlement, r ItemResult) error {
	e := &Error{
		Op: fmt.Sprintf("settle message %s of %q", one.id, s.topic), Status: r.Status, Code: r.Code,
		Applied: r.Applied, Detail: r.Detail, Attempts: one.tries + 1,
	}
	if r.Status == http.StatusGone {
		e.Err = ErrLeaseLost
	}
	return e
}

// failed repeats a settlement later, or gives it up: when the answer is final, when
// the lease would have ended by then, or when the consumer must stop.
func (s *settler) failed(ctx context.Context, one settlement, err error) {
	var e *Error
	if !errors.As(err, &e) || e.final || !transient(e) {
		s.giveUp(one, err)
		return
	}
	one.tries++
	wait := s.client.retry.delay(one.tries, e.RetryAfter, rand.Float64())
	if ctx.Err() != nil || !time.Now().Add(wait).Before(one.expires) {
		s.giveUp(one, err)
		return
	}
	time.AfterFunc(wait, func() { s.queue <- one })
}

func (s *settler) giveUp(one settlement, err error) {
	verb := "nack"
	if one.ack {
		verb = "ack"
	}
	s.onError(fmt.Errorf("%s of message %s given up: %w", verb, one.id, err))
	s.done()
}
