package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// Safety says what repeating a call may do.
type Safety int

const (
	// RepeatIfNotApplied repeats only what surely changed nothing. The zero value.
	RepeatIfNotApplied Safety = iota
	// RepeatFreely is for calls that do the same when done twice, and for callers
	// who accept the duplicate.
	RepeatFreely
	// RepeatNever tries once.
	RepeatNever
)

// mayRetry is the one place that decides whether a failed attempt is repeated.
func mayRetry(e *Error, safety Safety) bool {
	if e.final || safety == RepeatNever {
		return false
	}
	if !transient(e) {
		return false
	}
	return safety == RepeatFreely || e.Applied == AppliedNo
}

// transient tells whether the same request can fare better later or elsewhere.
func transient(e *Error) bool {
	if e.Status/100 == 2 {
		return true // the answer was cut on its way
	}
	switch e.Status {
	case 0, http.StatusRequestTimeout, http.StatusTooManyRequests,
		http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// gatewayLocal tells whether another gateway may well succeed at once.
func gatewayLocal(e *Error) bool {
	switch e.Code {
	case CodeNotReady, CodeDraining, CodeOverloaded, CodeDiskFull, CodeTopicBacklogFull, CodeWALUnavailable, CodeTooManyRequests:
		return true
	case "":
		return e.Status == 0 || e.Status == http.StatusBadGateway || e.Status == http.StatusServiceUnavailable
	}
	return false
}

// delay before attempt n+1 (n from 1): exponential, jittered between half and the
// whole so that clients that failed together do not return together, and never less
// than the hint. random is in [0, 1).
func (r Retry) delay(n int, hint time.Duration, random float64) time.Duration {
	d := r.MaxDelay
	if shift := n - 1; shift < 16 { // beyond that any base is above any sane maximum
		d = min(d, r.BaseDelay<<shift)
	}
	d = d/2 + time.Duration(random*float64(d/2))
	if hint > d {
		// A little later than asked, for the same reason.
		d = hint + time.Duration(random*float64(r.BaseDelay))
	}
	return d
}

// Do sends one call, repeating it as its Safety allows. The error is an *Error.
// It is the way to a route that has no method of its own.
func (c *Client) Do(ctx context.Context, call Call) (*Answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Op: call.Op, Applied: AppliedNo, Err: err}
	}
	start := c.current.Load()
	unknown := false
	for n := 1; ; n++ {
		gateway := (start + uint32(n-1)) % uint32(len(c.bases))
		ans, e := c.attempt(ctx, c.bases[gateway], call)
		if e == nil {
			if ans.closing { // it is stopping: the next call goes elsewhere
				gateway = (gateway + 1) % uint32(len(c.bases))
			}
			c.current.Store(gateway)
			ans.AfterUnknown = unknown
			return ans, nil
		}
		e.Op, e.Gateway, e.Attempts = call.Op, c.bases[gateway], n
		unknown = unknown || e.Applied == AppliedUnknown
		if unknown {
			e.Applied = AppliedUnknown
		}
		if n >= c.retry.Attempts || !mayRetry(e, call.Safety) {
			return nil, e
		}
		if err := ctx.Err(); err != nil {
			if !errors.Is(e, err) {
				e.Err = giveUp(e.Err, err)
			}
			return nil, e
		}
		if gatewayLocal(e) && n%len(c.bases) != 0 {
			continue // an untried gateway is left in this round
		}
		if err := sleep(ctx, c.retry.delay(n, e.RetryAfter, rand.Float64())); err != nil {
			e.Err = giveUp(e.Err, err)
			return nil, e
		}
	}
}

func giveUp(cause, ctxErr error) error {
	if cause == nil {
		return fmt.Errorf("stopped retrying: %w", ctxErr)
	}
	return fmt.Errorf("%w; stopped retrying: %w", cause, ctxErr)
}

// sleep waits for d, or fails at once when ctx would end before.
func sleep(ctx context.Context, d time.Duration) error {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return context.DeadlineExceeded
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
