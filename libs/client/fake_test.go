package client

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

// gateway is a server that answers as the test says and remembers what it was asked.
type gateway struct {
	*httptest.Server
	mu   sync.Mutex // guards asks
	asks []ask
}

type ask struct {
	method, uri string
	header      http.Header
	body        []byte
}

func newGateway(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *gateway {
	t.Helper()
	g := &gateway{}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		g.mu.Lock()
		g.asks = append(g.asks, ask{r.Method, r.RequestURI, r.Header.Clone(), body})
		n := len(g.asks)
		g.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) seen() []ask {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]ask(nil), g.asks...)
}

// quick retries within the time of a test.
var quick = Retry{Attempts: 4, BaseDelay: time.Millisecond, MaxDelay: 2 * time.Millisecond}

func connect(t *testing.T, cfg Config, gateways ...*gateway) *Client {
	t.Helper()
	for _, g := range gateways {
		cfg.URLs = append(cfg.URLs, g.URL)
	}
	if cfg.Retry.Attempts == 0 {
		cfg.Retry = quick
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func refuse(w http.ResponseWriter, status int, code Code, applied Applied, more string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%d,"code":%q,"applied":%q,"request_id":"r1","detail":"for a test"%s}`, status, code, applied, more)
}

func accept(w http.ResponseWriter) {
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprint(w, `{"id":"a-1","incarnation":"3f9a17c4e2b08d51","later":1}`)
}

// hangUp cuts the connection without an answer.
func hangUp(http.ResponseWriter) { panic(http.ErrAbortHandler) }

func deliveries(t testing.TB, rs ...batch.Record) []byte {
	t.Helper()
	b, err := batch.Encode(nil, &batch.Batch{Kind: batch.Delivery, Meta: batch.Meta{Incarnation: 0x3f9a17c4e2b08d51}, Records: rs}, true)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func delivered(offset int64, leaseMS uint32) batch.Record {
	return batch.Record{
		Payload: []byte("hi"), Partition: 2, Offset: offset, CommittedMS: 1795982645123, ID: fmt.Appendf(nil, "id-%d", offset),
		DeliveryCount: 1, LeaseMS: leaseMS, ReceiptHandle: fmt.Appendf(nil, "H%d", offset),
	}
}
