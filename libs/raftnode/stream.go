package raftnode

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// streamLayer is TCP for Raft. It keeps its open connections, so that Close
// ends them all: Raft's transport leaves accepted ones to the peer. Each begins
// with the handshake of hello.go: two clusters never talk.
type streamLayer struct {
	net.Listener
	node      string
	log       *slog.Logger
	patience  time.Duration // for the hello of an accepted connection
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	advertise string
	ctx       context.Context // ends dials
	cancel    context.CancelFunc

	mu      sync.Mutex // guards the fields below, and what a connection says of its handshake
	cluster string     // "" until it is known
	conns   map[*trackedConn]struct{}
	said    map[greeted]bool // refusals that were logged
	closed  bool
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

func listenStream(cluster string, cfg *Config) (*streamLayer, error) {
	l, err := net.Listen("tcp", cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("listen for raft on %s: %w", cfg.Bind, err)
	}
	advertise, plane := cfg.Advertise, cfg.Plane
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
	return &streamLayer{
		Listener: l, node: cfg.NodeID, log: cfg.Logger, patience: helloTimeout, dial: plane.Dial, advertise: advertise, ctx: ctx, cancel: cancel,
		cluster: cluster, conns: map[*trackedConn]struct{}{}, said: map[greeted]bool{},
	}, nil
}

// Addr implements net.Listener: the address that others dial.
func (s *streamLayer) Addr() net.Addr { return hostPort(s.advertise) }

// Accept implements net.Listener. The handshake is made by whoever reads first,
// so that a silent peer holds nobody up.
func (s *streamLayer) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(c, true)
}

// Dial implements raft.StreamLayer; the handshake is in its time.
func (s *streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c, err := s.dial(ctx, "tcp", string(addr))
	if err != nil {
		return nil, err
	}
	t, err := s.track(c, false)
	if err != nil {
		return nil, err
	}
	if err := t.greet(ctx); err != nil {
		_ = t.Close()
		return nil, err
	}
	return t, nil
}

func (s *streamLayer) track(c net.Conn, accepted bool) (*trackedConn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	t := &trackedConn{Conn: c, layer: s, accepted: accepted}
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
	layer    *streamLayer
	accepted bool

	once    sync.Once // of the handshake of an accepted connection
	failure error     // of it

	greeted bool   // the handshake went well
	theirs  string // the cluster id that the peer named then
}

// Read implements net.Conn. To Raft a peer that was refused is one that went.
func (c *trackedConn) Read(b []byte) (int, error) {
	if c.accepted {
		c.once.Do(func() { c.failure = c.welcome() })
		if c.failure != nil {
			return 0, io.EOF
		}
	}
	return c.Conn.Read(b)
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.conns, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
