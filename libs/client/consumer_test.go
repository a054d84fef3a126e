package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

const leaseMS = 3000

// queue is a topic in memory behind a RoundTripper, so that time can be fake: it
// leases, and notes what happened when.
type queue struct {
	t     *testing.T
	start time.Time
	// settle overrides the status of one item; 0: 204.
	settle func(q *queue, op, handle string) int

	mu     sync.Mutex // guards what follows
	ready  []int64
	leased map[string]time.Time // handle to end
	log    []string
}

func newQueue(t *testing.T, messages int) *queue {
	q := &queue{t: t, start: time.Now(), leased: map[string]time.Time{}}
	for i := range messages {
		q.ready = append(q.ready, int64(i))
	}
	return q
}

func (q *queue) client() *Client {
	return connect(q.t, Config{HTTPClient: &http.Client{Transport: memory(q.roundTrip)}, Retry: Retry{Attempts: 2}})
}

func (q *queue) noteLocked(format string, args ...any) {
	q.log = append(q.log, fmt.Sprintf("%v ", time.Since(q.start).Round(10*time.Millisecond))+fmt.Sprintf(format, args...))
}

func (q *queue) lines(of string) (out []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.log {
		if strings.Contains(l, of) {
			out = append(out, l)
		}
	}
	return out
}

func (q *queue) roundTrip(r *http.Request) (*http.Response, error) {
	op := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if op == "consume" {
		return q.consume(r)
	}
	var body struct {
		Handles []string `json:"receipt_handles"`
		Delay   int64    `json:"delay_ms"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var results []ItemResult
	for _, h := range body.Handles {
		status := q.itemLocked(op, h)
		q.noteLocked("%s %s %d%s", op, h, status, map[bool]string{true: fmt.Sprintf(" after %dms", body.Delay)}[op == "nack"])
		results = append(results, ItemResult{Status: status, Applied: map[bool]Applied{true: AppliedNo}[status > 299]})
	}
	b, err := json.Marshal(map[string]any{"results": results})
	return answer(200, b), err
}

func (q *queue) itemLocked(op, h string) int {
	if q.settle != nil {
		if status := q.settle(q, op, h); status != 0 {
			return status
		}
	}
	end, ok := q.leased[h]
	if !ok || time.Now().After(end) {
		return http.StatusGone
	}
	delete(q.leased, h)
	if op == "extend" {
		q.leased[h] = time.Now().Add(leaseMS * time.Millisecond)
	}
	return http.StatusNoContent
}

func (q *queue) consume(r *http.Request) (*http.Response, error) {
	limit, err := strconv.Atoi(r.URL.Query().Get("max"))
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	var out []batch.Record
	for len(q.ready) > 0 && len(out) < limit {
		rec := delivered(q.ready[0], leaseMS)
		q.leased[string(rec.ReceiptHandle)] = time.Now().Add(leaseMS * time.Millisecond)
		out, q.ready = append(out, rec), q.ready[1:]
	}
	q.mu.Unlock()
	if len(out) > 0 {
		return answer(200, deliveries(q.t, out...)), nil
	}
	select {
	case <-time.After(5 * time.Second):
		return answer(204, nil), nil
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
}

func answer(status int, body []byte) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body))}
}

// failures collects what OnError hears.
type failures struct {
	mu  sync.Mutex // guards all
	all []error
}

func (f *failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, err)
}

func (f *failures) has(target error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Is(errors.Join(f.all...), target)
}

// consume runs h over q for d of fake time, then stops.
func consume(t *testing.T, q *queue, d time.Duration, o ConsumeOptions, h Handler) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := q.client().Consume(ctx, "orders", h, o); err != nil {
		t.Errorf("consume ended with %v", err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for h, end := range q.leased {
		if time.Now().Before(end) {
			t.Errorf("the lease of %s was left behind", h)
		}
	}
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	slices.Sort(got) // what happens at one instant has no order
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestConsumeExtendsAtAThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		consume(t, q, 10*time.Second, ConsumeOptions{}, func(ctx context.Context, _ Delivery) error {
			<-time.After(3500 * time.Millisecond) // fake time: the work
			return ctx.Err()
		})
		expect(t, q.lines(""), "1s extend H0 204", "2s extend H0 204", "3s extend H0 204", "3.5s ack H0 204")
	})
}

func TestConsumeRunsWorkersAtOnceAndAcksTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 40)
		var mu sync.Mutex
		running, most := 0, 0
		consume(t, q, 20*time.Second, ConsumeOptions{Workers: 8, Prefetch: 4}, func(context.Context, Delivery) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-time.After(500 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		})
		if acks := q.lines("ack"); len(acks) != 40 || most != 8 {
			t.Errorf("%d acks, %d handlers at once", len(acks), most)
		}
	})
}

func TestConsumeNacksErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, f := newQueue(t, 4), &failures{}
		broken := errors.New("broken")
		consume(t, q, time.Second, ConsumeOptions{
			OnError:   f.add,
			NackDelay: func(d Delivery, _ error) time.Duration { return time.Duration(d.Offset) * time.Second },
		}, func(_ context.Context, d Delivery) error {
			switch d.Offset {
			case 0:
				return broken
			case 1:
				panic("at the disco")
			case 2:
				runtime.Goexit()
			}
			return nil
		})
		expect(t, q.lines(""), "0s ack H3 204", "0s nack H0 204 after 0ms", "0s nack H1 204 after 1000ms", "0s nack H2 204 after 2000ms")
		var p *PanicError
		if !f.has(broken) || !f.has(errGoexit) || !errors.As(errors.Join(f.all...), &p) || p.MessageID != "id-1" || len(p.Stack) == 0 {
			t.Errorf("reported: %v", f.all)
		}
	})
}

func TestLostLeaseCancelsTheHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, f := newQueue(t, 1), &failures{}
		q.settle = func(q *queue, op, h string) int {
			delete(q.leased, h)
			return http.StatusGone
		}
		var cause error
		consume(t, q, 5*time.Second, ConsumeOptions{OnError: f.add}, func(ctx context.Context, _ Delivery) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil
		})
		if !errors.Is(cause, ErrLeaseLost) || !f.has(ErrLeaseLost) {
			t.Errorf("cause %v, reported %v", cause, f.all)
		}
		expect(t, q.lines(""), "1s extend H0 410") // and no ack of what is lost
	})
}

func TestLeaseThatCannotBeExtendedIsLostAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, f := newQueue(t, 1), &failures{}
		q.settle = func(_ *queue, op, _ string) int {
			if op == "extend" {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		var ended time.Duration
		consume(t, q, 6*time.Second, ConsumeOptions{OnError: f.add}, func(ctx context.Context, _ Delivery) error {
			<-ctx.Done()
			ended = time.Since(q.start)
			return ctx.Err()
		})
		if ended != 3*time.Second || !f.has(ErrLeaseLost) || len(q.lines("extend")) < 4 {
			t.Errorf("cancelled at %v, reported %v, log %v", ended, f.all, q.lines(""))
		}
	})
}

// Case 116 of the user-reported failures: an ack that is dropped at a 503 is a message
// delivered again, and again.
func TestAckIsRepeatedUntilTheLeaseEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, f := newQueue(t, 2), &failures{}
		recovered := time.Now().Add(1500 * time.Millisecond)
		q.settle = func(_ *queue, op, h string) int {
			if h == "H1" || time.Now().Before(recovered) {
				return http.StatusServiceUnavailable
			}
			return 0
		}
		handled := map[uint64]int{}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		if err := q.client().Consume(ctx, "orders", func(_ context.Context, d Delivery) error {
			handled[d.Offset]++
			return nil
		}, ConsumeOptions{OnError: f.add}); err != nil {
			t.Error(err)
		}
		if len(q.lines("ack H0 503")) < 2 || len(q.lines("ack H0 204")) != 1 {
			t.Errorf("log %v", q.lines("ack H0"))
		}
		tries := q.lines("ack H1 503")
		if len(tries) < 4 || len(q.lines("ack H1 204")) != 0 || len(f.all) != 1 || handled[1] != 1 {
			t.Errorf("tries %v, reported %v", tries, f.all)
		}
		for _, l := range tries {
			at, err := time.ParseDuration(l[:strings.IndexByte(l, ' ')])
			if err != nil || at > leaseMS*time.Millisecond {
				t.Errorf("tried after the lease's end: %s", l)
			}
		}
	})
}

func TestStopFinishesHandlersAndGivesBackTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 3)
		consume(t, q, time.Second, ConsumeOptions{Prefetch: 2}, func(ctx context.Context, _ Delivery) error {
			<-time.After(5 * time.Second)
			return ctx.Err()
		})
		expect(t, q.lines("ack H0"), "5s ack H0 204")
		expect(t, q.lines("nack"), "1s nack H1 204 after 0ms", "1s nack H2 204 after 0ms")
	})
}

func TestStopTimeoutCancelsHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		var cause error
		consume(t, q, time.Second, ConsumeOptions{StopTimeout: 2 * time.Second}, func(ctx context.Context, _ Delivery) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return cause
		})
		if !errors.Is(cause, ErrStopTimeout) || len(q.lines("3s nack")) != 1 {
			t.Errorf("cause %v, log %v", cause, q.lines(""))
		}
	})
}

func TestConsumeEndsWhenTheTopicIsGone(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			refuse(w, 503, CodeNotReady, AppliedNo, "")
			return
		}
		refuse(w, 404, CodeTopicNotFound, AppliedNo, "")
	})
	err := connect(t, Config{}, g).Consume(t.Context(), "orders", func(context.Context, Delivery) error { return nil }, ConsumeOptions{})
	if !HasCode(err, CodeTopicNotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestAckOfALostLeaseIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, f := newQueue(t, 1), &failures{}
		q.settle = func(q *queue, _, h string) int {
			delete(q.leased, h)
			return http.StatusGone
		}
		consume(t, q, time.Second, ConsumeOptions{OnError: f.add}, func(context.Context, Delivery) error { return nil })
		if !f.has(ErrLeaseLost) || len(q.lines("ack H0")) != 1 {
			t.Errorf("reported %v, log %v", f.all, q.lines(""))
		}
	})
}
