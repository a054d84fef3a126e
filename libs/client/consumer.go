package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// defaultNackDelay keeps a message that always fails from spinning.
	defaultNackDelay = time.Second
	// defaultStopTimeout is what handlers get to finish when nothing else was said.
	defaultStopTimeout = 30 * time.Second
	// settleStopTimeout bounds the last acks of a stop; what is left is delivered again.
	settleStopTimeout = 10 * time.Second
	// emptyPause keeps the loop from spinning on empty answers that come at once: from a
	// gateway that is stopping, or with NoWait.
	emptyPause = 100 * time.Millisecond
	// maxHeld bounds Workers + Prefetch: above it the extends alone would be a load.
	maxHeld = 100_000
)

var (
	// ErrLeaseLost is the cause of a handler's cancelled context when the lease ended
	// before the handler did: the message is, or will be, delivered again.
	ErrLeaseLost = errors.New("lease lost")
	// ErrStopTimeout is the cause when Consume was asked to stop and StopTimeout passed.
	ErrStopTimeout = errors.New("stop timeout passed")
	// errGoexit is reported for a handler that ended its goroutine.
	errGoexit = errors.New("handler called runtime.Goexit")
)

// Handler works on one delivery. Nil acks it; an error gives it back, to be delivered
// again. ctx ends when the lease is lost (context.Cause: ErrLeaseLost) or when a stop
// took too long; a handler that goes on after that works on a message that somebody
// else may have too.
type Handler func(ctx context.Context, d Delivery) error

// PanicError is reported for a handler that panicked; its message was nacked.
type PanicError struct {
	MessageID string
	Value     any
	Stack     []byte
}

// Error names the message and the value; Stack is left to the caller to print.
func (e *PanicError) Error() string {
	return fmt.Sprintf("handler panicked on message %s: %v", e.MessageID, e.Value)
}

// ConsumeOptions of the worker loop; the zero value works on one message at a time.
type ConsumeOptions struct {
	Workers           int           // handlers that run at once; 0: 1
	Prefetch          int           // leased messages that may wait for a worker; their leases are extended too
	Wait              time.Duration // of one consume call, up to 30 s; 0: 5 s
	MaxBytes          int64         // payload bytes of one consume call; 0: 8 MiB
	Partition         *uint32       // only this one; nil: all
	VisibilityTimeout time.Duration // length of a lease; 0: the topic's
	// NackDelay chooses when a failed message comes again; nil: after 1 s.
	NackDelay func(d Delivery, err error) time.Duration
	// OnError hears of everything that went wrong and did not end the loop: failed
	// consumes, handlers' errors and panics, lost leases, acks that were given up. It is
	// called from several goroutines.
	OnError func(error)
	// StopTimeout is how long handlers may finish after ctx ended before their context
	// is cancelled. 0: 30 s; negative: as long as they like.
	StopTimeout time.Duration
}

func (o ConsumeOptions) withDefaults() (ConsumeOptions, error) {
	o.Workers = max(o.Workers, 1)
	o.Prefetch = max(o.Prefetch, 0)
	if o.Workers+o.Prefetch > maxHeld {
		return o, fmt.Errorf("workers and prefetch together are above %d", maxHeld)
	}
	if o.NackDelay == nil {
		o.NackDelay = func(Delivery, error) time.Duration { return defaultNackDelay }
	}
	if o.OnError == nil {
		o.OnError = func(error) {}
	}
	if o.StopTimeout == 0 {
		o.StopTimeout = defaultStopTimeout
	}
	return o, nil
}

// consumer is one running Consume.
//
//	fetch -> queue -> workers -> settler
//	           leases (extender) watches everything between fetch and settler
type consumer struct {
	client  *Client
	topic   string
	handler Handler
	o       ConsumeOptions
	room    chan struct{} // one token per delivery that may still be leased
	queue   chan *held    // as large as room: sending never blocks
	leases  *leaseTable
	settler *settler
	workers sync.WaitGroup
}

// Consume runs handler over the topic's messages until ctx ends, then lets running
// handlers finish, gives back what no handler has begun, settles, and returns nil.
// It returns early, in the same order, with the error of a consume call that no
// repeating can mend (the topic is gone, the request is refused).
func (c *Client) Consume(ctx context.Context, topic string, handler Handler, o ConsumeOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return fmt.Errorf("consume from %q: %w", topic, err)
	}
	r := &consumer{client: c, topic: topic, handler: handler, o: o}
	r.room = make(chan struct{}, o.Workers+o.Prefetch)
	r.queue = make(chan *held, cap(r.room))
	for range cap(r.room) {
		r.room <- struct{}{}
	}
	// Handlers outlive ctx: a stop lets them finish.
	work, cancelWork := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancelWork(nil)
	r.leases = newLeaseTable(c, topic, o.OnError)
	r.settler = newSettler(c, topic, o.OnError)
	extending, stopExtending := context.WithCancel(work)
	extended := make(chan struct{})
	go func() { defer close(extended); r.leases.run(extending) }()
	settling, stopSettling := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSettling()
	r.settler.start(settling)
	ctx, stopFetching := context.WithCancel(ctx)
	defer stopFetching()
	for range o.Workers {
		r.workers.Add(1)
		go r.worker(ctx)
	}

	err = r.fetch(ctx, work)

	stopFetching() // also when an error ended the loop
	close(r.queue)
	r.giveBack()
	r.finish(cancelWork)
	last := time.AfterFunc(settleStopTimeout, stopSettling)
	defer last.Stop()
	r.settler.drain()
	stopExtending()
	<-extended
	return err
}

// giveBack releases what waits for a worker, without waiting for one. A worker that
// takes such a delivery does the same.
func (r *consumer) giveBack() {
	for h := range r.queue {
		r.settle(h, settlement{})
	}
}

// finish waits for the workers, cancelling the handlers' contexts once StopTimeout passed.
func (r *consumer) finish(cancelWork context.CancelCauseFunc) {
	if r.o.StopTimeout > 0 {
		t := time.AfterFunc(r.o.StopTimeout, func() { cancelWork(ErrStopTimeout) })
		defer t.Stop()
	}
	r.workers.Wait()
}

// fetch leases as many messages as there is room for, again and again.
func (r *consumer) fetch(ctx, work context.Context) error {
	failures := 0
	for {
		n := r.takeRoom(ctx)
		if n == 0 {
			return nil
		}
		asked := time.Now()
		got, err := r.client.Receive(ctx, r.topic, ReceiveOptions{
			Wait: r.o.Wait, Max: n, MaxBytes: r.o.MaxBytes, Partition: r.o.Partition, VisibilityTimeout: r.o.VisibilityTimeout,
		})
		for range n - len(got.Deliveries) {
			r.room <- struct{}{}
		}
		if err != nil {
			var e *Error
			if ctx.Err() != nil {
				return nil
			}
			if !errors.As(err, &e) || e.final || !transient(e) {
				return err
			}
			r.o.OnError(err)
			failures++
			if sleep(ctx, r.client.retry.delay(failures, e.RetryAfter, rand.Float64())) != nil {
				return nil
			}
			continue
		}
		failures = 0
		now := time.Now()
		if len(got.Deliveries) == 0 && now.Sub(asked) < emptyPause && sleep(ctx, emptyPause) != nil {
			return nil
		}
		for _, d := range got.Deliveries {
			r.queue <- r.leases.add(work, d, now)
		}
	}
}

// takeRoom waits for room for one delivery and takes all that there is. 0: ctx ended.
func (r *consumer) takeRoom(ctx context.Context) int {
	select {
	case <-ctx.Done():
		return 0
	case <-r.room:
	}
	for n := 1; ; n++ {
		if n == MaxBatchMessages {
			return n
		}
		select {
		case <-r.room:
		default:
			return n
		}
	}
}

// worker handles deliveries until the queue closes. A handler that ends its goroutine
// (runtime.Goexit, as t.FailNow does) costs the goroutine, not the worker.
func (r *consumer) worker(ctx context.Context) {
	ended := false
	defer func() {
		if ended {
			r.workers.Done()
		} else {
			go r.worker(ctx)
		}
	}()
	for h := range r.queue {
		if ctx.Err() != nil {
			r.settle(h, settlement{})
			continue
		}
		r.handle(h)
	}
	ended = true
}

func (r *consumer) handle(h *held) {
	if h.ctx.Err() != nil { // lost while it waited for a worker
		r.settle(h, settlement{})
		return
	}
	err := errGoexit
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{MessageID: h.d.ID, Value: v, Stack: debug.Stack()}
		}
		if err == nil {
			r.settle(h, settlement{ack: true})
			return
		}
		if p := (*PanicError)(nil); !errors.As(err, &p) {
			err = fmt.Errorf("handle message %s: %w", h.d.ID, err)
		}
		r.o.OnError(err)
		r.settle(h, settlement{delay: r.nackDelay(h.d, err)})
	}()
	err = r.handler(h.ctx, h.d)
}

// nackDelay survives a NackDelay that panics: the message must be settled all the same.
func (r *consumer) nackDelay(d Delivery, err error) (delay time.Duration) {
	defer func() {
		if recover() != nil {
			delay = defaultNackDelay
		}
	}()
	return max(r.o.NackDelay(d, err), 0)
}

// settle hands a delivery over and makes room for the next. It waits while too many
// are unsettled, so that consuming stops when acks cannot be taken.
func (r *consumer) settle(h *held, s settlement) {
	expires, gone := r.leases.release(h)
	if !gone {
		s.handle, s.id, s.expires = h.d.ReceiptHandle, h.d.ID, expires
		r.settler.add(s)
	}
	r.room <- struct{}{}
}
