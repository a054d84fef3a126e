package voter

import (
	"path/filepath"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// voting tells whether m, on the disk it has now, votes in the configuration
// that on knows, under any id of its own and no other.
func voting(on, m *machine) bool {
	found := false
	for _, s := range on.member.Raft().Configuration().Servers {
		if s.ID == m.cfg.NodeID {
			if found || !s.Voter || s.RaftID != raftnode.ServerID(m.cfg.NodeID, m.member.DiskID()) {
				return false
			}
			found = true
		}
	}
	return found
}

// wipe gives a machine that is down an empty disk.
func (m *machine) wipe() { m.cfg.DataDir = filepath.Join(m.t.TempDir(), "new-disk") }

// TestWipedVoterComesBackUnderItsOldID: as another server, once the one that it
// was is removed; until then it takes no part in Raft.
func TestWipedVoterComesBackUnderItsOldID(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	lost := c[0]
	lost.kill()
	lost.wipe()
	lost.start()
	ask := &metaapi.JoinRequest{
		NodeID: lost.cfg.NodeID, DiskID: lost.member.DiskID(), Role: topic.RoleVoter, Empty: true,
		RaftAddr: lost.cfg.RaftBind, RPCAddr: lost.cfg.RPCBind, NewestEntryType: 255,
	}
	rest := cluster{c[1], c[2]}
	// Whether the record of its former disk is alive, for whoever leads now.
	alive := func() bool {
		rec := rest.leader(t).member.View().Members().ByID["v1"]
		return rec != nil && rec.Status == topic.StatusAlive && rec.DiskID != lost.member.DiskID()
	}
	if _, err := rest.join(t, ask); !problem.HasCode(err, problem.IDInUse) && alive() {
		t.Errorf("while its record is alive: %v", err)
	}
	if takesPart := !lost.member.Raft().Gated() || lost.member.Raft().ServerID() != ""; takesPart && alive() {
		t.Error("it takes part in Raft, and is not admitted")
	}
	testkit.Poll(t, patience, "it votes again", func() bool { return voting(rest.leader(t), lost) })
	cluster{lost}.waitReady(t)

	// Its vote counts: with it and one other there is a majority.
	for _, m := range rest {
		testkit.Poll(t, patience, m.cfg.NodeID+" knows it", func() bool { return voting(m, lost) })
	}
	c[1].kill()
	cluster{lost, c[2]}.leader(t)
	storage := rest[1:].joiner(t, "s1", topic.RoleStorage)
	storage.start()
	cluster{storage, lost, c[2]}.waitReady(t)
	create(t, storage, "after")

	c[1].start()
	lost.stop() // a restart finds the same server again
	lost.start()
	c.waitReady(t)
	if !voting(c.leader(t), lost) {
		t.Errorf("after a restart: %+v", c.leader(t).member.Raft().Configuration().Servers)
	}
	lost.kill() // and a second disk replaces the first new one
	lost.wipe()
	lost.start()
	testkit.Poll(t, patience, "it votes on its third disk", func() bool { return voting(c.leader(t), lost) })
}

// TestNewDiskUnderANewID: a voter that never was one joins and is promoted.
func TestNewDiskUnderANewID(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	c.waitReady(t)
	c[0].kill()
	fresh := c[1:].joiner(t, "v4", topic.RoleVoter)
	fresh.start()
	testkit.Poll(t, patience, "v4 votes", func() bool { return voting(c[1:].leader(t), fresh) })
}
