package raftnode

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer is TCP for Raft. It keeps its open connections, so that Close
// ends them all: Raft's transport leaves accepted ones to the peer. This is
// where a cluster id handshake belongs.
type streamLayer struct {
	net.Listener
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	advertise string
	ctx       context.Context // ends dials
	cancel    context.CancelFunc

	mu     sync.Mutex // guards the fields below
	conns  map[*trackedConn]struct{}
	closed bool
}

var _ raft.StreamLayer = (*streamLayer)(nil)

// hostPort is an address as it was given: a name stays a name.
type hostPort string

// Network implements net.Addr.
func (hostPort) Network() string { return "tcp" }

// String implements net.Addr.
func (a hostPort) String() string { return string(a) }

// Plane says how Raft's connections are made. The zero value is plain TCP.
type Plane struct {
	Listen func(net.Listener) net.Listener                                      // goes around the listener; nil: nothing does
	Dial   func(ctx context.Context, network, address string) (net.Conn, error) // nil: plain TCP
}

func listenStream(bind, advertise string, plane Plane) (*streamLayer, error) {
	l, err := net.Listen("tcp", bind)
	if err != nil {
		return nil, fmt.Errorf("listen for raft on %s: %w", bind, err)
	}
	if advertise == "" {
		advertise = l.Addr().String()
	}
	if plane.Listen != nil {
		l = plane.Listen(l)
	}
	if plane.Dial == nil {
		plane.Dial = (&net.Dialer{}).DialContext
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &streamLayer{Listener: l, dial: plane.Dial, advertise: advertise, ctx: ctx, cancel: cancel, conns: map[*trackedConn]struct{}{}}, nil
}

// Addr implements net.Listener: the address that others dial.
func (s *streamLayer) Addr() net.Addr { return hostPort(s.advertise) }

// Accept implements net.Listener.
func (s *streamLayer) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

// Dial implements raft.StreamLayer.
func (s *streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c, err := s.dial(ctx, "tcp", string(addr))
	if err != nil {
		return nil, err
	}
	return s.track(c)
}

func (s *streamLayer) track(c net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t := &trackedConn{c, s}
	s.conns[t] = struct{}{}
	return t, nil
}

// Close ends listening, dials and every connection. It may be called again.
func (s *streamLayer) Close() error {
	s.cancel()
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	open := s.conns
	s.conns = map[*trackedConn]struct{}{}
	s.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	if !first {
		return nil
	}
	return s.Listener.Close()
}

// trackedConn takes itself off the list when it is closed.
type trackedConn struct {
	net.Conn
	layer *streamLayer
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.conns, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
