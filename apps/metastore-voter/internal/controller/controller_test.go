package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = testkit.Patience

// rig is one controller over a real Raft node of one, with clocks in the test's hand.
type rig struct {
	*Controller
	node     *raftnode.Node
	nodes    *storageNodes
	sayers   *sayers // the same, as the controller reaches them
	registry *prometheus.Registry
	errors   testkit.Journal // the lines of its log that are errors
	mono     atomic.Int64    // nanoseconds
	wall     atomic.Int64    // Unix milliseconds
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := rigOver(t, openSole(t))
	r.run(t)
	if _, err := r.Members(t.Context()); !problem.HasCode(err, problem.NoRaftConfiguration) {
		t.Errorf("before it has a configuration: %v", err)
	}
	bootstrap(t, r.node, r.node)
	testkit.Poll(t, patience, "it leads", func() bool { return r.term.Load() != nil })
	return r
}

// openSole opens the node v1 of a cluster of one, without a configuration.
func openSole(t *testing.T) *raftnode.Node {
	t.Helper()
	return openNode(t, raftnode.Config{
		NodeID: "v1", Dir: t.TempDir(), Bind: "127.0.0.1:0",
		Timing: raftnode.Timing{Heartbeat: 100 * time.Millisecond, Election: 100 * time.Millisecond, LeaderLease: 100 * time.Millisecond},
	})
}

// openNode opens a voter, and closes it when the test ends.
func openNode(t *testing.T, cfg raftnode.Config) *raftnode.Node {
	t.Helper()
	cfg.BootNonce, cfg.Voter = 1, true
	node, err := raftnode.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node
}

// bootstrap gives a node the first configuration, which is the same for all voters.
func bootstrap(t *testing.T, node *raftnode.Node, voters ...*raftnode.Node) {
	t.Helper()
	var servers []raftnode.Server
	for i, n := range voters {
		servers = append(servers, raftnode.Server{ID: fmt.Sprintf("v%d", i+1), Addr: n.Addr(), Voter: true})
	}
	if err := node.Bootstrap(servers); err != nil {
		t.Fatal(err)
	}
}

// rigOver makes the controller of a node, v1, that does nothing before it runs.
func rigOver(t *testing.T, node *raftnode.Node) *rig {
	t.Helper()
	r := &rig{node: node, registry: prometheus.NewRegistry(), nodes: &storageNodes{view: node.View, silent: map[string]bool{}, vanished: map[topic.Ref]bool{}}}
	r.sayers = &sayers{storageNodes: r.nodes, promises: map[promiser]election.Promise{}}
	r.mono.Store(int64(time.Hour))
	r.wall.Store(1_764_000_000_000)
	var err error
	r.Controller, err = New(Config{
		NodeID: "v1", Raft: node, LeaderAddr: func() string { return "" }, Nodes: r.sayers, Registry: r.registry,
		Log:    slog.New(slog.NewTextHandler(&r.errors, &slog.HandlerOptions{Level: slog.LevelError})),
		Timing: Timing{JudgeEvery: 2 * time.Millisecond, StampEvery: 2 * time.Millisecond},
		Mono:   func() time.Duration { return time.Duration(r.mono.Load()) }, WallMS: r.wall.Load,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// run runs the controller until the test ends.
func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (r *rig) register(t *testing.T, id string, role topic.MemberRole) (index uint64) {
	t.Helper()
	res, err := r.Register(t.Context(), &metaapi.RegisterRequest{
		NodeID: id, DiskID: 7, BootNonce: 8, Role: role, RaftAddr: "a:1", RPCAddr: "a:2", NewestEntryType: uint8(metastate.NewestType()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return res.Index
}

func (r *rig) beat(t *testing.T, id string) {
	t.Helper()
	if err := r.Heartbeat(t.Context(), &metaapi.HeartbeatRequest{NodeID: id, DiskID: 7, BootNonce: 8, WALBacklog: 3}); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) later(d time.Duration) { r.mono.Add(int64(d)) }

func (r *rig) status(id string) topic.MemberStatus { return r.node.View().Members().ByID[id].Status }

func TestSilenceMarksDeadAndAHeartbeatRevives(t *testing.T) {
	r := newRig(t)
	r.register(t, "s1", topic.RoleStorage)
	r.register(t, "s2", topic.RoleStorage)
	for range 7 { // in steps in which nobody takes the leader for deaf
		r.later(4 * time.Second)
		r.beat(t, "s2")
	}
	r.wall.Add(-3_600_000) // the wall clock goes back an hour: nothing follows from it
	r.later(time.Second)
	r.beat(t, "s2")
	r.idle(t)
	if r.status("s1") != topic.StatusAlive {
		t.Fatal("dead after 29 s")
	}
	r.later(2 * time.Second)
	testkit.Poll(t, patience, "s1 is dead", func() bool { return r.status("s1") == topic.StatusDead })
	if r.status("s2") != topic.StatusAlive {
		t.Error("s2 was heard and is dead")
	}
	r.beat(t, "s1")
	testkit.Poll(t, patience, "s1 is alive again", func() bool { return r.status("s1") == topic.StatusAlive })
	ages, err := r.Members(t.Context())
	if err != nil || ages.AgesMS["s1"] != 0 || ages.AgesMS["s2"] != 2000 {
		t.Errorf("ages %+v, %v", ages, err)
	}
	records := ages.Members
	if len(records) != 2 || records[0].ID != "s1" || records[1].ID != "s2" || records[0].RPCAddr == "" || records[0].Role != topic.RoleStorage ||
		ages.ClusterID == "" || ages.ClusterID != r.node.View().ClusterID() {
		t.Errorf("cluster %q, records %+v", ages.ClusterID, records)
	}
}

// idle waits until some passes were made.
func (r *rig) idle(t *testing.T) {
	t.Helper()
	tick := time.NewTicker(20 * r.timing.JudgeEvery)
	defer tick.Stop()
	<-tick.C
}

func TestBreakerMarksNobodyAndSaysSo(t *testing.T) {
	r := newRig(t)
	r.register(t, "s1", topic.RoleStorage)
	r.register(t, "g1", topic.RoleGateway)
	r.later(time.Minute) // the leader hears nobody: more likely it is cut off
	testkit.Poll(t, patience, "the breaker holds", func() bool { return r.refused.Load() })
	if got := testutil.ToFloat64(gauge(t, r.registry, "narad_dead_marking_refused")); got != 1 {
		t.Errorf("the metric says %v", got)
	}
	r.idle(t)
	if r.status("s1") != topic.StatusAlive || r.status("g1") != topic.StatusAlive {
		t.Fatal("somebody was marked dead")
	}
	r.beat(t, "g1")
	testkit.Poll(t, patience, "the breaker is off", func() bool { return !r.refused.Load() })
	r.idle(t)
	if r.status("s1") != topic.StatusAlive {
		t.Fatal("s1 was marked dead for a silence that was the leader's own")
	}
	for range 8 { // 32 s in which the other one is heard, and s1 is not
		r.later(4 * time.Second)
		r.beat(t, "g1")
	}
	testkit.Poll(t, patience, "s1 is dead after the whole time in which others were heard", func() bool { return r.status("s1") == topic.StatusDead })
}

// gauge gives the one value of a registered gauge as a collector.
func gauge(t *testing.T, reg *prometheus.Registry, name string) prometheus.Collector {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name})
			g.Set(f.GetMetric()[0].GetGauge().GetValue())
			return g
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

func TestHeartbeatsShareEntries(t *testing.T) {
	r := newRig(t)
	var before uint64
	for _, id := range []string{"s1", "s2", "s3"} {
		before = r.register(t, id, topic.RoleStorage)
	}
	tm := r.term.Load()
	tm.mu.Lock() // no stamp is taken while the test adds some
	for _, id := range []string{"s1", "s2", "s3"} {
		tm.pending[id] = heartbeatOf(id)
	}
	tm.mu.Unlock()
	testkit.Poll(t, patience, "they are stamped", func() bool { return r.node.Applied() > before })
	r.idle(t)
	if n := r.node.Applied() - before; n > 2 { // one, and what Raft may add to it
		t.Errorf("three heartbeats took %d entries", n)
	}
}

func TestUnknownAndReplacedMembersMustRegister(t *testing.T) {
	r := newRig(t)
	beat := &metaapi.HeartbeatRequest{NodeID: "s1", DiskID: 7, BootNonce: 8}
	if err := r.Heartbeat(t.Context(), beat); !problem.HasCode(err, problem.MemberNotFound) {
		t.Errorf("unknown: %v", err)
	}
	r.register(t, "s1", topic.RoleStorage)
	beat.BootNonce = 9
	if err := r.Heartbeat(t.Context(), beat); !problem.HasCode(err, problem.IDInUse) {
		t.Errorf("another start: %v", err)
	}
	_, err := r.Register(t.Context(), &metaapi.RegisterRequest{NodeID: "s1", DiskID: 70, BootNonce: 9, Role: topic.RoleStorage, RaftAddr: "a:1", RPCAddr: "a:2"})
	if !problem.HasCode(err, problem.IDInUse) {
		t.Errorf("another disk while it lives: %v", err)
	}
}

func TestJoinRefusals(t *testing.T) {
	r := newRig(t)
	good := metaapi.JoinRequest{NodeID: "s1", DiskID: 7, Role: topic.RoleStorage, RaftAddr: "127.0.0.1:1", RPCAddr: "127.0.0.1:2", NewestEntryType: 255}
	for parameter, spoil := range map[string]func(*metaapi.JoinRequest){
		"node_id":   func(q *metaapi.JoinRequest) { q.NodeID = "s1#7" },
		"raft_id":   func(q *metaapi.JoinRequest) { q.RaftID = "s1#0000000000000008" },
		"disk_id":   func(q *metaapi.JoinRequest) { q.DiskID = 0 },
		"role":      func(q *metaapi.JoinRequest) { q.Role = "king" },
		"raft_addr": func(q *metaapi.JoinRequest) { q.RaftAddr = "127.0.0.1:0" },
		"rpc_addr":  func(q *metaapi.JoinRequest) { q.RPCAddr = ":1" },
	} {
		q := good
		spoil(&q)
		_, err := r.Join(t.Context(), &q)
		if !problem.HasCode(err, problem.InvalidRequest) {
			t.Errorf("%s: %v", parameter, err)
		}
	}
	for range 2 {
		if res, err := r.Join(t.Context(), &good); err != nil || res.Status != statusStaged || res.RaftID != "s1#0000000000000007" {
			t.Errorf("admitted: %+v, %v", res, err)
		}
	}
	voter := good
	voter.NodeID, voter.Role = "v2", topic.RoleVoter
	if _, err := r.Join(t.Context(), &voter); !problem.HasCode(err, problem.IDInUse) {
		t.Errorf("the address of another server: %v", err)
	}
	voter.RaftAddr = "127.0.0.1:3"
	const server = "v2#0000000000000007"
	want := []metaapi.JoinResult{{RaftID: server, Status: statusStaged}, {RaftID: server, Status: statusDeferred, Reason: "leader_too_young"}}
	for _, w := range want {
		if res, err := r.Join(t.Context(), &voter); err != nil || *res != w {
			t.Errorf("voter: %+v, %v; want %+v", res, err, w)
		}
	}
	r.later(time.Minute)
	if res, err := r.Join(t.Context(), &voter); err != nil || res.Reason != "no_member_record" {
		t.Errorf("voter without a record: %+v, %v", res, err)
	}
}

// TestFlapsPairTerms begins and ends leaderships one after the other, some
// before they were established: no term outlives its leadership, and each that
// was established is another one.
func TestFlapsPairTerms(t *testing.T) {
	r := newRig(t)
	seen := map[*term]bool{}
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		r.term.Store(nil)
		go func() { defer close(ended); r.lead(ctx) }()
		if i%2 == 0 {
			testkit.Poll(t, patience, "the term began", func() bool { return r.term.Load() != nil })
			seen[r.term.Load()] = true
		}
		cancel()
		<-ended
		if r.term.Load() != nil {
			t.Fatal("a term outlived its leadership")
		}
		if err := r.Heartbeat(t.Context(), &metaapi.HeartbeatRequest{NodeID: "s1"}); !problem.HasCode(err, problem.NotReady) {
			t.Fatalf("between terms: %v", err)
		}
	}
	if len(seen) != 10 {
		t.Errorf("%d terms", len(seen))
	}
}

func heartbeatOf(id string) metastate.Heartbeat { return metastate.Heartbeat{ID: id, BootNonce: 8} }
