package edge

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
)

// conn is one client connection and the exchange that runs on it. But for Close
// and Abort, everything is called by the goroutine that serves it.
type conn struct {
	net.Conn
	raw    syscall.RawConn // nil: the transport has no descriptor
	closed func(*conn)     // gives the place in the listener back
	once   sync.Once

	x        exchange
	received int64 // bytes since the connection opened
	sinceLF  int64 // bytes received since the last line feed
	failed   bool  // a write failed
	sent     int64 // bytes written since the exchange began
	aborted  atomic.Bool

	// linger asks Close to read on for a while first. It is set and cleared by
	// the goroutine that serves; while it is set nobody but that one, or kill, closes.
	linger atomic.Bool
}

var _ api.Client = (*conn)(nil)

func newConn(c net.Conn, closed func(*conn)) *conn {
	out := &conn{Conn: c, closed: closed}
	below := c
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS: its end is that of the TCP connection
		below = secure.NetConn()
	}
	if sc, ok := below.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			out.raw = raw
		}
	}
	return out
}

// Read counts what came, and how long ago a line ended: a header that does not
// fit and has no line feed in it is a request line that does not fit.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received += int64(n)
	if at := bytes.LastIndexByte(b[:n], '\n'); at >= 0 {
		c.sinceLF = int64(n - at - 1)
	} else {
		c.sinceLF += int64(n)
	}
	return n, err
}

// Write remembers a failure: the server only closes the connection then, and the
// leases of an answer that did not go out must be released.
func (c *conn) Write(b []byte) (int, error) {
	if c.aborted.Load() {
		return 0, net.ErrClosed
	}
	n, err := c.Conn.Write(b)
	c.sent += int64(n)
	if err != nil {
		c.failed = true
	}
	return n, err
}

// Close may be called by anyone and more than once. When a body was answered
// before its end it sends our end of the stream and throws away what the client
// is still sending: a client that is busy sending would see a reset otherwise,
// not the answer.
func (c *conn) Close() error {
	if c.linger.Swap(false) {
		c.finish() // the answer is out: leases and memory need not wait for the rest
		c.closeWrite()
		if c.Conn.SetReadDeadline(time.Now().Add(lingerTimeout)) == nil {
			_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes) // any end of it is good
		}
	}
	return c.kill()
}

// kill closes at once, whatever is still on the way.
func (c *conn) kill() error {
	err := c.Conn.Close()
	c.once.Do(func() { c.closed(c) })
	return err
}

// finish ends the exchange of a connection that ends.
func (c *conn) finish() { c.x.end(c.delivered()) }

// delivered tells whether the answer went out in full: at least its body, and no
// write failed, which could have been the one with the body's last bytes.
func (c *conn) delivered() bool { return !c.failed && c.sent >= int64(len(c.x.resp.Body)) }

// abort lets nothing more be written: the connection ends without an answer.
func (c *conn) abort() { c.aborted.Store(true) }

// closeWrite sends the end of the stream and leaves the reading side open.
func (c *conn) closeWrite() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // it is closed in full right after
	}
}

// Gone tells whether the client has closed its side, also when it may still
// read: a client that waits for an answer keeps its side open.
func (c *conn) Gone() bool {
	if c.raw == nil {
		return false
	}
	gone := false
	// Control, not Read: nobody else may be kept from the descriptor, and an old
	// read deadline must not matter.
	if err := c.raw.Control(func(fd uintptr) { gone = hungUp(int(fd)) }); err != nil {
		return true // closed by us
	}
	return gone
}
