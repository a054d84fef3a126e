package raftnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The handshake of a Raft connection: each side sends one hello, the dialling one
// first, and the accepting one when it has read that. Raft's own bytes follow.
//
//	offset  bytes  what
//	0       3      "NRd"
//	3       1      version, 1
//	4       1      c: length of the cluster id; 0 before the node knows it
//	5       c      cluster id
//	5+c     1      n: length of the node id, 1..255
//	6+c     n      node id of the sender, for log lines; it proves nothing
//
// Two sides that name different clusters both close. An empty id goes with any:
// the node is not admitted yet. It costs one round trip per connection; Raft keeps
// three per peer for as long as they live.

const (
	helloMagic   = "NRd"
	helloVersion = 1
	// helloTimeout is how long an accepted connection may take to say who it is.
	helloTimeout = TransportTimeout
	// maxGreeted bounds the peers whose refusals are remembered, to log each once.
	maxGreeted = 256
)

var (
	errOtherCluster = errors.New("it belongs to another cluster")
	errNoHello      = errors.New("it does not speak this cluster's Raft")
)

// hello is what one side says of itself.
type hello struct {
	cluster string
	node    string
}

// append writes the hello. Ids are short: a cluster's has 32 bytes, a node's up to 63.
func (h hello) append(b []byte) []byte {
	b = append(b, helloMagic...)
	b = append(b, helloVersion, byte(len(h.cluster)))
	b = append(b, h.cluster...)
	b = append(b, byte(len(h.node)))
	return append(b, h.node...)
}

// readHello reads exactly one hello. Errors wrap errNoHello unless the
// connection itself failed.
func readHello(r io.Reader) (hello, error) {
	var head [len(helloMagic) + 1]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return hello{}, err
	}
	if string(head[:len(helloMagic)]) != helloMagic {
		return hello{}, fmt.Errorf("%w: it began with %q", errNoHello, head)
	}
	if v := head[len(helloMagic)]; v != helloVersion {
		return hello{}, fmt.Errorf("%w: version %d of the handshake, this release speaks %d", errNoHello, v, helloVersion)
	}
	cluster, err := readShort(r)
	if err != nil {
		return hello{}, err
	}
	node, err := readShort(r)
	if err == nil && node == "" {
		err = fmt.Errorf("%w: it has no node id", errNoHello)
	}
	return hello{cluster, node}, err
}

func readShort(r io.Reader) (string, error) {
	var b [256]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return "", err
	}
	n := int(b[0])
	_, err := io.ReadFull(r, b[:n])
	return string(b[:n]), err
}

// differ tells whether two cluster ids keep nodes apart.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// greet makes the handshake of a dialled connection.
func (c *trackedConn) greet(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(at); err != nil {
			return err
		}
	}
	ours := c.layer.hello()
	if _, err := c.Conn.Write(ours.append(nil)); err != nil {
		return err
	}
	theirs, err := readHello(c.Conn)
	if err == nil {
		err = c.settle(ours, theirs)
	}
	if err != nil {
		return c.layer.refused(theirs, c.RemoteAddr(), err)
	}
	return c.SetDeadline(time.Time{})
}

// welcome makes the handshake of an accepted connection. The answer goes out
// before the verdict, so that both sides know why it ended.
func (c *trackedConn) welcome() error {
	if err := c.SetDeadline(time.Now().Add(c.layer.patience)); err != nil {
		return err
	}
	theirs, err := readHello(c.Conn)
	if err != nil {
		return c.layer.refused(theirs, c.RemoteAddr(), err)
	}
	ours := c.layer.hello()
	if _, err := c.Conn.Write(ours.append(nil)); err != nil {
		return err
	}
	if err := c.settle(ours, theirs); err != nil {
		return c.layer.refused(theirs, c.RemoteAddr(), err)
	}
	return c.SetDeadline(time.Time{})
}

// settle decides, and notes what was said for the moment when this node learns
// its cluster id. When it did meanwhile, the peer was told less than it must know.
func (c *trackedConn) settle(ours, theirs hello) error {
	c.layer.mu.Lock()
	defer c.layer.mu.Unlock()
	switch known := c.layer.cluster; {
	case differ(known, theirs.cluster):
		return fmt.Errorf("%w, %q", errOtherCluster, theirs.cluster)
	case known != ours.cluster && known != theirs.cluster:
		return net.ErrClosed // dialled again, both know more
	}
	c.greeted, c.theirs = true, theirs.cluster
	return nil
}

// hello is what this node says now.
func (s *streamLayer) hello() hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	return hello{s.cluster, s.node}
}

// learn tells the cluster id, once it is known. Connections on which it was not
// known yet are closed and dialled again, unless the peer named the same one: a
// peer that had none either might since belong to another cluster.
func (s *streamLayer) learn(cluster string) {
	var old []*trackedConn
	s.mu.Lock()
	if s.cluster == "" {
		s.cluster = cluster
		for c := range s.conns {
			if c.greeted && c.theirs != cluster {
				old = append(old, c)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range old {
		_ = c.Close()
	}
}

// refused logs a peer that is none, once each, and returns the error.
func (s *streamLayer) refused(theirs hello, from net.Addr, err error) error {
	if !errors.Is(err, errOtherCluster) && !errors.Is(err, errNoHello) {
		return err // the network, or the peer went away
	}
	peer := theirs.node
	if peer == "" {
		if peer, _, _ = net.SplitHostPort(from.String()); peer == "" {
			peer = from.String()
		}
	}
	key := greeted{peer, theirs.cluster}
	s.mu.Lock()
	say := !s.said[key] && len(s.said) < maxGreeted
	if say {
		s.said[key] = true
	}
	s.mu.Unlock()
	if say {
		s.log.Error("refused a raft connection", "peer", peer, "address", from.String(), "err", err)
	}
	return fmt.Errorf("raft connection with %s: %w", from, err)
}

// greeted is a peer of another cluster, or none, that was refused.
type greeted struct{ peer, cluster string }
