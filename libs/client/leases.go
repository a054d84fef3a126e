package client

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// extendRetryFraction of a lease is the pause after a failed extend: with an extend
	// due at a third, eight more tries fit before the lease ends.
	extendRetryFraction = 12
	// minExtendPause keeps one-second leases from hammering a failing gateway.
	minExtendPause = 100 * time.Millisecond
	// idleCheck is how long the extender sleeps with nothing to watch; add wakes it.
	idleCheck = time.Hour
)

// held is one delivery between consume and settle.
type held struct {
	d      Delivery
	ctx    context.Context // the handler's
	cancel context.CancelCauseFunc

	// The rest is guarded by leaseTable.mu.
	due       time.Time // next extend
	expires   time.Time // when the lease ends for all that is known here
	extending bool      // a call is under way
	gone      bool      // the server said that the lease has ended: settling it is pointless
}

// leaseTable keeps the leases of one consumer alive: it extends each at a third of
// its length and cancels the handler of a lease that was lost. It does not settle.
type leaseTable struct {
	client  *Client
	topic   string
	onError func(error)
	wake    chan struct{}
	calls   sync.WaitGroup

	mu   sync.Mutex // guards held and the marked fields of its members
	held map[*held]struct{}
}

func newLeaseTable(c *Client, topic string, onError func(error)) *leaseTable {
	return &leaseTable{client: c, topic: topic, onError: onError, wake: make(chan struct{}, 1), held: map[*held]struct{}{}}
}

// add watches a delivery that was received at now.
func (t *leaseTable) add(work context.Context, d Delivery, now time.Time) *held {
	ctx, cancel := context.WithCancelCause(work)
	h := &held{d: d, ctx: ctx, cancel: cancel, due: now.Add(d.Lease / 3), expires: now.Add(d.Lease)}
	t.mu.Lock()
	t.held[h] = struct{}{}
	t.mu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return h
}

// release stops watching and tells until when the lease holds, and whether it is
// known to be gone.
func (t *leaseTable) release(h *held) (expires time.Time, gone bool) {
	t.mu.Lock()
	delete(t.held, h)
	expires, gone = h.expires, h.gone
	t.mu.Unlock()
	h.cancel(nil)
	return expires, gone
}

// run extends until ctx ends, and returns when no call is under way.
func (t *leaseTable) run(ctx context.Context) {
	defer t.calls.Wait()
	timer := time.NewTimer(idleCheck)
	defer timer.Stop()
	for {
		groups, expired, next := t.plan(time.Now())
		for _, h := range expired {
			t.lose(h, false, fmt.Errorf("message %s: %w: it could not be extended in time", h.d.ID, ErrLeaseLost))
		}
		for lease, hs := range groups {
			for len(hs) > 0 {
				n := min(len(hs), MaxBatchMessages)
				part := hs[:n]
				t.calls.Go(func() { t.extend(ctx, part, lease) })
				hs = hs[n:]
			}
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-t.wake:
		case <-timer.C:
		}
	}
}

// plan decides what to do at now: which leases to extend (by length; they are marked),
// which have ended, and how long to sleep.
func (t *leaseTable) plan(now time.Time) (groups map[time.Duration][]*held, expired []*held, next time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	groups = map[time.Duration][]*held{}
	next = idleCheck
	for h := range t.held {
		if !now.Before(h.expires) {
			delete(t.held, h)
			expired = append(expired, h)
			continue
		}
		next = min(next, h.expires.Sub(now))
		switch {
		case h.extending:
		case !now.Before(h.due):
			h.extending = true
			groups[h.d.Lease] = append(groups[h.d.Lease], h)
		default:
			next = min(next, h.due.Sub(now))
		}
	}
	return groups, expired, next
}

// extend asks once for a group of leases of one length. The call is repeated by the
// client within a third of the lease, at other gateways too.
func (t *leaseTable) extend(ctx context.Context, hs []*held, lease time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, max(lease/3, minExtendPause))
	defer cancel()
	handles := make([]string, len(hs))
	for i, h := range hs {
		handles[i] = h.d.ReceiptHandle
	}
	asked := time.Now() // the new lease begins no earlier
	results, err := t.client.ExtendMany(ctx, t.topic, handles, lease)
	pause := time.Now().Add(max(lease/extendRetryFraction, minExtendPause))
	for i, h := range hs {
		switch {
		case err == nil && results[i].OK():
			t.update(h, asked.Add(lease/3), asked.Add(lease))
		case err == nil && results[i].Status == http.StatusGone:
			t.lose(h, true, fmt.Errorf("message %s: %w", h.d.ID, ErrLeaseLost))
		default:
			t.update(h, pause, time.Time{})
		}
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// update sets when to extend next and, unless zero, when the lease ends.
func (t *leaseTable) update(h *held, due, expires time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h.extending, h.due = false, due
	if !expires.IsZero() {
		h.expires = expires
	}
}

// lose cancels the handler. One that was released meanwhile is not reported: its
// settling tells.
func (t *leaseTable) lose(h *held, gone bool, err error) {
	t.mu.Lock()
	_, watched := t.held[h]
	delete(t.held, h)
	h.gone = h.gone || gone
	t.mu.Unlock()
	if watched || !gone {
		h.cancel(ErrLeaseLost)
		t.onError(err)
	}
}
