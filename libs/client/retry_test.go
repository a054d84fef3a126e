package client

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRefusedProduceIsRepeated(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 3 {
			refuse(w, 503, CodeDiskFull, AppliedNo, "")
			return
		}
		accept(w)
	})
	r, err := connect(t, Config{}, g).Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{})
	if err != nil || r.ID != "a-1" || len(g.seen()) != 3 {
		t.Fatalf("receipt %+v, error %v after %d requests", r, err, len(g.seen()))
	}
}

func TestUnknownOutcomeIsNotRepeated(t *testing.T) {
	failures := map[string]func(w http.ResponseWriter){
		"504":          func(w http.ResponseWriter) { refuse(w, 504, CodeOutcomeUnknown, AppliedUnknown, "") },
		"500":          func(w http.ResponseWriter) { refuse(w, 500, "internal", AppliedUnknown, "") },
		"wal failed":   func(w http.ResponseWriter) { refuse(w, 503, CodeWALUnavailable, AppliedUnknown, "") },
		"no answer":    hangUp,
		"proxy's page": func(w http.ResponseWriter) { http.Error(w, "<html>try later", http.StatusServiceUnavailable) },
		"no applied":   func(w http.ResponseWriter) { refuse(w, 503, CodeOverloaded, "", "") },
		"half answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			accept(w)
			hangUp(w)
		},
		"nonsense": func(w http.ResponseWriter) { w.WriteHeader(202); _, _ = w.Write([]byte("{")) },
	}
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { fail(w) })
			_, err := connect(t, Config{}, g).Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{})
			var e *Error
			if !errors.As(err, &e) || e.Applied != AppliedUnknown || len(g.seen()) != 1 {
				t.Fatalf("error %v (%+v) after %d requests, want one request and applied unknown", err, e, len(g.seen()))
			}
		})
	}
}

func TestDuplicatesWhenAllowed(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 1:
			hangUp(w)
		case 2:
			refuse(w, 504, CodeOutcomeUnknown, AppliedUnknown, "")
		default:
			accept(w)
		}
	})
	if _, err := connect(t, Config{}, g).Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{AllowDuplicates: true}); err != nil {
		t.Fatal(err)
	}
}

// An answer of "no" does not undo an earlier attempt that may have been applied.
func TestUnknownSticks(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			hangUp(w)
		}
		refuse(w, 413, CodeMessageTooLarge, AppliedNo, "")
	})
	_, err := connect(t, Config{}, g).Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{AllowDuplicates: true})
	var e *Error
	if !errors.As(err, &e) || e.Status != 413 || e.Applied != AppliedUnknown || e.Attempts != 2 {
		t.Fatalf("got %+v", e)
	}
}

// nobody listens there: the port of one that was closed may be another test's by now, or the
// caller's own, which then talks to itself.
const nobody = "http://127.0.0.1:1"

func TestNextGateway(t *testing.T) {
	draining := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30") // another gateway need not wait for it
		refuse(w, 503, CodeDraining, AppliedNo, "")
	})
	good := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { accept(w) })
	c := connect(t, Config{URL: nobody, Retry: Retry{Attempts: 3, BaseDelay: time.Hour}}, draining, good)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // less than any pause
	defer cancel()
	for range 3 {
		if _, err := c.Produce(ctx, "orders", Message{Payload: []byte("x")}, ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(draining.seen()) != 1 || len(good.seen()) != 3 {
		t.Fatalf("the draining gateway was asked %d times, the good one %d: want 1 and 3", len(draining.seen()), len(good.seen()))
	}
}

func TestConnectionRefusedSaysNotApplied(t *testing.T) {
	c := connect(t, Config{URL: nobody, Retry: Retry{Attempts: 1}})
	_, err := c.Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Applied != AppliedNo || !strings.Contains(err.Error(), "no answer from http://127.0.0.1:") {
		t.Fatalf("got %v, %+v", err, e)
	}
}

func TestRedirectIsRefused(t *testing.T) {
	target := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { accept(w) })
	g := newGateway(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.URL+r.RequestURI, http.StatusTemporaryRedirect)
	})
	_, err := connect(t, Config{HTTPClient: &http.Client{}}, g).Topic(t.Context(), "orders")
	if err == nil || !strings.Contains(err.Error(), "redirect") || len(target.seen()) != 0 || len(g.seen()) != 1 {
		t.Fatalf("error %v, target asked %d times", err, len(target.seen()))
	}
}

func TestSlowGatewayIsLeftForTheNext(t *testing.T) {
	stop := make(chan struct{})
	slow := newGateway(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	})
	defer close(stop)
	good := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	// The good one has to answer within it.
	c := connect(t, Config{AttemptTimeout: time.Second}, slow, good)
	if err := c.Ack(t.Context(), "orders", "H"); err != nil {
		t.Fatal(err)
	}
}

// RoundTripper in memory, so that time can be fake.
type memory func(*http.Request) (*http.Response, error)

func (m memory) RoundTrip(r *http.Request) (*http.Response, error) { return m(r) }

func TestRetryAfterIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		c := connect(t, Config{Retry: Retry{Attempts: 3}, HTTPClient: &http.Client{Transport: memory(func(*http.Request) (*http.Response, error) {
			at = append(at, time.Since(start))
			h := http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"3"}}
			body := `{"code":"no_metastore_leader","applied":"no","retry_after_ms":2500}`
			return &http.Response{StatusCode: 503, Header: h, Body: readCloser(body)}, nil
		})}})
		_, err := c.CreateTopic(t.Context(), TopicSpec{Name: "orders"})
		if !HasCode(err, CodeNoMetastoreLeader) || len(at) != 3 {
			t.Fatalf("error %v after %d attempts", err, len(at))
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap < 2500*time.Millisecond || gap > 2700*time.Millisecond {
				t.Errorf("attempt %d came after %v, want 2.5 s and a little", i+1, gap)
			}
		}
	})
}

func TestDeadlineBeforeTheNextAttempt(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		refuse(w, 503, CodeNoMetastoreLeader, AppliedNo, `,"retry_after_ms":60000`)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	start := time.Now()
	_, err := connect(t, Config{}, g).Topic(ctx, "orders")
	if !errors.Is(err, context.DeadlineExceeded) || !HasCode(err, CodeNoMetastoreLeader) || time.Since(start) > 10*time.Second {
		t.Fatalf("got %v after %v: want the refusal at once, not a wait that cannot end in time", err, time.Since(start))
	}
}

func TestCancelledWhileWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		refuse(w, 503, CodeNoMetastoreLeader, AppliedNo, `,"retry_after_ms":30000`)
		cancel()
	})
	if _, err := connect(t, Config{}, g).Topic(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestDelayGrowsWithinBounds(t *testing.T) {
	r := Retry{BaseDelay: 100 * time.Millisecond, MaxDelay: 5 * time.Second}
	for _, tc := range []struct {
		n         int
		hint      time.Duration
		low, high time.Duration
	}{
		{1, 0, 50 * time.Millisecond, 100 * time.Millisecond},
		{3, 0, 200 * time.Millisecond, 400 * time.Millisecond},
		{40, 0, 2500 * time.Millisecond, 5 * time.Second},
		{1, 9 * time.Second, 9 * time.Second, 9100 * time.Millisecond},
	} {
		for _, random := range []float64{0, 0.5, 0.999} {
			if d := r.delay(tc.n, tc.hint, random); d < tc.low || d > tc.high {
				t.Errorf("delay(%d, %v, %v) = %v, want %v..%v", tc.n, tc.hint, random, d, tc.low, tc.high)
			}
		}
	}
}

func TestBadURLsAreRefused(t *testing.T) {
	for _, u := range []string{"127.0.0.1:7942", "ftp://h", "http://", "http://h?x=1", "http://me:secret@h", "http://h:port"} {
		_, err := New(Config{URL: u})
		if err == nil {
			t.Errorf("%q was taken", u)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error repeats a secret: %v", err)
		}
	}
}

// A transport of the caller's that reports no connections proves nothing about what was sent.
func TestForeignTransportIsNotTrusted(t *testing.T) {
	tries := 0
	c := connect(t, Config{HTTPClient: &http.Client{Transport: memory(func(*http.Request) (*http.Response, error) {
		tries++
		return nil, errors.New("broken")
	})}})
	_, err := c.Produce(t.Context(), "orders", Message{Payload: []byte("x")}, ProduceOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Applied != AppliedUnknown || tries != 1 {
		t.Fatalf("got %+v after %d tries", e, tries)
	}
}

func TestStoppingGatewayIsLeft(t *testing.T) {
	stopping := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(204)
	})
	good := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	c := connect(t, Config{}, stopping, good)
	for range 4 {
		if _, err := c.Receive(t.Context(), "orders", ReceiveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(stopping.seen()) != 1 || len(good.seen()) != 3 {
		t.Fatalf("the stopping gateway was asked %d times, the other %d: want 1 and 3", len(stopping.seen()), len(good.seen()))
	}
}

func TestNothingIsSentAfterTheContextEnded(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { accept(w) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := connect(t, Config{}, g).Produce(ctx, "orders", Message{Payload: []byte("x")}, ProduceOptions{})
	var e *Error
	if !errors.As(err, &e) || e.Applied != AppliedNo || !errors.Is(err, context.Canceled) || len(g.seen()) != 0 {
		t.Fatalf("got %+v", e)
	}
}
