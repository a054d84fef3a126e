package rpc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// badPeer accepts connections, reads one request from each where read is set,
// then does what misbehave says; it counts the bytes that ever arrived, and the
// connections on which any did.
type badPeer struct {
	addr  string
	bytes atomic.Int64
	heard atomic.Int64
	open  atomic.Int64
}

func newBadPeer(t *testing.T, misbehave func(conn net.Conn)) *badPeer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &badPeer{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			p.open.Add(1)
			wg.Go(func() {
				defer p.open.Add(-1)
				defer conn.Close()
				misbehave(&countingConn{Conn: conn, p: p})
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); wg.Wait() })
	return p
}

type countingConn struct {
	net.Conn
	p     *badPeer
	heard bool
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.p.bytes.Add(int64(n))
	if n > 0 && !c.heard {
		c.heard = true
		c.p.heard.Add(1)
	}
	return n, err
}

// readOne reads a request and discards it.
func readOne(conn net.Conn) error {
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, req.Body)
	return err
}

func answerAfterRequest(text string) func(net.Conn) {
	return func(conn net.Conn) {
		if readOne(conn) == nil {
			_, _ = io.WriteString(conn, text)
		}
	}
}

func hang(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

func testClient(t testing.TB) *Client {
	c := NewClient(ClientConfig{NodeID: "n2", ClusterID: func() string { return "c1" }})
	t.Cleanup(c.Close)
	return c
}

func wantTransport(t *testing.T, err error, sent bool) {
	t.Helper()
	var te *TransportError
	if !errors.As(err, &te) || te.Sent != sent {
		t.Errorf("got %v, want a transport error with sent %t", err, sent)
	}
}

func TestSentIsExact(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		_, err = testClient(t).Peer("", ln.Addr().String()).Call(t.Context(), echo, []byte("x"))
		wantTransport(t, err, false)
	})
	t.Run("context over before", func(t *testing.T) {
		p := newBadPeer(t, hang)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := testClient(t).Peer("", p.addr).Call(ctx, echo, []byte("x"))
		wantTransport(t, err, false)
	})
	t.Run("all connections busy", func(t *testing.T) {
		p := newBadPeer(t, hang)
		c := testClient(t)
		peer := c.Peer("", p.addr)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		conns := defaultBounds()[ClassCommit].conns
		for range conns {
			wg.Go(func() {
				_, err := peer.Call(ctx, echo, []byte("x"))
				wantTransport(t, err, true)
			})
		}
		waitFor(t, func() bool { return p.heard.Load() == int64(conns) })
		short, end := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer end()
		_, err := peer.Call(short, echo, []byte("x"))
		wantTransport(t, err, false)
		waitForQuiet(t, &p.bytes)
		cancel()
		wg.Wait()
	})
	t.Run("no answer", func(t *testing.T) {
		p := newBadPeer(t, hang)
		peer := testClient(t).Peer("", p.addr)
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			_, err := peer.Call(ctx, echo, []byte("x"))
			over <- err
		}()
		waitFor(t, func() bool { return p.heard.Load() == 1 })
		cancel()
		wantTransport(t, <-over, true)
	})
	for name, misbehave := range map[string]func(net.Conn){
		"closed":           answerAfterRequest(""),
		"half a header":    answerAfterRequest("HTTP/1.1 200 OK\r\nContent-Le"),
		"half a body":      answerAfterRequest("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
		"half a problem":   answerAfterRequest("HTTP/1.1 503 X\r\nContent-Type: application/problem+json\r\nContent-Length: 100\r\n\r\n{"),
		"no problem":       answerAfterRequest("HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\nno"),
		"redirect":         answerAfterRequest("HTTP/1.1 307 X\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"),
		"too large":        answerAfterRequest("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n"),
		"no length":        answerAfterRequest("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
		"not even http":    answerAfterRequest("SSH-2.0-hello\r\n"),
		"interim for ever": answerAfterRequest("HTTP/1.1 100 Continue\r\n\r\n"),
	} {
		t.Run(name, func(t *testing.T) {
			p := newBadPeer(t, misbehave)
			_, err := testClient(t).Peer("", p.addr).Call(t.Context(), echo, []byte("x"))
			wantTransport(t, err, true)
		})
	}
}

func TestStaleConnectionsAreNotUnknown(t *testing.T) {
	// A peer that restarts leaves closed connections in the pool: the next calls
	// must reach the new process, not fail with an unknown outcome.
	p := newBadPeer(t, func(conn net.Conn) {
		if readOne(conn) == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
		}
	})
	var open atomic.Int64
	c := NewClient(ClientConfig{ClusterID: func() string { return "" }, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			open.Add(1)
			conn = &closeCounter{Conn: conn, closed: sync.OnceFunc(func() { open.Add(-1) })}
		}
		return conn, err
	}})
	t.Cleanup(c.Close)
	peer := c.Peer("", p.addr)
	for i := range 20 {
		reply, err := peer.Call(t.Context(), echo, []byte("x"))
		if err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
		reply.Release()
		waitFor(t, func() bool { return open.Load() == 0 }) // the closing is noticed without a call
	}
}

type closeCounter struct {
	net.Conn
	closed func()
}

func (c *closeCounter) Close() error {
	c.closed()
	return c.Conn.Close()
}

// TestNothingLeaks runs calls against peers that answer badly; connections and
// goroutines must go back to where they were.
func TestNothingLeaks(t *testing.T) {
	good := newRig(t, echoHandler)
	peers := []*badPeer{
		newBadPeer(t, hang),
		newBadPeer(t, answerAfterRequest("")),
		newBadPeer(t, answerAfterRequest("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")),
		newBadPeer(t, answerAfterRequest("HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno")),
	}
	c := testClient(t)
	before := runtime.NumGoroutine()
	for range 50 {
		for _, p := range peers {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			if _, err := c.Peer("", p.addr).Call(ctx, echo, []byte("x")); err == nil {
				t.Error("a bad peer was believed")
			}
			cancel()
		}
		if _, err := c.Peer("", good.addr).Call(t.Context(), hello, []byte("{}")); err == nil {
			t.Error("expected a refusal")
		}
	}
	c.Close()
	waitFor(t, func() bool {
		open := int64(0)
		for _, p := range peers {
			open += p.open.Load()
		}
		return open == 0 && runtime.NumGoroutine() <= before+10
	})
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatal("the condition never came true")
		}
		<-tick.C
	}
}

// waitForQuiet checks that a counter stays what it is for a few ticks.
func waitForQuiet(t *testing.T, n *atomic.Int64) {
	t.Helper()
	before := n.Load()
	<-time.After(20 * time.Millisecond)
	if after := n.Load(); after != before {
		t.Errorf("%d more bytes arrived after the call was over", after-before)
	}
}
