package gossip

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
)

const (
	patience = testkit.Patience
	// suspectedWithin is the promise of the plane.
	suspectedWithin = 2 * time.Second
)

// childEnv makes the test binary a node of its own, for a test to stop.
const childEnv = "GOSSIP_TEST_CHILD"

func TestMain(m *testing.M) {
	if cluster := os.Getenv(childEnv); cluster != "" {
		child(cluster)
		return
	}
	leak.Main(m)
}

// table is the members of record of a test.
type table struct {
	mu      sync.Mutex // guards what follows
	cluster string
	peers   map[string]string
	changed chan struct{}
}

func newTable(cluster string) *table {
	return &table{cluster: cluster, peers: map[string]string{}, changed: make(chan struct{})}
}

func (tb *table) put(id, addr string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.peers[id] = addr
	close(tb.changed)
	tb.changed = make(chan struct{})
}

func (tb *table) form(cluster string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.cluster = cluster
	close(tb.changed)
	tb.changed = make(chan struct{})
}

func (tb *table) source() Source {
	return Source{
		ClusterID: func() string {
			tb.mu.Lock()
			defer tb.mu.Unlock()
			return tb.cluster
		},
		Peers: func() map[string]string {
			tb.mu.Lock()
			defer tb.mu.Unlock()
			out := map[string]string{}
			for id, a := range tb.peers {
				out[id] = a
			}
			return out
		},
		Changed: func() <-chan struct{} {
			tb.mu.Lock()
			defer tb.mu.Unlock()
			return tb.changed
		},
	}
}

type node struct {
	*Gossip
	id   string
	stop func() // without a word to the others
}

func open(t *testing.T, tb *table, id string, key []byte, log io.Writer) *node {
	t.Helper()
	if log == nil {
		log = io.Discard
	}
	g, err := Open(Config{
		NodeID: id, Bind: "127.0.0.1:0", Advertise: "127.0.0.1", Key: key,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	tb.put(id, g.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, tb.source()) }()
	n := &node{g, id, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		g.Close()
	})}
	t.Cleanup(n.stop)
	return n
}

func (n *node) suspects(id string) bool { return n.cfg.Suspects.Has(id) }

// together waits until each node hears n nodes.
func together(t *testing.T, nodes []*node, n int) {
	t.Helper()
	for _, g := range nodes {
		testkit.Poll(t, patience, fmt.Sprintf("%s hears %d nodes", g.id, n), func() bool { return g.members.Load() == int64(n) })
	}
}

func cluster(t *testing.T, tb *table, n int, key []byte) []*node {
	t.Helper()
	var nodes []*node
	for i := range n {
		nodes = append(nodes, open(t, tb, fmt.Sprintf("n%d", i+1), key, nil))
	}
	together(t, nodes, n)
	return nodes
}

func mustKey(t *testing.T, secret string) []byte {
	t.Helper()
	key, err := Key([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// rounds is how often a test asks for suspectedWithin at the most. Who probes whom is
// chance, and a busy machine is late by itself: one round in time shows that the plane
// is as fast as it says, and one that is slower never has one.
const rounds = 4

// suspectedInTime runs rounds until in one of them all suspect a node in time.
func suspectedInTime(t *testing.T, round func() time.Duration) {
	t.Helper()
	var all []time.Duration
	for range rounds {
		took := round()
		all = append(all, took)
		if took <= suspectedWithin {
			t.Logf("suspected by all after %v", all)
			return
		}
	}
	t.Errorf("suspected after %v, promised within %s", all, suspectedWithin)
}

// TestSilentNodeIsSuspected: everybody suspects it within 2 s, nobody else is
// suspected, and when it is back, at another port, it is not any more.
func TestSilentNodeIsSuspected(t *testing.T) {
	tb := newTable("c1")
	nodes := cluster(t, tb, 5, mustKey(t, "a secret of some length"))
	suspectedInTime(t, func() time.Duration {
		watcher := nodes[0].cfg.Suspects.Changed()
		nodes[4].stop()
		begin := time.Now()
		for _, n := range nodes[:4] {
			testkit.Poll(t, patience, n.id+" suspects n5", func() bool { return n.suspects("n5") })
		}
		took := time.Since(begin)
		select {
		case <-watcher:
		case <-time.After(patience):
			t.Error("the change was not told")
		}
		for _, n := range nodes[:4] {
			testkit.Poll(t, patience, n.id+" suspects n5 alone", func() bool { return len(n.cfg.Suspects.All()) == 1 })
		}
		nodes[4] = open(t, tb, "n5", nodes[0].cfg.Key, nil)
		together(t, nodes, 5)
		for _, n := range nodes[:4] {
			testkit.Poll(t, patience, n.id+" trusts n5 again", func() bool { return !n.suspects("n5") })
		}
		return took
	})
}

// TestStrangersStayOut: another key, no key, another cluster, or no member of
// record: none of them is heard, and none of them hurts.
func TestStrangersStayOut(t *testing.T) {
	key := mustKey(t, "a secret of some length")
	tb := newTable("c1")
	nodes := cluster(t, tb, 3, key)
	outside := func(id, label string, k []byte) *node {
		other := newTable(label)
		for _, n := range nodes {
			other.put(n.id, n.Addr())
		}
		return open(t, other, id, k, nil)
	}
	wrong := []*node{
		outside("other-key", "c1", mustKey(t, "another secret of some length")),
		outside("no-key", "c1", nil),
		outside("other-cluster", "c2", key),
	}
	for _, w := range wrong {
		tb.put(w.id, w.Addr())
	}
	stranger := outside("stranger", "c1", key)
	deadline := time.Now().Add(3 * time.Second)
	testkit.Poll(t, patience, "time passes", func() bool {
		for _, n := range nodes {
			if got := n.members.Load(); got > 3 {
				t.Fatalf("%s hears %d nodes", n.id, got)
			}
			for id := range n.cfg.Suspects.All() {
				if !slices.ContainsFunc(nodes, func(o *node) bool { return o.id == id }) {
					t.Fatalf("%s suspects %s, which it never heard", n.id, id)
				}
			}
		}
		for _, w := range wrong {
			if got := w.members.Load(); got > 1 {
				t.Fatalf("%s hears %d nodes", w.id, got)
			}
		}
		return time.Now().After(deadline)
	})
	// On a machine that stands still one of the three may not have heard another for a moment.
	together(t, nodes, 3)
	for _, n := range nodes {
		testkit.Poll(t, patience, n.id+" suspects nobody", func() bool { return len(n.cfg.Suspects.All()) == 0 })
	}
	tb.put("stranger", stranger.Addr()) // and once it is a member it is heard
	together(t, nodes, 4)
}

// TestWaitsForTheCluster: before the id is known nobody is heard, the port turns
// everybody away, and Close works.
func TestWaitsForTheCluster(t *testing.T) {
	tb := newTable("")
	a, b := open(t, tb, "a", nil, nil), open(t, tb, "b", nil, nil)
	for range 20 {
		conn, err := net.Dial("tcp", a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("a connection before its time: %v", err)
		}
		_ = conn.Close()
	}
	if a.members.Load() != 0 {
		t.Error("it gossips without a label")
	}
	c := open(t, tb, "c", nil, nil)
	c.stop()
	tb.form("c1")
	together(t, []*node{a, b}, 2)
	never, err := Open(Config{NodeID: "n", Bind: "127.0.0.1:0", Advertise: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	never.Close()
	never.Close()
	if err := never.Run(context.Background(), tb.source()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{NodeID: "n", Bind: a.Addr(), Advertise: "127.0.0.1"}); err == nil {
		t.Error("two nodes hold one port")
	}
	a.Close() // while it runs
}

// TestGarbageIsHarmless: whatever comes on either side of the port, the cluster
// goes on, nobody is suspected, and the log stays short.
func TestGarbageIsHarmless(t *testing.T) {
	for name, key := range map[string][]byte{"plaintext": nil, "encrypted": mustKey(t, "a secret of some length")} {
		t.Run(name, func(t *testing.T) {
			tb := newTable("c1")
			log := &testkit.Journal{}
			first := open(t, tb, "n1", key, log)
			nodes := []*node{first, open(t, tb, "n2", key, nil), open(t, tb, "n3", key, nil)}
			together(t, nodes, 3)
			udp, err := net.Dial("udp", first.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer udp.Close()
			label := append([]byte{244, 2}, "c1"...) // what memberlist puts in front: type 244, length, label
			for i := range 600 {
				noise := make([]byte, 1+i*2)
				if _, err := rand.Read(noise); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					noise = append(append([]byte(nil), label...), noise...)
					noise[len(label)] = byte(i / 2 % 16) // a message type
				}
				if _, err := udp.Write(noise); err != nil {
					t.Logf("udp: %v", err)
				}
				if i%10 == 0 {
					spit(t, first.Addr(), noise)
				}
			}
			begin := time.Now()
			testkit.Poll(t, patience, "time passes", func() bool { return time.Since(begin) > suspectedWithin })
			together(t, nodes, 3)
			for _, n := range nodes {
				testkit.Poll(t, patience, n.id+" suspects nobody", func() bool { return len(n.cfg.Suspects.All()) == 0 })
			}
			if n := log.Count("\n"); n > 20 {
				t.Errorf("garbage filled the log with %d lines", n)
			}
		})
	}
}

func spit(t *testing.T, addr string, b []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(b); err != nil {
		t.Logf("tcp: %v", err)
	}
}

// child is a node n9 in a process of its own, beside those whose addresses come
// on standard input.
func child(cluster string) {
	tb := newTable(cluster)
	g, err := Open(Config{NodeID: "n9", Bind: "127.0.0.1:0", Advertise: "127.0.0.1"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tb.put("n9", g.Addr())
	fmt.Println(g.Addr())
	for range 2 {
		var id, addr string
		if _, err := fmt.Scan(&id, &addr); err != nil {
			return
		}
		tb.put(id, addr)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		cancel()
	}()
	_ = g.Run(ctx, tb.source())
}

// TestStoppedNodeObjects: a process that hangs is suspected within 2 s, and heard
// again soon after it goes on.
func TestStoppedNodeObjects(t *testing.T) {
	tb := newTable("c1")
	nodes := []*node{open(t, tb, "n1", nil, nil), open(t, tb, "n2", nil, nil)}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"=c1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	var addr string
	if _, err := fmt.Fscan(out, &addr); err != nil {
		t.Fatal(err)
	}
	tb.put("n9", addr)
	for _, n := range nodes {
		fmt.Fprintln(in, n.id, n.Addr())
	}
	together(t, nodes, 3)
	suspectedInTime(t, func() time.Duration {
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for _, n := range nodes {
			testkit.Poll(t, patience, n.id+" suspects n9", func() bool { return n.suspects("n9") })
		}
		took := time.Since(begin)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		for _, n := range nodes {
			testkit.Poll(t, patience, n.id+" trusts n9 again", func() bool { return !n.suspects("n9") })
		}
		t.Logf("trusted again after %s", time.Since(begin))
		return took
	})
}

func TestKey(t *testing.T) {
	a, b := mustKey(t, "a secret of some length"), mustKey(t, "\n a secret of some length\n")
	if !bytes.Equal(a, b) || len(a) != 32 || bytes.Equal(a, mustKey(t, "another secret of some length")) {
		t.Errorf("keys %x, %x", a, b)
	}
	for _, bad := range []string{"", "   ", "too short", strings.Repeat("x", MaxSecretBytes+1)} {
		if _, err := Key([]byte(bad)); !errors.Is(err, ErrSecret) {
			t.Errorf("a secret of %d bytes: %v", len(bad), err)
		}
	}
	path := filepath.Join(t.TempDir(), "secret")
	if _, err := ReadKey(path); err == nil {
		t.Error("a file that is not there was read")
	}
	if err := os.WriteFile(path, []byte("a secret of some length\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadKey(path); err != nil || !bytes.Equal(got, a) {
		t.Errorf("from a file: %x, %v", got, err)
	}
}
