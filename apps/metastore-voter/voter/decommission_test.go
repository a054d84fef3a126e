package voter

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// decommission asks whoever leads, until one answers.
func (c cluster) decommission(t *testing.T, req metaapi.DecommissionRequest) (res *metaapi.DecommissionResult, err error) {
	t.Helper()
	err = c.ask(t, "decommission "+req.NodeID, func(l *machine) (err error) {
		res, err = l.voter.controller.Decommission(within(t), &req)
		return err
	})
	return res, err
}

// leaves decommissions a voter that may go. While one of the others is not heard, as on
// a machine that stands still, it may not.
func (c cluster) leaves(t *testing.T, id string) {
	t.Helper()
	testkit.Poll(t, patience, id+" may go", func() bool {
		_, err := c.decommission(t, metaapi.DecommissionRequest{NodeID: id})
		if err != nil && !problem.HasCode(err, problem.DecommissionUnsafe) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// keeps cancels a decommission.
func (c cluster) keeps(t *testing.T, id string) error {
	t.Helper()
	unknown := false
	err := c.ask(t, "cancel "+id, func(l *machine) error {
		_, err := l.voter.controller.CancelDecommission(within(t), &metaapi.CancelDecommissionRequest{NodeID: id})
		if unknown && problem.HasCode(err, problem.DecommissionUnsafe) {
			return nil // it was done
		}
		unknown = unknown || problem.HasCode(err, problem.OutcomeUnknown)
		return err
	})
	return err
}

// gone waits until a node has neither record nor server, and leaves a tombstone.
func (c cluster) gone(t *testing.T, id string) {
	t.Helper()
	testkit.Poll(t, patience, id+" is gone", func() bool {
		m := c.leader(t).member
		for _, s := range m.Raft().Configuration().Servers {
			if s.ID == id {
				return false
			}
		}
		var grave *metastate.Tombstone
		err := m.Raft().Read(func(r metastate.Reader) (err error) {
			grave, err = metastate.TombstoneByID(r, id)
			return err
		})
		return err == nil && grave != nil && m.View().Members().ByID[id] == nil
	})
}

func (c cluster) without(gone *machine) cluster {
	var out cluster
	for _, m := range c {
		if m != gone {
			out = append(out, m)
		}
	}
	return out
}

// TestVotersLeave: from five the leader goes, then another one; of three nobody may.
// The processes that were removed run on and are refused, and one that comes under its
// name with an empty disk is a new member.
func TestVotersLeave(t *testing.T) {
	c := newVoters(t, 5)
	c.start()
	c.waitReady(t)
	if _, err := c.decommission(t, metaapi.DecommissionRequest{NodeID: "v9"}); !problem.HasCode(err, problem.MemberNotFound) {
		t.Errorf("nobody: %v", err)
	}
	first := c.leader(t)
	var log testkit.Journal
	c.leaves(t, first.cfg.NodeID)
	rest := c.without(first)
	rest.gone(t, first.cfg.NodeID)
	second := rest.without(rest.leader(t))[0]
	rest.leaves(t, second.cfg.NodeID)
	rest = rest.without(second)
	rest.gone(t, second.cfg.NodeID)
	testkit.Poll(t, patience, "of three, a dry run: too few would stay, and all that would are heard", func() bool {
		res, err := rest.decommission(t, metaapi.DecommissionRequest{NodeID: rest[0].cfg.NodeID, DryRun: true})
		if err != nil || res.Would {
			t.Fatalf("of three, a dry run: %+v, %v", res, err)
		}
		return len(res.Reasons) == 1 && res.Reasons[0].Code == metaapi.BelowMinVoters
	})
	if _, err := rest.decommission(t, metaapi.DecommissionRequest{NodeID: rest[0].cfg.NodeID}); !problem.HasCode(err, problem.DecommissionUnsafe) {
		t.Errorf("of three: %v", err)
	}
	if _, err := rest.decommission(t, metaapi.DecommissionRequest{NodeID: second.cfg.NodeID}); !problem.HasCode(err, problem.MemberNotFound) || !strings.Contains(err.Error(), "already") {
		t.Errorf("one that is gone: %v", err)
	}
	// Restarted with its disk it is refused, and says so.
	second.stop()
	second.journal = &log
	second.start()
	ask := &metaapi.JoinRequest{
		NodeID: second.cfg.NodeID, DiskID: second.member.DiskID(), Role: topic.RoleVoter, ClusterID: second.member.ClusterID(),
		RaftAddr: second.cfg.RaftBind, RPCAddr: second.cfg.RPCBind, NewestEntryType: 255, RaftID: second.member.Raft().ServerID(),
	}
	if _, err := rest.join(t, ask); !problem.HasCode(err, problem.Decommissioned) {
		t.Errorf("its join: %v", err)
	}
	testkit.Poll(t, patience, "it knows that it was removed", second.member.Removed)
	second.stop()
	if n := strings.Count(log.String(), "the cluster refuses this node"); n != 1 || !strings.Contains(log.String(), "decommissioned") {
		t.Errorf("said %d times: %s", n, log.String())
	}
	second.journal = nil
	second.wipe()
	second.start()
	testkit.Poll(t, patience, "it votes again, as another one", func() bool { return voting(rest.leader(t), second) })
	// A restart of what was admitted under a buried name is no old self.
	second.stop()
	second.start()
	cluster{second}.waitReady(t)
	ask = &metaapi.JoinRequest{
		NodeID: second.cfg.NodeID, DiskID: second.member.DiskID(), Role: topic.RoleVoter, ClusterID: second.member.ClusterID(),
		RaftAddr: second.cfg.RaftBind, RPCAddr: second.cfg.RPCBind, NewestEntryType: 255, RaftID: second.member.Raft().ServerID(),
	}
	if res, err := rest.join(t, ask); err != nil || res.Status != "voter" {
		t.Errorf("after a restart its join gets %+v, %v", res, err)
	}
}

// word is what a gateway answers.
type word struct {
	result atomic.Pointer[gatewayapi.DrainedResult] // nil: it refuses to say
	asked  atomic.Int64
	nonce  atomic.Uint64
}

// Drained implements gatewayapi.Drain.
func (w *word) Drained(_ context.Context, req *gatewayapi.DrainedRequest) (*gatewayapi.DrainedResult, error) {
	w.asked.Add(1)
	w.nonce.Store(uint64(req.BootNonce))
	if r := w.result.Load(); r != nil {
		return r, nil
	}
	return nil, problem.New(problem.NotReady, "starting")
}

// TestAGatewayLeavesByItsOwnWord: neither silence nor a backlog lets it go; a cancel
// in between keeps it; its last word does, and a leader that is killed right after the
// server was removed leaves nothing half done.
func TestAGatewayLeavesByItsOwnWord(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	g, other := c.joiner(t, "g1", topic.RoleGateway), c.joiner(t, "g2", topic.RoleGateway)
	w := &word{}
	g.drain = w
	g.start()
	other.start()
	append(cluster{g, other}, c...).waitReady(t)
	if _, err := c.decommission(t, metaapi.DecommissionRequest{NodeID: "g1", Operator: "ann"}); err != nil {
		t.Fatal(err)
	}
	blocked := func(code string) {
		t.Helper()
		testkit.Poll(t, patience, "it is kept back by "+code, func() bool {
			res, err := c.leader(t).voter.controller.MemberDetail(within(t), &metaapi.MemberDetailRequest{NodeID: "g1"})
			return err == nil && res.Draining && res.StartedMS > 0 && len(res.Blocked) == 1 && res.Blocked[0].Code == code
		})
	}
	blocked(metaapi.NodeStatusUnavailable)
	w.result.Store(&gatewayapi.DrainedResult{Marked: true, Sealed: true, Backlog: 7})
	blocked(metaapi.DispatchBacklog)
	if got := topic.ID64(w.nonce.Load()); got != g.member.BootNonce() {
		t.Errorf("asked about the start %s", got)
	}
	if err := c.keeps(t, "g1"); err != nil {
		t.Fatal(err)
	}
	if err := c.keeps(t, "g1"); !problem.HasCode(err, problem.DecommissionUnsafe) {
		t.Errorf("a second cancel: %v", err)
	}
	w.result.Store(&gatewayapi.DrainedResult{Marked: true, Sealed: true, Drained: true})
	if g.member.View().Members().ByID["g1"] == nil {
		t.Fatal("it went although it was to stay")
	}
	if _, err := c.decommission(t, metaapi.DecommissionRequest{NodeID: "g1"}); err != nil {
		t.Fatal(err)
	}
	c.gone(t, "g1")
	testkit.Poll(t, patience, "it knows that it was removed", g.member.Removed)
}

// TestHalfARemovalIsFinished: the server is gone and the record is not, which is what
// a leader leaves that dies between the two steps. Its join is refused meanwhile.
func TestHalfARemovalIsFinished(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	s := c.joiner(t, "s1", topic.RoleStorage)
	s.start()
	append(cluster{s}, c...).waitReady(t)
	id := raftnode.ServerID("s1", s.member.DiskID())
	testkit.Poll(t, patience, "its server is removed by whoever leads, be it after another election", func() bool {
		raft := c.leader(t).member.Raft()
		_, err := raft.RemoveServer(within(t), id, raft.Configuration().Index)
		return err == nil
	})
	testkit.Poll(t, patience, "it is marked", func() bool {
		_, _, err := c.leader(t).member.Raft().Apply(within(t), &metastate.SetDraining{ID: "s1", On: true, NowMS: 1})
		return err == nil
	})
	c.gone(t, "s1")
}
