package voter

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

// TestMain looks for leaks: a node that was closed leaves nothing behind.
func TestMain(m *testing.M) { leak.Main(m) }

// patience bounds every wait of these tests.
const patience = testkit.Patience

func fastRaft() raftnode.Timing {
	return raftnode.Timing{
		Heartbeat: 250 * time.Millisecond, Election: 250 * time.Millisecond, LeaderLease: 200 * time.Millisecond,
		Commit: 5 * time.Millisecond, Transport: 2 * time.Second,
	}
}

func fastMember() member.Timing {
	return member.Timing{
		JoinEvery: 100 * time.Millisecond, LeaderlessFor: time.Second, HeartbeatEvery: 200 * time.Millisecond,
		RegisterEvery: 100 * time.Millisecond, AskBudget: 500 * time.Millisecond, ProbeRounds: 2,
		ProbeEvery: 100 * time.Millisecond, StopWait: time.Second,
	}
}

func fastController() Timing {
	return Timing{
		DeadAfter: 2 * time.Second, JudgeEvery: 50 * time.Millisecond, StampEvery: 50 * time.Millisecond,
		PromoteAfter: 500 * time.Millisecond,
	}
}

// machine is one node of a test cluster: a directory and fixed addresses.
type machine struct {
	registry *prometheus.Registry // of the running process
	journal  *testkit.Journal     // with its log; nil: none
	t        testing.TB
	cfg      member.Config
	drain    gatewayapi.Drain // of a gateway; nil: its release does not know the question
	timing   Timing           // of a voter's controller
	voter    *Voter           // of a voter that runs
	member   *member.Member   // of any that runs
	cancel   context.CancelFunc
	done     chan error
}

func newMachine(t testing.TB, id string, role topic.MemberRole) *machine {
	m := &machine{t: t, timing: fastController(), cfg: member.Config{
		NodeID: id, Role: role, DataDir: filepath.Join(t.TempDir(), id), RPCBind: testkit.FreeAddr(t), RaftBind: testkit.FreeAddr(t),
		Advertise: "127.0.0.1", Release: "test", Timing: fastMember(), Raft: fastRaft(),
	}}
	t.Cleanup(m.kill)
	return m
}

func (m *machine) log() *slog.Logger {
	if m.journal != nil {
		return m.journal.Logger()
	}
	if os.Getenv("VOTER_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})).With("node", m.cfg.NodeID)
}

// start runs the machine's program in this process.
func (m *machine) start() {
	m.t.Helper()
	if err := m.tryStart(); err != nil {
		m.t.Fatalf("start %s: %v", m.cfg.NodeID, err)
	}
}

func (m *machine) tryStart() error {
	var run func(context.Context) error
	m.registry = prometheus.NewRegistry()
	if m.cfg.Role == topic.RoleVoter {
		v, err := New(Config{Member: m.cfg, Controller: m.timing}, Deps{Log: m.log(), Registry: m.registry})
		if err != nil {
			return err
		}
		m.voter, m.member, run = v, v.Member(), v.Run
	} else {
		mem, err := member.Open(m.cfg, member.Deps{Log: m.log(), Registry: m.registry})
		if err != nil {
			return err
		}
		if m.drain != nil {
			gatewayapi.ServeDrain(mem.Server(), m.drain)
		}
		m.member, run = mem, mem.Run
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.done = cancel, make(chan error, 1)
	go func() { m.done <- run(ctx) }()
	return nil
}

// stop ends it in order.
func (m *machine) stop() {
	m.t.Helper()
	if m.member == nil {
		return
	}
	m.cancel()
	if err := <-m.done; err != nil {
		m.t.Errorf("run %s: %v", m.cfg.NodeID, err)
	}
	m.close()
}

// kill ends it without an order: Raft and the RPC port go first.
func (m *machine) kill() {
	if m.member == nil {
		return
	}
	m.close()
	m.cancel()
	<-m.done // whatever it says: its parts were taken away
}

func (m *machine) close() {
	if err := m.member.Close(); err != nil {
		m.t.Errorf("close %s: %v", m.cfg.NodeID, err)
	}
	m.member, m.voter = nil, nil
}

// ready tells whether it is, and knows its cluster: it may be ready some time before it
// has stored that.
func (m *machine) ready() bool {
	return m.member != nil && len(m.member.Ready()) == 0 && m.member.ClusterID() != ""
}

// cluster is a set of machines.
type cluster []*machine

// newVoters makes voters that form a cluster together.
func newVoters(t testing.TB, n int) cluster {
	var c cluster
	var servers []raftnode.Server
	var join []string
	for i := range n {
		m := newMachine(t, fmt.Sprintf("v%d", i+1), topic.RoleVoter)
		servers = append(servers, raftnode.Server{ID: m.cfg.NodeID, Addr: m.cfg.RaftBind, Voter: true})
		join = append(join, m.cfg.RPCBind)
		c = append(c, m)
	}
	for _, m := range c {
		m.cfg.Initial, m.cfg.Join = servers, join
	}
	return c
}

// joiner makes a machine that knows the RPC addresses of c.
func (c cluster) joiner(t testing.TB, id string, role topic.MemberRole) *machine {
	m := newMachine(t, id, role)
	for _, v := range c {
		m.cfg.Join = append(m.cfg.Join, v.cfg.RPCBind)
	}
	return m
}

func (c cluster) start() {
	for _, m := range c {
		m.start()
	}
}

// waitReady waits until those that run are ready, and each sees all of them alive: who
// does not wait for its disk may see its own registration before the leader does.
func (c cluster) waitReady(t testing.TB) {
	t.Helper()
	var running cluster
	for _, m := range c {
		if m.member != nil {
			running = append(running, m)
			testkit.Poll(t, patience, m.cfg.NodeID+" is ready", m.ready)
		}
	}
	for _, m := range running {
		for _, other := range running {
			testkit.Poll(t, patience, m.cfg.NodeID+" sees "+other.cfg.NodeID, func() bool { return statusIn(m, other.cfg.NodeID) == topic.StatusAlive })
		}
	}
}

// leader waits until one of the machines leads a term.
func (c cluster) leader(t testing.TB) *machine {
	t.Helper()
	var found *machine
	testkit.Poll(t, patience, "somebody leads", func() bool {
		for _, m := range c {
			if m.voter == nil {
				continue
			}
			if _, err := m.voter.controller.Members(t.Context()); err == nil {
				found = m
				return true
			}
		}
		return false
	})
	return found
}

// elsewhere tells a refusal that an election makes: whoever leads then is asked.
func elsewhere(err error) bool {
	return problem.HasCode(err, problem.NotReady) || problem.HasCode(err, problem.NotMetastoreLeader) ||
		problem.HasCode(err, problem.NoMetastoreLeader) || problem.HasCode(err, problem.OutcomeUnknown)
}

// ask asks whoever leads, until one answers.
func (c cluster) ask(t testing.TB, what string, call func(leader *machine) error) (err error) {
	t.Helper()
	testkit.Poll(t, patience, "somebody answers: "+what, func() bool {
		err = call(c.leader(t))
		return !elsewhere(err)
	})
	return err
}

// join asks whoever leads to be let in.
func (c cluster) join(t *testing.T, req *metaapi.JoinRequest) (res *metaapi.JoinResult, err error) {
	t.Helper()
	err = c.ask(t, "join "+req.NodeID, func(l *machine) (err error) {
		res, err = l.voter.controller.Join(within(t), req)
		return err
	})
	return res, err
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func onePartition(name string) *metaapi.CreateTopicRequest {
	cfg := topic.DefaultConfig()
	cfg.Partitions = 1
	return &metaapi.CreateTopicRequest{Name: name, Config: cfg}
}
