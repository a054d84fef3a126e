package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
)

// patience is what a test waits for something that must happen.
const patience = testkit.Patience

// short is a limit of the server that a test waits out. Where the other side has to be
// in time, a test leaves the limit as it is: a busy machine makes every client slow.
const short = 200 * time.Millisecond

func TestMain(m *testing.M) {
	// The date ticks for the life of the process; the pool's cleaner sleeps for
	// ten seconds before it sees that the server has stopped.
	leak.Main(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// rig is the real API over a broker in memory, served on a real socket.
type rig struct {
	testing.TB
	api    *api.API
	broker *fakebroker.Broker
	server *Server
	addr   string
	served chan error
}

func newRig(t testing.TB, cfg Config) *rig {
	return newRigOn(t, cfg, listen(t))
}

func newRigOn(t testing.TB, cfg Config, ln net.Listener) *rig {
	t.Helper()
	b := fakebroker.New()
	b.Put("orders", 1)
	a, err := api.New(api.Config{NodeID: "gateway-1"}, b.Deps())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, api: a, broker: b, server: New(cfg, a, nil), served: make(chan error, 1)}
	r.addr = ln.Addr().String()
	go func() { r.served <- r.server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = r.server.Shutdown(ctx) // what a test left open is closed by force
		if err := <-r.served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

// peer is a raw client connection.
type peer struct {
	testing.TB
	net.Conn
	r *bufio.Reader
}

func (r *rig) dial() *peer {
	r.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		r.Fatal(err)
	}
	return &peer{TB: r, Conn: c, r: bufio.NewReader(c)}
}

func (p *peer) send(format string, args ...any) *peer {
	p.Helper()
	if _, err := fmt.Fprintf(p, format, args...); err != nil {
		p.Fatal(err)
	}
	return p
}

// reply is an answer read in full.
type reply struct {
	*http.Response
	body string
}

func (p *peer) read(method string) reply {
	p.Helper()
	resp, err := http.ReadResponse(p.r, &http.Request{Method: method})
	if err != nil {
		p.Fatalf("read an answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatalf("read an answer's body: %v", err)
	}
	return reply{resp, string(b)}
}

// want reads an answer with this status and code; "" for no problem.
func (p *peer) want(status int, code string) reply {
	p.Helper()
	a := p.read("POST")
	var doc struct {
		Code      string `json:"code"`
		RequestID string `json:"request_id"`
	}
	if a.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
			p.Fatalf("%v in %s", err, a.body)
		}
		if doc.RequestID != a.Header.Get("Narad-Request-Id") {
			p.Errorf("request id %q, header %q", doc.RequestID, a.Header.Get("Narad-Request-Id"))
		}
	}
	if a.StatusCode != status || doc.Code != code || a.Header.Get("Narad-Request-Id") == "" {
		p.Fatalf("%d %s, want %d %s: %v", a.StatusCode, a.body, status, code, a.Header)
	}
	return a
}

// ended checks that the server has closed the connection in an orderly way.
func (p *peer) ended() {
	p.Helper()
	if b, err := p.r.ReadByte(); err != io.EOF {
		p.Fatalf("the connection goes on: %q, %v", b, err)
	}
}

const (
	head    = "POST /v1/topics/orders/produce HTTP/1.1\r\nHost: gateway\r\n"
	consume = "POST /v1/topics/orders/consume?wait=%s HTTP/1.1\r\nHost: gateway\r\nContent-Length: 0\r\n\r\n"
)

// A client that sends everything before it reads must still see the 413.
func TestTooLargeBodyIsAnsweredNotReset(t *testing.T) {
	r := newRig(t, Config{})
	megabyte := strings.Repeat("x", 1<<20)
	t.Run("announced", func(t *testing.T) {
		p := r.dial()
		p.send("%sContent-Length: %d\r\n\r\n%s%s", head, 2<<20, megabyte, megabyte)
		if a := p.want(413, "message_too_large"); !a.Close {
			t.Error("the connection is kept")
		}
		p.ended()
	})
	t.Run("chunked", func(t *testing.T) {
		p := r.dial()
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 1<<20, megabyte)
		p.send("%sTransfer-Encoding: chunked\r\n\r\n%s%s%s0\r\n\r\n", head, chunk, chunk, chunk)
		p.want(413, "message_too_large")
		p.ended()
	})
	t.Run("no end", func(t *testing.T) {
		p := r.dial()
		p.send("%sTransfer-Encoding: chunked\r\n\r\n", head)
		wrote := 0
		for ; wrote < 256; wrote++ { // until the server has had enough
			if _, err := fmt.Fprintf(p, "%x\r\n%s\r\n", 1<<20, megabyte); err != nil {
				break
			}
		}
		if wrote == 256 {
			t.Error("256 MiB were taken")
		}
	})
	t.Run("refused before it was read", func(t *testing.T) {
		p := r.dial()
		p.send("POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s", 100<<10, megabyte[:100<<10])
		if a := p.want(404, "topic_not_found"); !a.Close {
			t.Error("the connection is kept")
		}
		p.ended()
	})
	t.Run("other routes", func(t *testing.T) {
		for _, route := range []string{"POST /v1/topics", "PATCH /v1/topics/orders", "DELETE /v1/topics/orders", "POST /v1/topics/orders/ack", "POST /v1/nothing", "POST /v1/topics/orders/consume"} {
			p := r.dial()
			p.TB = t
			p.send("%s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s%s", route, 2<<20, megabyte, megabyte)
			if a := p.read("POST"); a.StatusCode/100 != 4 || !a.Close {
				t.Errorf("%s: %d", route, a.StatusCode)
			}
		}
	})
}

func TestSlowClients(t *testing.T) {
	r := newRig(t, Config{BodyTimeout: short})
	for name, request := range map[string]string{
		"first byte": head + "Content-Length: 10\r\n\r\n", "some bytes": head + "Content-Length: 10\r\n\r\nabc",
		"chunked": head + "Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
	} {
		p := r.dial()
		p.send("%s", request).want(408, "request_timeout")
		p.ended()
		_ = name
	}
	early := newRig(t, Config{HeaderTimeout: short})
	for name, request := range map[string]string{"nothing": "", "half a header": "POST /v1/top", "no end": head} {
		p := early.dial()
		p.send("%s", request)
		// It ends without an answer: with a reset when the bytes came as the time was over.
		if b, err := p.r.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection goes on: %q, %v", name, b, err)
		}
	}
	// The limit is for the whole body: bytes that trickle do not extend it.
	p := r.dial()
	p.send("%sContent-Length: 1000\r\n\r\n", head)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_, _ = p.Write([]byte("x")) // it fails once the server has closed
			}
		}
	}()
	p.want(408, "request_timeout")
	close(stop)
	<-done
	if len(r.broker.Messages("orders", 0)) != 0 {
		t.Error("a body that did not arrive was accepted")
	}
}

func TestAbandonedConsume(t *testing.T) {
	r := newRig(t, Config{})
	for name, leave := range map[string]func(*net.TCPConn) error{
		"close": func(c *net.TCPConn) error { return c.Close() },
		"reset": func(c *net.TCPConn) error {
			if err := c.SetLinger(0); err != nil {
				return err
			}
			return c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.dial()
			p.send(consume, "30s")
			<-r.broker.Parked
			if err := leave(p.Conn.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			r.left()
			r.dial().send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
			select {
			case <-r.broker.Released:
			case <-time.After(patience):
				t.Fatal("the lease of a client that left was kept")
			}
			if a := r.dial().send(consume, "0s").want(200, ""); a.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("headers %v", a.Header)
			}
		})
	}
}

// left waits until the kernel has told the server's side that a client has gone.
func (r *rig) left() {
	r.Helper()
	testkit.Poll(r, patience, "a client is seen to have gone", func() bool {
		l := r.server.ln
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns {
			if c.Gone() {
				return true
			}
		}
		return false
	})
}

// An answer that cannot be written: the client is there while the handler runs,
// and resets the connection without reading what does not fit into the buffers.
func TestUnwrittenAnswerReleases(t *testing.T) {
	r := newRig(t, Config{})
	for range 16 {
		r.dial().send("%sContent-Length: %d\r\n\r\n%s", head, 1<<20, strings.Repeat("x", 1<<20)).want(202, "")
	}
	p := r.dial()
	p.send("POST /v1/topics/orders/consume?max=100&max_bytes=16777216 HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n")
	if _, err := p.r.Peek(1); err != nil { // the answer has begun
		t.Fatal(err)
	}
	if err := p.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for range 15 { // one may be over the byte limit
		select {
		case <-r.broker.Released:
		case <-time.After(patience):
			t.Fatal("leases of an answer that was not written were kept")
		}
	}
}

func TestMaxConnections(t *testing.T) {
	r := newRig(t, Config{MaxConnections: 2})
	a, b := r.dial(), r.dial()
	a.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	b.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	if n := r.server.Connections(); n != 2 {
		t.Errorf("%d connections", n)
	}
	c := r.dial() // waits in the listen queue
	c.send("%sContent-Length: 1\r\n\r\nx", head)
	if n := r.server.Connections(); n != 2 {
		t.Errorf("%d connections", n)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	c.want(202, "")
}

func TestDrainAndShutdown(t *testing.T) {
	r := newRig(t, Config{})
	idle := r.dial()
	idle.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	r.dial().send(consume, "0s").want(200, "")
	parked := make([]*peer, 20)
	for i := range parked {
		parked[i] = r.dial().send(consume, "30s")
		<-r.broker.Parked
	}
	r.api.BeginDrain()
	for _, p := range parked {
		if a := p.want(204, ""); !a.Close {
			t.Error("no Connection: close")
		}
		p.ended()
	}
	fresh := r.dial() // the listener is still open, and serves
	if a := fresh.send("%sContent-Length: 1\r\n\r\nx", head).want(202, ""); !a.Close {
		t.Error("no Connection: close while draining")
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	idle.ended()
	if c, err := net.Dial("tcp", r.addr); err == nil {
		_ = c.Close()
		t.Error("the listener is open")
	}
}

func TestShutdownEndsWhatDoesNotEnd(t *testing.T) {
	r := newRig(t, Config{})
	p := r.dial()
	p.send("%sExpect: 100-continue\r\nContent-Length: 10\r\n\r\n", head)
	if a := p.read("POST"); a.StatusCode != 100 { // it is being served
		t.Fatalf("%d", a.StatusCode)
	}
	p.send("abc")
	q := r.dial()
	q.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := r.server.Shutdown(ctx); err != context.DeadlineExceeded {
		t.Errorf("Shutdown = %v", err)
	}
	if _, err := io.ReadAll(p.r); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection was not closed: %v", err)
	}
}

func TestListenerSurvivesPassingErrors(t *testing.T) {
	inner := listen(t)
	flaky := &flakyListener{Listener: inner, failures: 2}
	l := newListener(flaky, 1)
	defer l.Close()
	go func() {
		if c, err := net.Dial("tcp", inner.Addr().String()); err == nil {
			_ = c.Close()
		}
	}()
	c, err := l.Accept()
	if err != nil || flaky.failures != 0 {
		t.Fatalf("Accept = %v with %d failures left", err, flaky.failures)
	}
	_ = c.Close()
	_ = c.Close() // gives its place back once
	if len(l.places) != 0 {
		t.Errorf("%d places taken", len(l.places))
	}
}

type flakyListener struct {
	net.Listener
	failures int
}

func (l *flakyListener) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, fmt.Errorf("accept: too many open files")
	}
	return l.Listener.Accept()
}

// brokenConn takes some bytes of a write and fails.
type brokenConn struct {
	net.Conn
	takes int
}

func (c *brokenConn) Write(b []byte) (int, error) {
	if len(b) > c.takes {
		return c.takes, net.ErrClosed
	}
	return len(b), nil
}

func TestDelivered(t *testing.T) {
	for name, tt := range map[string]struct {
		takes, writes int
		want          bool
	}{
		"nothing was written":            {100, 0, false},
		"all was written":                {100, 1, true},
		"the end is missing":             {90, 1, false}, // more bytes than the body has, but not its last ones
		"nothing came of the first byte": {0, 1, false},
	} {
		c := newConn(&brokenConn{takes: tt.takes}, func(*conn) {})
		c.x.resp.Body = make([]byte, 60)
		for range tt.writes {
			_, _ = c.Write(make([]byte, 100)) // what it returns is the server's business
		}
		if got := c.delivered(); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
