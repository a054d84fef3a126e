package edge

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
)

// patience is what a test waits for something that must happen.
const patience = 10 * time.Second

func TestMain(m *testing.M) {
	// The date ticks for the life of the process; the pool's cleaner sleeps for
	// ten seconds before it sees that the server has stopped.
	goleak.VerifyTestMain(m,
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
	t.Helper()
	b := fakebroker.New()
	b.Put("orders", 1)
	a, err := api.New(api.Config{NodeID: "gateway-1"}, b.Deps())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, api: a, broker: b, server: New(cfg, a, nil), served: make(chan error, 1)}
	ln := listen(t)
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

func TestKeepAliveAndPipelining(t *testing.T) {
	p := newRig(t, Config{}).dial()
	for range 3 {
		p.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	}
	one := head + "Content-Length: 1\r\n\r\nx"
	p.send("%s", one+fmt.Sprintf(consume, "0s")+one+head+"Content-Length: 0\r\n\r\n"+fmt.Sprintf(consume, "0s"))
	p.want(202, "")
	p.want(200, "")
	p.want(202, "")
	p.want(400, "empty_message")
	p.want(200, "")
	// A refused body that is short is read, and the connection goes on.
	p.send("POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nhello").want(404, "topic_not_found")
	p.send("%sTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n", head).want(202, "")
	p.send("%sContent-Length: 1\r\nConnection: close\r\n\r\nx", head).want(202, "")
	p.ended()
}

func TestTargetsAsTheyStand(t *testing.T) {
	p := newRig(t, Config{}).dial()
	for target, want := range map[string]int{
		"//v1/topics": 404, "/v1//topics": 404, "/v1/topics/../info": 404, "/v1/./info": 404, "/v1/info/": 404, "/V1/info": 404,
		"/v1/%69nfo": 404, "http://gateway/v1/info": 404, "/v1/info#a": 404, "/v1/topics/a%2fb": 400, "/v1/topics/%6frders": 200,
		"/v1/topics/..%2forders": 400, "/v1/topics/orders%00": 400, `/v1/topics/a\b`: 400, "/v1/topics/%c0%ae": 400, "/v1/info?": 200, "/v1/info?a": 400,
	} {
		p.send("GET %s HTTP/1.1\r\nHost: gateway\r\n\r\n", target)
		if a := p.read("GET"); a.StatusCode != want || a.Header.Get("Location") != "" {
			t.Errorf("%s: %d %s", target, a.StatusCode, a.body)
		}
	}
}

func TestMethods(t *testing.T) {
	p := newRig(t, Config{}).dial()
	p.send("HEAD /v1/topics/orders/consume HTTP/1.1\r\nHost: gateway\r\n\r\n")
	if a := p.read("HEAD"); a.StatusCode != 405 || a.Header.Get("Allow") != "GET, POST" || a.body != "" {
		t.Errorf("HEAD: %d %v", a.StatusCode, a.Header)
	}
	p.send("OPTIONS /v1/info HTTP/1.1\r\nHost: gateway\r\n\r\n").want(405, "method_not_allowed")
	p.send("OPTIONS * HTTP/1.1\r\nHost: gateway\r\n\r\n").want(404, "route_not_found")
	p.send("GET /v1/info HTTP/1.0\r\n\r\n").want(200, "")
	p.ended()
}

func TestMalformedRequests(t *testing.T) {
	r := newRig(t, Config{})
	long := strings.Repeat("x", 9<<10)
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"no host":          {"GET /v1/info HTTP/1.1\r\n\r\n", 400, "invalid_request"},
		"no HTTP":          {"hello\r\n\r\n", 400, "invalid_request"},
		"no version":       {"GET /v1/info HTTP/9\r\nHost: g\r\n\r\n", 400, "invalid_request"},
		"two lengths":      {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nx", 400, "invalid_request"},
		"space in a name":  {head + "Content-Length : 1\r\n\r\nx", 400, "invalid_request"},
		"other coding":     {head + "Transfer-Encoding: gzip\r\n\r\nx", 400, "invalid_request"},
		"broken chunk":     {head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "invalid_request"},
		"long line":        {"GET /v1/info?" + long + " HTTP/1.1\r\nHost: g\r\n\r\n", 414, "uri_too_long"},
		"endless line":     {"GET /v1/info?" + strings.Repeat(long, 6), 414, "uri_too_long"},
		"long headers":     {head + strings.Repeat("X-A: "+long+"\r\n", 4) + "\r\n", 431, "headers_too_large"},
		"endless headers":  {head + strings.Repeat("X-A: "+long+"\r\n", 6), 431, "headers_too_large"},
		"expects the moon": {head + "Expect: moon\r\nContent-Length: 1\r\n\r\nx", 417, "expectation_failed"},
		"other site":       {head + "Sec-Fetch-Site: cross-site\r\nContent-Length: 1\r\n\r\nx", 403, "cross_origin"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.dial()
			p.TB = t
			p.send("%s", c.request).want(c.status, c.code)
		})
	}
	if len(r.broker.Messages("orders", 0)) != 0 {
		t.Error("a malformed request was accepted")
	}
}

func TestExpectContinue(t *testing.T) {
	r := newRig(t, Config{BodyTimeout: 300 * time.Millisecond})
	t.Run("wait for 100", func(t *testing.T) {
		p := r.dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", head)
		line, err := p.r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := p.r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		p.send("hello").want(202, "")
		p.send("%sContent-Length: 1\r\n\r\nx", head).want(202, "")
	})
	t.Run("send at once", func(t *testing.T) {
		p := r.dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", head)
		if a := p.read("POST"); a.StatusCode != 100 {
			t.Fatalf("%d", a.StatusCode)
		}
		p.want(202, "")
	})
	t.Run("never send", func(t *testing.T) {
		p := r.dial()
		p.send("%sExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", head)
		if a := p.read("POST"); a.StatusCode != 100 {
			t.Fatalf("%d", a.StatusCode)
		}
		p.want(408, "request_timeout")
		p.ended()
	})
	for name, c := range map[string]struct {
		request string
		status  int
		code    string
	}{
		"too long":      {head + "Expect: 100-continue\r\nContent-Length: 2000000\r\n\r\n", 413, "message_too_large"},
		"unknown topic": {"POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 404, "topic_not_found"},
		"bad parameter": {"POST /v1/topics/orders/produce?a= HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n", 400, "invalid_request"},
		"sent anyway":   {"POST /v1/topics/nobody/produce HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello", 404, "topic_not_found"},
	} {
		t.Run(name, func(t *testing.T) {
			p := r.dial()
			p.TB = t
			if a := p.send("%s", c.request).want(c.status, c.code); !a.Close {
				t.Error("the connection is kept")
			}
			p.ended()
		})
	}
	if n := len(r.broker.Messages("orders", 0)); n != 3 {
		t.Errorf("%d messages were accepted, want 3", n)
	}
}

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
	r := newRig(t, Config{BodyTimeout: 200 * time.Millisecond, HeaderTimeout: 200 * time.Millisecond})
	for name, request := range map[string]string{
		"first byte": head + "Content-Length: 10\r\n\r\n", "some bytes": head + "Content-Length: 10\r\n\r\nabc",
		"chunked": head + "Transfer-Encoding: chunked\r\n\r\n5\r\nabc",
	} {
		p := r.dial()
		p.send("%s", request).want(408, "request_timeout")
		p.ended()
		_ = name
	}
	for name, request := range map[string]string{"nothing": "", "half a header": "POST /v1/top", "no end": head} {
		p := r.dial()
		p.send("%s", request)
		p.ended() // without an answer
		_ = name
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
	p.send("%sContent-Length: 10\r\n\r\nabc", head)
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
