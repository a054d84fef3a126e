package raftnode

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
)

// TestHelloGolden holds the bytes of the handshake.
func TestHelloGolden(t *testing.T) {
	for want, h := range map[string]hello{
		"4e526401" + "04" + "63316432" + "02" + "7631": {"c1d2", "v1"},
		"4e526401" + "00" + "02" + "7631":              {"", "v1"},
	} {
		raw := h.append(nil)
		if got := hex.EncodeToString(raw); got != want {
			t.Errorf("%+v is %s, want %s", h, got, want)
		}
		rest := bytes.NewReader(append(raw, 'x'))
		if got, err := readHello(rest); err != nil || got != h || rest.Len() != 1 {
			t.Errorf("read %+v, %v, %d bytes left", got, err, rest.Len())
		}
	}
}

func TestHelloRefusals(t *testing.T) {
	good := hello{"c1", "v1"}.append(nil)
	for name, raw := range map[string][]byte{
		"raft without it": append([]byte{1}, good...),
		"http":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"a later version": append([]byte("NRd\x02"), good[4:]...),
		"no node":         hello{"c1", ""}.append(nil),
	} {
		if _, err := readHello(bytes.NewReader(raw)); !errors.Is(err, errNoHello) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for n := range good {
		if _, err := readHello(bytes.NewReader(good[:n])); err == nil || errors.Is(err, errNoHello) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// named is a cluster of one with an id.
func named(t *testing.T, node, cluster string, log *testkit.Journal) *host {
	t.Helper()
	h := newHost(t, node, true)
	h.tune, h.log = alone, log.Logger()
	bootstrapped(t, h)
	apply(t, []*host{h}, &metastate.ClusterID{ID: cluster})
	poll(t, "the transport knows the id", func() bool { return h.trans.stream.hello().cluster == cluster })
	return h
}

// vote asks for a vote that an unsuspecting node without a configuration grants
// and that raises the term of any.
func (h *host) vote(to *host) error {
	var resp raft.RequestVoteResponse
	return h.trans.RequestVote(raft.ServerID(to.id), raft.ServerAddress(to.addr), &raft.RequestVoteRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(h.id), Addr: []byte(h.addr)},
		Term:      1000, LastLogIndex: 1000, LastLogTerm: 1000, LeadershipTransfer: true,
	}, &resp)
}

// TestTwoClustersDoNotTalkRaft: neither side of a connection lets the other
// touch its Raft, and each says so once.
func TestTwoClustersDoNotTalkRaft(t *testing.T) {
	var logA, logB testkit.Journal
	a, b := named(t, "a1", "cluster-a", &logA), named(t, "b1", "cluster-b", &logB)
	term := b.raft().CurrentTerm()
	for range 3 {
		if err := a.vote(b); !errors.Is(err, errOtherCluster) {
			t.Fatalf("got %v", err)
		}
	}
	if now := b.raft().CurrentTerm(); now != term || !b.IsLeader() {
		t.Errorf("term %d became %d, leads: %t", term, now, b.IsLeader())
	}
	const line = `msg="refused a raft connection"`
	poll(t, "both sides said so", func() bool { return logA.Count(line) > 0 && logB.Count(line) > 0 })
	if logA.Count(line) != 1 || logB.Count(line) != 1 || logB.Count("cluster-a") == 0 || logA.Count("cluster-b") == 0 {
		t.Errorf("logged %d and %d times", logA.Count(line), logB.Count(line))
	}

	fresh := newHost(t, "f1", true) // before its admission it may be called by anybody, and call
	fresh.start()
	if err := a.vote(fresh); err != nil {
		t.Errorf("a node that belongs to no cluster yet: %v", err)
	}
	if err := fresh.vote(b); err != nil {
		t.Errorf("from a node that belongs to no cluster yet: %v", err)
	}
}

// TestConnectionsFromBeforeTheIDAreClosed: two nodes that met before either
// knew its cluster must not go on when it turns out that they are of two.
func TestConnectionsFromBeforeTheIDAreClosed(t *testing.T) {
	a, b := newHost(t, "a1", true), newHost(t, "b1", true)
	a.start()
	b.start()
	if err := a.vote(b); err != nil {
		t.Fatal(err)
	}
	b.trans.stream.learn("cluster-b")
	a.trans.stream.learn("cluster-a")
	poll(t, "the old connection is of no use", func() bool { return errors.Is(a.vote(b), errOtherCluster) })
	open := func(h *host) int {
		h.trans.stream.mu.Lock()
		defer h.trans.stream.mu.Unlock()
		return len(h.trans.stream.conns)
	}
	poll(t, "no connection is left", func() bool { return open(a) == 0 && open(b) == 0 })
}

// TestConnectionOfTheSameClusterStays: the leader knows the id first, and its
// connections to a joiner outlive the moment at which that learns it.
func TestConnectionOfTheSameClusterStays(t *testing.T) {
	a, b := newHost(t, "a1", true), newHost(t, "b1", true)
	a.start()
	b.start()
	a.trans.stream.learn("c1")
	if err := a.vote(b); err != nil {
		t.Fatal(err)
	}
	b.trans.stream.learn("c1")
	b.trans.stream.mu.Lock()
	left := len(b.trans.stream.conns)
	b.trans.stream.mu.Unlock()
	if err := a.vote(b); err != nil || left != 1 {
		t.Errorf("%d connections, %v", left, err)
	}
}

// TestStrangersAreRefusedCleanly: a peer that does not know the handshake, and
// one that says nothing.
func TestStrangersAreRefusedCleanly(t *testing.T) {
	var log testkit.Journal
	h := newHost(t, "v1", true)
	h.log = log.Logger()
	h.start()
	dial := func(first string) net.Conn {
		c, err := net.Dial("tcp", h.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, first); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for range 3 {
		old := dial("\x01\x8aRaft as it was before")
		if n, err := old.Read(make([]byte, 1)); n != 0 || errors.Is(err, net.ErrClosed) || isTimeout(err) {
			t.Errorf("answered %d bytes, %v", n, err)
		}
	}
	if n := log.Count("refused a raft connection"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// TestSilentPeerIsNotKept: a connection that never says who it is ends.
func TestSilentPeerIsNotKept(t *testing.T) {
	s, err := listenStream("", &Config{NodeID: "v1", Bind: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	s.patience = 20 * time.Millisecond
	silent, err := net.Dial("tcp", s.advertise)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	c, err := s.Accept() // at once: nobody waits for the peer's first word
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d, %v", n, err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// TestConnectionsAreBounded: whoever opens connections and says nothing takes no place
// from peers, the oldest silent one goes; when all places are taken by peers, one more is
// closed.
func TestConnectionsAreBounded(t *testing.T) {
	var logs testkit.Journal
	layer := func(node string) *streamLayer {
		s, err := listenStream("", &Config{NodeID: node, Bind: "127.0.0.1:0", Logger: logs.Logger()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s, peer := layer("v1"), layer("v2")
	s.most = 5
	taken := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			taken <- c
			go func() { _, _ = c.Read(make([]byte, 1)) }() // as Raft does
		}
	}()
	silent := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", s.advertise)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	count := func() (open, greeted int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			if c.greeted {
				greeted++
			}
		}
		return s.taken, greeted
	}
	closed := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := c.Read(make([]byte, 1))
		return err != nil && !isTimeout(err)
	}
	var first []net.Conn
	for range s.most {
		first = append(first, silent())
		<-taken
	}
	var peers []net.Conn
	for i := range s.most {
		c, err := peer.Dial(raft.ServerAddress(s.advertise), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, <-taken)
		defer c.Close()
		if !closed(first[i]) {
			t.Fatalf("%d peers, and the connection that has been silent longest stays", i+1)
		}
		poll(t, "the peer is known", func() bool { _, n := count(); return n == i+1 })
	}
	if !closed(silent()) {
		t.Fatal("one more was kept")
	}
	for range 2 { // a second close frees nothing
		_ = peers[0].Close()
	}
	silent()
	<-taken
	if open, greeted := count(); open != s.most || greeted != s.most-1 {
		t.Fatalf("%d connections, %d of them of peers", open, greeted)
	}
	if n := logs.Count("too many"); n != 1 {
		t.Fatalf("it was logged %d times", n)
	}
}

// TestDialEndsInTime: a peer that accepts and says nothing costs no more than
// the transport's timeout.
func TestDialEndsInTime(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	h := newHost(t, "v1", true)
	h.start()
	if _, err := h.trans.stream.Dial(raft.ServerAddress(mute.Addr().String()), 30*time.Millisecond); !isTimeout(err) {
		t.Errorf("got %v", err)
	}
}
