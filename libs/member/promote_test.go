package member

import (
	"log/slog"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestAVoteIsAskedForOnlyOnceCaughtUp: a voter without a vote that follows a leader asks
// it for one as soon as it has caught up, and asks nothing before. What keeps it back
// here is that no contact is fresh enough.
func TestAVoteIsAskedForOnlyOnceCaughtUp(t *testing.T) {
	for name, tc := range map[string]struct {
		role  topic.MemberRole
		fresh time.Duration
		asked int
	}{
		"caught up":               {topic.RoleVoter, patience, 1},
		"not caught up":           {topic.RoleVoter, time.Nanosecond, 0},
		"a storage node never is": {topic.RoleStorage, patience, 0},
	} {
		t.Run(name, func(t *testing.T) {
			leader := newPeer(t, nil) // the voice of v1
			v1 := soleVoter(t, leader.addr)
			cfg := testConfig(t, tc.role, leader.addr)
			cfg.Timing.JoinEvery = patience
			cfg.Raft = raftnode.Timing{Heartbeat: time.Hour, Election: time.Hour, FreshContact: tc.fresh} // a pause of this machine is no lost leader
			m, err := Open(cfg, Deps{Log: slog.New(slog.DiscardHandler)})                                 // it does not run: the steps are the test's
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Close(); err != nil {
					t.Error(err)
				}
			})
			server := raftnode.ServerID("n1", m.DiskID())
			if err := m.Raft().Admit(server); err != nil {
				t.Fatal(err)
			}
			if _, err := v1.AddNonvoter(t.Context(), server, m.Raft().Addr(), v1.Configuration().Index); err != nil {
				t.Fatal(err)
			}
			testkit.Poll(t, patience, "it has all that its leader has", func() bool {
				ok, why := m.Raft().CaughtUp()
				return m.LeaderAddr() == leader.addr && ok == (tc.fresh == patience) && (ok || why == "stale_contact") && m.Raft().Applied() >= v1.Applied()
			})
			j := joiner{m: m, deferred: map[string]bool{}}
			if err := j.step(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := leader.count(); n != tc.asked {
				t.Errorf("it asked %d times, want %d", n, tc.asked)
			}
		})
	}
}

// soleVoter is the Raft of v1, which leads alone; its record says that it answers at addr.
func soleVoter(t *testing.T, addr string) *raftnode.Node {
	t.Helper()
	const beat = 100 * time.Millisecond
	v1, err := raftnode.Open(raftnode.Config{
		NodeID: "v1", BootNonce: 1, Dir: t.TempDir(), Bind: "127.0.0.1:0", Voter: true,
		Timing: raftnode.Timing{Heartbeat: beat, Election: beat, LeaderLease: beat},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v1.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := v1.Bootstrap([]raftnode.Server{{ID: "v1", Addr: v1.Addr(), Voter: true}}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "v1 leads", func() bool { return v1.Barrier(t.Context()) == nil })
	_, _, err = v1.Apply(t.Context(), &metastate.RegisterMember{NowMS: 1, Member: topic.Member{
		ID: "v1", Role: topic.RoleVoter, DiskID: 1, BootNonce: 1, RPCAddr: addr, RaftAddr: v1.Addr(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return v1
}
