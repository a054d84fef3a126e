package rpc

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/testkit"
)

// serveText answers every request of a connection with the same text.
func serveText(text string, requests *atomic.Int64) func(net.Conn) {
	return func(conn net.Conn) {
		r := bufio.NewReader(conn)
		for {
			req, err := http.ReadRequest(r)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			requests.Add(1)
			if _, err := io.WriteString(conn, text); err != nil || strings.Contains(text, "Close") {
				return
			}
		}
	}
}

// TestAnswersThatAreNotOurs: what would make the next call read the rest of this
// one's answer is an error now, never somebody else's answer later.
func TestAnswersThatAreNotOurs(t *testing.T) {
	for name, text := range map[string]string{
		"two answers":      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\naHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb",
		"longer than told": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nabc",
		"two lengths":      "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"negative length":  "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"signed length":    "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\na",
		"huge length":      "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\na",
		"both lengths":     "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"interim first":    "HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
		"no colon":         "HTTP/1.1 200 OK\r\nContent-Length 1\r\n\r\na",
		"older protocol":   "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
		"long status":      "HTTP/1.1 2000 OK\r\nContent-Length: 1\r\n\r\na",
		"endless line":     "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", readBuffer) + "\r\nContent-Length: 1\r\n\r\na",
		"endless head":     "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", maxHeaderBytes/6+1) + "Content-Length: 1\r\n\r\na",
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			p := newBadPeer(t, serveText(text, &requests))
			peer := testClient(t).Peer("", p.addr)
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
				_, err := peer.Call(ctx, echo, []byte("x"))
				cancel()
				wantTransport(t, err, true)
			}
			waitFor(t, func() bool { return p.open.Load() == 0 })
			if n := requests.Load(); n != 2 {
				t.Errorf("%d requests were sent for 2 calls", n)
			}
		})
	}
}

// TestSmallDifferencesOfForm: any HTTP/1.1 server may stand on the other side.
func TestSmallDifferencesOfForm(t *testing.T) {
	var requests atomic.Int64
	p := newBadPeer(t, serveText("HTTP/1.1 200\r\ncontent-LENGTH:1 \r\nX-Other: a:b\r\nConnection: Close\r\n\r\na", &requests))
	peer := testClient(t).Peer("", p.addr)
	for range 3 {
		reply, err := peer.Call(t.Context(), echo, []byte("x"))
		if err != nil || string(reply.Body) != "a" {
			t.Fatalf("%q, %v", reply.Body, err)
		}
	}
	waitFor(t, func() bool { return p.open.Load() == 0 }) // as the answers said
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	var dials atomic.Int64
	r := newRig(t, echoHandler)
	c := NewClient(ClientConfig{
		NodeID: "n2", ClusterID: func() string { return "c1" },
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return Dial(ctx, network, addr)
		},
	})
	defer c.Close()
	for range 50 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := c.Peer("n1", r.addr).Call(t.Context(), echo, []byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	if n := dials.Load(); n > 4 {
		t.Errorf("%d connections for 4 calls at a time", n)
	}
}

// TestWriteEndsWithItsContext: a peer that reads only the beginning does not hold
// the caller.
func TestWriteEndsWithItsContext(t *testing.T) {
	stop, begun := make(chan struct{}), make(chan struct{})
	p := newBadPeer(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		close(begun)
		<-stop
	})
	defer close(stop)
	m := Method{Name: "echo", Class: ClassCommit, MaxRequest: 64 << 20, MaxReply: 1}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-begun; cancel() }()
	_, err := testClient(t).Peer("", p.addr).Call(ctx, m, make([]byte, 32<<20))
	wantTransport(t, err, true)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestNamesCannotAddHeaders: an id that comes from elsewhere stays one word.
func TestNamesCannotAddHeaders(t *testing.T) {
	p := newBadPeer(t, hang)
	for _, id := range []string{"n1\r\nNarad-From: n3", "n 1", "n\x00"} {
		_, err := testClient(t).Peer(id, p.addr).Call(t.Context(), echo, []byte("x"))
		wantTransport(t, err, false)
	}
	if p.bytes.Load() != 0 {
		t.Error("something was sent")
	}
}
