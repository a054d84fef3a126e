package raftnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDir) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
		}
		os.Exit(1)
	}
	leak.Main(m)
}

// patience bounds every wait of these tests.
const patience = testkit.Patience

func fastTiming() Timing {
	return Timing{
		Heartbeat: 250 * time.Millisecond, Election: 250 * time.Millisecond, LeaderLease: 200 * time.Millisecond,
		Commit: 5 * time.Millisecond, Transport: 10 * time.Second, // a call is not over because the machine stood still
		SnapshotInterval: time.Hour, TrailingLogs: 4,
	}
}

// host is one machine of a test cluster: a directory and a fixed address.
type host struct {
	t     *testing.T
	id    string
	dir   string
	addr  string
	nonce topic.ID64
	voter bool
	gated bool
	// strict lets a host without a vote wait for its disk as a voter does.
	strict bool
	hooks  hooks
	log    *slog.Logger // nil: none, but with RAFT_LOG
	tune   func(*Timing)
	*Node
}

func newHost(t *testing.T, id string, voter bool) *host {
	t.Helper()
	h := &host{t: t, id: id, dir: t.TempDir(), addr: testkit.FreeAddr(t), voter: voter}
	t.Cleanup(h.stop)
	return h
}

func (h *host) config() Config {
	logger := h.log
	if os.Getenv("RAFT_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("node", h.id)
	}
	timing := fastTiming()
	if h.tune != nil {
		h.tune(&timing)
	}
	return Config{NodeID: h.id, BootNonce: h.nonce, Dir: h.dir, Bind: h.addr, Voter: h.voter, NeverVotes: !h.voter && !h.strict, Gated: h.gated, Timing: timing, Logger: logger}
}

// start opens the node as a new process would.
func (h *host) start() {
	h.t.Helper()
	h.nonce++
	n, err := open(h.config(), h.hooks)
	if err != nil {
		h.t.Fatalf("open %s: %v", h.id, err)
	}
	h.Node = n
}

func (h *host) stop() {
	if h.Node == nil {
		return
	}
	if err := h.Node.Close(); err != nil {
		h.t.Errorf("close %s: %v", h.id, err)
	}
	h.Node = nil
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// poll waits until ok holds.
func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func single(t *testing.T) *host {
	t.Helper()
	h := newHost(t, "v1", true)
	h.tune = alone
	return bootstrapped(t, h)
}

// alone makes elections of a sole voter quick: it has nobody to hear from.
func alone(t *Timing) {
	t.Heartbeat, t.Election, t.LeaderLease = 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
}

func bootstrapped(t *testing.T, h *host) *host {
	t.Helper()
	h.start()
	if err := h.Bootstrap([]Server{{ID: h.id, Addr: h.addr, Voter: true}}); err != nil {
		t.Fatal(err)
	}
	leaderOf(t, h)
	return h
}

// trio starts three voters and waits for a leader.
func trio(t *testing.T, tune ...func(*Timing)) []*host {
	t.Helper()
	return trioWith(t, func(h *host) {
		for _, f := range tune {
			h.tune = f
		}
	})
}

// trioWith is trio with each host prepared before it starts.
func trioWith(t *testing.T, prepare func(*host)) []*host {
	t.Helper()
	var hosts []*host
	var servers []Server
	for i := range 3 {
		h := newHost(t, fmt.Sprintf("v%d", i+1), true)
		prepare(h)
		h.start()
		hosts = append(hosts, h)
		servers = append(servers, Server{ID: h.id, Addr: h.addr, Voter: true})
	}
	for _, h := range hosts {
		// The first two may have elected a leader that has told the third already.
		if err := h.Bootstrap(servers); err != nil && !errors.Is(err, ErrHasState) {
			t.Fatal(err)
		}
	}
	leaderOf(t, hosts...)
	return hosts
}

// leaderOf waits for a leader that passes a barrier.
func leaderOf(t *testing.T, hosts ...*host) *host {
	t.Helper()
	var found *host
	poll(t, "a leader", func() bool {
		for _, h := range hosts {
			if h.Node != nil && h.IsLeader() && h.Barrier(t.Context()) == nil {
				found = h
				return true
			}
		}
		return false
	})
	return found
}

// apply proposes through whichever host leads, and fails on a refusal.
func apply(t *testing.T, hosts []*host, e metastate.Entry) (uint64, *metastate.Result) {
	t.Helper()
	index, res, again := proposed(t, hosts, e)
	if err := res.Err(); err != nil && !again {
		t.Fatalf("refused: %v", err)
	}
	return index, res
}

func propose(t *testing.T, hosts []*host, e metastate.Entry) (uint64, *metastate.Result) {
	t.Helper()
	index, res, _ := proposed(t, hosts, e)
	return index, res
}

// proposed has an entry on the log. On a busy machine a leader may lose its place
// while it commits; then the entry is proposed again, and may be refused because it
// took effect the first time.
func proposed(t *testing.T, hosts []*host, e metastate.Entry) (index uint64, res *metastate.Result, again bool) {
	t.Helper()
	for {
		index, res, err := leaderOf(t, hosts...).Apply(within(t), e)
		switch {
		case errors.Is(err, ErrOutcomeUnknown):
			again = true
		case errors.Is(err, ErrNotLeader):
		case err != nil:
			t.Fatal(err)
		default:
			return index, res, again
		}
	}
}

func register(h *host) *metastate.RegisterMember {
	return registerAs(h.id, topic.RoleStorage, h.nonce)
}

func registerAs(id string, role topic.MemberRole, nonce topic.ID64) *metastate.RegisterMember {
	return &metastate.RegisterMember{NowMS: 1, Member: topic.Member{ID: id, Role: role, DiskID: 7, BootNonce: nonce}}
}

func createTopic(name string, incarnation topic.Incarnation, node string) *metastate.CreateTopic {
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	t := topic.Topic{Name: name, Incarnation: incarnation, Config: cfg}
	return &metastate.CreateTopic{Topic: t, Assignments: []topic.Assignment{{
		Ref:      topic.Ref{Topic: name, Incarnation: incarnation},
		Replicas: []topic.Replica{{Node: node, DiskID: 7}}, Leader: node, LeaderEpoch: 1, ConfigVersion: 1,
	}}}
}

// nonvoter starts a host and has the leader add it.
func nonvoter(t *testing.T, id string, cluster ...*host) *host {
	t.Helper()
	h := newHost(t, id, false)
	h.start()
	addNonvoter(t, h, cluster...)
	return h
}

func addNonvoter(t *testing.T, h *host, cluster ...*host) {
	t.Helper()
	poll(t, "the leader adds "+h.id, func() bool {
		l := leaderOf(t, cluster...)
		_, err := l.AddNonvoter(t.Context(), h.id, h.addr, l.Configuration().Index)
		return err == nil
	})
}

func waitApplied(t *testing.T, index uint64, hosts ...*host) {
	t.Helper()
	for _, h := range hosts {
		if err := h.WaitApplied(within(t), index); err != nil {
			t.Fatalf("%s: %v", h.id, err)
		}
	}
}

// dump is the whole replicated state as text.
func (h *host) dump() string {
	h.t.Helper()
	var b strings.Builder
	err := h.Read(func(r metastate.Reader) error {
		for _, bucket := range metastate.Buckets() {
			r.Scan(bucket, nil, func(k, v []byte) bool {
				fmt.Fprintf(&b, "%s %q %s\n", bucket, k, v)
				return true
			})
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return b.String()
}

// fill applies n topics, named by prefix, with incarnations from first on.
func fill(t *testing.T, hosts []*host, prefix string, first topic.Incarnation, n int) (last uint64) {
	t.Helper()
	for i := range n {
		last, _ = apply(t, hosts, createTopic(fmt.Sprintf("%s%d", prefix, i), first+topic.Incarnation(i), "s1"))
	}
	return last
}
