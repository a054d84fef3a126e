package tlsconf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// handshakeTimeout is for one handshake: round trips of a slow client, and no
	// place for whoever connects and says nothing.
	handshakeTimeout = 5 * time.Second
	// complainEvery bounds the log lines of handshakes that fail, for each side:
	// anybody who reaches the port can make them fail.
	complainEvery = time.Minute
)

// DialFunc opens a connection; host:port is the address.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Listen puts TLS on what ln accepts. Handshakes run in the goroutine that first
// reads or writes, so that a slow client holds up nobody; one that fails ends the
// connection, and its reader sees the end of the stream.
func (s *Source) Listen(ln net.Listener) net.Listener {
	if s == nil {
		return ln
	}
	return &listener{ln, s}
}

type listener struct {
	net.Listener
	source *Source
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: tls.Server(c, l.source.current.Load().server), source: l.source}, nil
}

// conn is an accepted connection.
type conn struct {
	*tls.Conn
	source *Source
	once   sync.Once
	err    error // of the handshake; set by once
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	if err := c.handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// handshake is reported here and nowhere else: servers log every connection that
// ends in the middle of something, and none that just ends.
func (c *conn) handshake() error {
	c.once.Do(func() {
		var late atomic.Bool
		// No deadline: those of the connection belong to the server above.
		timer := time.AfterFunc(handshakeTimeout, func() {
			late.Store(true)
			_ = c.NetConn().Close() // the handshake fails with it
		})
		err := c.Conn.Handshake()
		timer.Stop()
		switch {
		case err == nil:
			return
		case late.Load():
			c.source.accepted.report(c.source, c.RemoteAddr().String(), errors.New("no handshake within the time"))
		case !wentAway(err):
			c.source.accepted.report(c.source, c.RemoteAddr().String(), err)
		}
		_ = c.NetConn().Close() // what is said about it is the handshake's error
		c.err = io.EOF
	})
	return c.err
}

// wentAway tells connections that were closed before they were of any use, as
// probes of a port are, from those that mean trouble.
func wentAway(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, net.ErrClosed)
}

// Dial puts TLS on what dial opens: the connection is returned after its
// handshake. The server has to prove that it is the host of the address.
func (s *Source) Dial(dial DialFunc) DialFunc {
	if s == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("dial %s: %w", address, err)
		}
		raw, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		cfg := s.current.Load().client.Clone()
		cfg.ServerName = host
		c := tls.Client(raw, cfg)
		shake, cancel := context.WithTimeout(ctx, handshakeTimeout)
		defer cancel()
		if err := c.HandshakeContext(shake); err != nil {
			_ = raw.Close() // the handshake's error is the one that counts
			if ctx.Err() == nil && !wentAway(err) {
				s.dialled.report(s, address, err)
			}
			return nil, fmt.Errorf("tls handshake with %s: %w", address, err)
		}
		return c, nil
	}
}

// failureLog counts the handshakes of one side that failed, and logs some.
type failureLog struct {
	count  prometheus.Counter
	last   atomic.Int64 // Unix nanoseconds of the last line
	hidden atomic.Int64 // failures since then without one
}

func (f *failureLog) report(s *Source, peer string, err error) {
	f.count.Inc()
	now, last := time.Now().UnixNano(), f.last.Load()
	if now-last < int64(complainEvery) || !f.last.CompareAndSwap(last, now) {
		f.hidden.Add(1)
		return
	}
	s.log.Warn("tls: a handshake failed", "peer", peer, "accepted", f == &s.accepted, "err", err, "more_since_the_last_line", f.hidden.Swap(0))
}
