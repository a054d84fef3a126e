package voter

import (
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestWipedVoterStaysOutUnderItsOldID: a voter whose disk is gone must not vote
// nor store for the cluster under its old id, however dead it is marked; under a
// new one it joins and is promoted.
func TestWipedVoterStaysOutUnderItsOldID(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	lost := c[0]
	lost.kill()
	lost.cfg.DataDir = filepath.Join(t.TempDir(), "new-disk")
	lost.start()
	rest := cluster{c[1], c[2]}
	testkit.Poll(t, patience, "it is marked dead", func() bool { return statusIn(rest.leader(t), lost.cfg.NodeID) == topic.StatusDead })
	_, err := lost.member.Leader().Join(within(t), &metaapi.JoinRequest{
		NodeID: lost.cfg.NodeID, DiskID: lost.member.DiskID(), Role: topic.RoleVoter, Empty: true,
		RaftAddr: lost.cfg.RaftBind, RPCAddr: lost.cfg.RPCBind, NewestEntryType: 255,
	})
	if !problem.HasCode(err, problem.IDInUse) {
		t.Errorf("a voter with another disk: %v", err)
	}
	if id, _ := lost.member.Raft().Leader(); id != "" || !lost.member.Raft().Gated() || !lost.member.Raft().Empty() {
		t.Errorf("it takes part in Raft: leader %q", id)
	}
	lost.kill()

	fresh := rest.joiner(t, "v4", topic.RoleVoter)
	fresh.start()
	testkit.Poll(t, patience, "v4 votes", func() bool {
		for _, s := range fresh.member.Raft().Configuration().Servers {
			if s.ID == "v4" && s.Voter {
				return true
			}
		}
		return false
	})
}
