package raftnode

import (
	"context"
	"errors"
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
	most      int             // accepted connections, maxAccepted
	ctx       context.Context // ends dials
	cancel    context.CancelFunc

	mu      sync.Mutex // guards the fields below, and what a connection says of its handshake
	cluster string     // "" until it is known
	conns   map[*trackedConn]struct{}
	number  uint64           // of the newest
	taken   int              // of conns, those that were accepted
	crowded bool             // there were too many, and it was logged
	said    map[greeted]bool // refusals that were logged
	closed  bool
}

var _ raft.StreamLayer = (*streamLayer)(nil)

// maxAccepted bounds the open connections that others have dialled; each has a goroutine and
// a buffer, and takes one of the files that logs need too. Raft keeps three per peer and
// one more for what it sends on; 100 nodes that all lead in turn are 400. When there are so
// many, a new one takes the place of that which has been silent longest: a peer says who it
// is at once. Nobody is silent: the new one is closed.
const maxAccepted = 1024

// errCrowded: as many connections are open as may be.
var errCrowded = errors.New("too many connections")

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
		Listener: l, node: cfg.NodeID, log: cfg.Logger, patience: helloTimeout, most: maxAccepted, dial: plane.Dial, advertise: advertise, ctx: ctx, cancel: cancel,
		cluster: cluster, conns: map[*trackedConn]struct{}{}, said: map[greeted]bool{},
	}, nil
}

// Addr implements net.Listener: the address that others dial.
func (s *streamLayer) Addr() net.Addr { return hostPort(s.advertise) }

// Accept implements net.Listener. The handshake is made by whoever reads first,
// so that a silent peer holds nobody up.
func (s *streamLayer) Accept() (net.Conn, error) {
	for {
		c, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		t, err := s.track(c, true)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, errCrowded) {
			return nil, err
		}
	}
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
	t, out, err := s.trackLocked(c, accepted)
	s.mu.Unlock()
	if out != nil {
		_ = out.Close()
	}
	return t, err
}

// trackLocked puts a connection on the list; out is one that has to be closed for it, or c.
func (s *streamLayer) trackLocked(c net.Conn, accepted bool) (t *trackedConn, out net.Conn, err error) {
	if s.closed {
		return nil, c, net.ErrClosed
	}
	s.number++
	t = &trackedConn{Conn: c, layer: s, accepted: accepted, number: s.number}
	if accepted && s.taken >= s.most {
		if !s.crowded {
			s.crowded = true
			s.log.Warn("there are too many connections to the Raft port; silent ones are closed", "open", s.taken, "peer", c.RemoteAddr().String())
		}
		silent := s.silentLocked()
		if silent == nil {
			return nil, c, errCrowded
		}
		s.leaveLocked(silent)
		out = silent.Conn
	}
	s.conns[t] = struct{}{}
	if accepted {
		s.taken++
	}
	return t, out, nil
}

// silentLocked is the oldest accepted connection that has not said who it is; nil: all have.
func (s *streamLayer) silentLocked() (oldest *trackedConn) {
	for c := range s.conns {
		if c.accepted && !c.greeted && (oldest == nil || c.number < oldest.number) {
			oldest = c
		}
	}
	return oldest
}

// leaveLocked takes a connection off the list, if it is on it.
func (s *streamLayer) leaveLocked(c *trackedConn) {
	if _, open := s.conns[c]; open && c.accepted {
		s.taken--
		s.crowded = s.crowded && s.taken > s.most/2
	}
	delete(s.conns, c)
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
	number   uint64 // in the order they were opened

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
	c.layer.leaveLocked(c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}
