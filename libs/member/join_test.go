package member

import (
	"context"
	"log/slog"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/testkit/leak"
	"github.com/narad-mq/narad/libs/topic"
)

func TestMain(m *testing.M) { leak.Main(m) }

const patience = testkit.Patience

// peer is a voter that answers joins as the test says and nothing else.
type peer struct {
	metaapi.Voter
	addr string

	mu    sync.Mutex // guards what follows
	err   error
	asked []metaapi.JoinRequest
}

func newPeer(t *testing.T, err error) *peer {
	t.Helper()
	p := &peer{err: err}
	s := rpc.NewServer(rpc.ServerConfig{NodeID: "peer", ClusterID: func() string { return "c1" }, Log: slog.New(slog.DiscardHandler)})
	metaapi.Serve(s, p)
	p.addr = testkit.Serve(t, s)
	return p
}

func (p *peer) Join(_ context.Context, req *metaapi.JoinRequest) (*metaapi.JoinResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, *req)
	if p.err != nil {
		return nil, p.err
	}
	return &metaapi.JoinResult{RaftID: raftnode.ServerID(req.NodeID, req.DiskID), Status: "staged"}, nil
}

func (p *peer) set(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (p *peer) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

func testConfig(t *testing.T, role topic.MemberRole, join ...string) Config {
	return Config{
		NodeID: "n1", Role: role, DataDir: filepath.Join(t.TempDir(), "n1"), RPCBind: "127.0.0.1:0", RaftBind: "127.0.0.1:0",
		Advertise: "127.0.0.1", Join: join, Zone: "z", Release: "r",
		Timing: Timing{JoinEvery: 5 * time.Millisecond, ProbeRounds: 2, ProbeEvery: 5 * time.Millisecond, AskBudget: patience},
	}
}

// running opens and runs a member; stop ends it.
func running(t *testing.T, cfg Config, log *testkit.Journal) (m *Member, stop func()) {
	t.Helper()
	m, err := Open(cfg, Deps{Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return m, stop
}

func TestJoinLoop(t *testing.T) {
	leader := newPeer(t, nil)
	follower := newPeer(t, metaapi.NotLeader("v9", leader.addr)) // the leader is in nobody's list
	empty := newPeer(t, problem.New(problem.NoRaftConfiguration, "empty"))
	log := &testkit.Journal{}
	cfg := testConfig(t, topic.RoleStorage, empty.addr, follower.addr)
	m, stop := running(t, cfg, log)

	testkit.Poll(t, patience, "the leader was asked again and again", func() bool { return leader.count() > 3 })
	leader.mu.Lock() // it is asked on meanwhile
	got := leader.asked[0]
	leader.mu.Unlock()
	want := metaapi.JoinRequest{
		NodeID: "n1", DiskID: m.DiskID(), Role: topic.RoleStorage, RaftAddr: m.Raft().Addr(), RPCAddr: m.RPCAddr(), Zone: "z", Release: "r",
		NewestEntryType: got.NewestEntryType, Empty: true,
	}
	if got != want || got.NewestEntryType == 0 {
		t.Errorf("asked %+v, want %+v", got, want)
	}

	// The peers lose sight of the leader: it is remembered.
	follower.set(metaapi.NotLeader("", ""))
	before := leader.count()
	testkit.Poll(t, patience, "a remembered leader is asked", func() bool { return leader.count() > before+2 })

	// It refuses: said once, asked on.
	leader.set(problem.New(problem.OlderRelease, "too old"))
	before = leader.count()
	testkit.Poll(t, patience, "it keeps asking", func() bool { return leader.count() > before+5 })
	if n := log.Count("level=ERROR msg=\"the cluster refuses this node"); n != 1 {
		t.Errorf("the refusal was logged %d times", n)
	}
	if r := m.Ready(); len(r) == 0 || r[0].Code != ops.ReasonNotAdmitted {
		t.Errorf("readiness: %+v", r)
	}
	stop()

	_, stop = running(t, cfg, log)
	defer stop()
	testkit.Poll(t, patience, "it asks after a restart, and does not call its directory empty any more", func() bool {
		empty.mu.Lock() // a request of the process before may still arrive
		defer empty.mu.Unlock()
		last := empty.asked[len(empty.asked)-1]
		return last.DiskID == want.DiskID && !last.Empty
	})
}

// TestEachRefusalIsLoggedOnce: peers that refuse for different reasons do not take
// turns in the log, and a leader that waits for something says so once per reason.
func TestEachRefusalIsLoggedOnce(t *testing.T) {
	other := newPeer(t, problem.New(problem.WrongCluster, "another one"))
	leader := newPeer(t, problem.New(problem.IDInUse, "taken"))
	waiting := newPeer(t, problem.New(problem.NotReady, "1 of 2 answer"))
	log := &testkit.Journal{}
	_, stop := running(t, testConfig(t, topic.RoleStorage, other.addr, leader.addr, waiting.addr), log)
	asked := func() {
		t.Helper()
		before := waiting.count()
		testkit.Poll(t, patience, "it keeps asking", func() bool { return waiting.count() > before+5 })
	}
	asked()
	waiting.set(problem.New(problem.NotReady, "0 of 2 answer"))
	asked()
	waiting.set(problem.New(problem.NotReady, "1 of 2 answer"))
	asked()
	stop()
	for _, line := range []string{"code=wrong_cluster", "code=id_in_use", `reason="1 of 2 answer"`, `reason="0 of 2 answer"`} {
		if n := log.Count(line); n != 1 {
			t.Errorf("%s was logged %d times: %s", line, n, log)
		}
	}
}

// TestOnceIsBounded: what peers can make up costs no memory and no lines without end.
func TestOnceIsBounded(t *testing.T) {
	o, logged := once{}, 0
	for i := range 10 * maxSaid {
		if o.first(strconv.Itoa(i)) {
			logged++
		}
	}
	if logged != maxSaid || len(o) != maxSaid {
		t.Errorf("%d logged, %d remembered", logged, len(o))
	}
}

// TestRefusalsAreSaidAgainAfterALeaderWasSeen: the next time it is another story.
func TestRefusalsAreSaidAgainAfterALeaderWasSeen(t *testing.T) {
	cfg := testConfig(t, topic.RoleVoter)
	cfg.FormAlone = true
	m, stop := running(t, cfg, &testkit.Journal{})
	defer stop()
	testkit.Poll(t, patience, "it leads", func() bool { id, _ := m.Raft().Leader(); return id != "" })
	j := joiner{m: m, asking: true, said: once{"id_in_use": true}, deferred: once{}}
	for _, want := range []bool{true, false} { // then it is a refusal while the leader is in view
		if err := j.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := j.said.first("id_in_use"); got != want {
			t.Errorf("said: %t, want %t", got, want)
		}
	}
}

// TestProbe: an initial member forms a cluster exactly when no peer answers as a
// member of one.
func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		answer error
		forms  bool
	}{
		"nobody has a configuration": {problem.New(problem.NoRaftConfiguration, "empty"), true},
		"a leader admits it":         {nil, false},
		"a follower answers":         {metaapi.NotLeader("", ""), false},
		"refused by a cluster":       {problem.New(problem.Decommissioned, "gone"), false},
		"an error proves nothing":    {problem.New(problem.Internal, "oops"), true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPeer(t, tc.answer)
			cfg := testConfig(t, topic.RoleVoter, p.addr)
			cfg.RaftBind = testkit.FreeAddr(t)
			cfg.Initial = []raftnode.Server{{ID: "n1", Addr: cfg.RaftBind, Voter: true}}
			m, stop := running(t, cfg, &testkit.Journal{})
			if tc.forms {
				testkit.Poll(t, patience, "it formed a cluster", func() bool { return !m.Raft().Empty() })
			} else {
				testkit.Poll(t, patience, "it asks to join", func() bool { return p.count() > 5 })
				if !m.Raft().Empty() {
					t.Error("it formed a rival cluster")
				}
			}
			stop()
		})
	}
}

func TestOpenRefusals(t *testing.T) {
	good := testConfig(t, topic.RoleStorage, "127.0.0.1:1")
	for name, spoil := range map[string]func(*Config){
		"nobody to join":        func(c *Config) { c.Join = nil },
		"a storage node forms":  func(c *Config) { c.FormAlone = true },
		"a gateway has members": func(c *Config) { c.Role, c.Initial = topic.RoleGateway, []raftnode.Server{{}} },
		"no id":                 func(c *Config) { c.NodeID = "" },
		"no role":               func(c *Config) { c.Role = "king" },
	} {
		cfg := good
		spoil(&cfg)
		if m, err := Open(cfg, Deps{}); err == nil {
			t.Errorf("%s: it opened", name)
			_ = m.Close()
		}
	}
}
