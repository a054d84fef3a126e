package voter

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

func statusIn(m *machine, id string) topic.MemberStatus {
	if rec := m.member.View().Members().ByID[id]; rec != nil {
		return rec.Status
	}
	return ""
}

func TestDeadNodeIsMarkedAndLivesAgain(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	s1, s2 := c.joiner(t, "s1", topic.RoleStorage), c.joiner(t, "s2", topic.RoleStorage)
	s1.start()
	s2.start()
	append(cluster{s1, s2}, c...).waitReady(t)
	s1.kill()
	for _, m := range append(cluster{s2}, c...) { // s2, which does not wait for its disk, may see it before a leader does
		testkit.Poll(t, patience, m.cfg.NodeID+" sees s1 dead", func() bool { return statusIn(m, "s1") == topic.StatusDead })
	}
	if got := create(t, s2, "elsewhere"); got != nil {
		p, err := s2.member.View().Assignments("elsewhere")
		if err == nil && p.List[0].Leader != "s2" {
			t.Errorf("placed on a dead node: %+v, led by %q", p.List[0].Replicas, p.List[0].Leader)
		}
	}
	s1.start()
	testkit.Poll(t, patience, "s2 sees s1 alive", func() bool { return statusIn(s2, "s1") == topic.StatusAlive })
}

// TestTwoDeadVotersOfThree: there is no leader, so nobody is marked and nobody
// is ready; when one of them is back there is, and the other one is marked.
func TestTwoDeadVotersOfThree(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	s1 := c.joiner(t, "s1", topic.RoleStorage)
	s1.start()
	append(cluster{s1}, c...).waitReady(t)
	var ended sync.WaitGroup // both at once: between the two there is a leader that may mark the first
	ended.Go(c[0].kill)
	ended.Go(c[1].kill)
	ended.Wait()
	for _, m := range []*machine{s1, c[2]} {
		testkit.Poll(t, patience, m.cfg.NodeID+" says that there is no leader", func() bool {
			for _, r := range m.member.Ready() {
				if r.Code == ops.ReasonNoLeader {
					return true
				}
			}
			return false
		})
	}
	if statusIn(s1, "v1") != topic.StatusAlive || statusIn(s1, "v2") != topic.StatusAlive {
		t.Error("somebody was marked dead without a leader")
	}
	c[0].start()
	cluster{s1, c[0], c[2]}.waitReady(t)
	testkit.Poll(t, patience, "s1 sees v2 dead", func() bool { return statusIn(s1, "v2") == topic.StatusDead })
}

func TestNodeWithANewAddressIsReachedAgain(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	s1 := c.joiner(t, "s1", topic.RoleStorage)
	s1.start()
	append(cluster{s1}, c...).waitReady(t)
	s1.stop()
	s1.cfg.RaftBind, s1.cfg.RPCBind = testkit.FreeAddr(t), testkit.FreeAddr(t)
	s1.cfg.Timing.LeaderlessFor = time.Hour // it asks at its start, not only after a while
	s1.start()
	testkit.Poll(t, patience, "it is ready under its new address", s1.ready)
	for _, s := range c.leader(t).member.Raft().Configuration().Servers {
		if s.ID == "s1" && (s.Addr != s1.cfg.RaftBind || s.Voter) {
			t.Errorf("configuration has %+v", s)
		}
	}
	testkit.Poll(t, patience, "the record has it", func() bool {
		return c[0].member.View().Members().ByID["s1"].RPCAddr == s1.cfg.RPCBind
	})
}

// TestLeaderlessNodeAsksAgain: a node that was removed from the configuration
// hears no leader any more, and asks by itself to be admitted.
func TestLeaderlessNodeAsksAgain(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	s1 := c.joiner(t, "s1", topic.RoleStorage)
	s1.start()
	append(cluster{s1}, c...).waitReady(t)
	testkit.Poll(t, patience, "it is removed by whoever leads, be it after another election", func() bool {
		raft := c.leader(t).member.Raft()
		_, err := raft.RemoveServer(within(t), raftnode.ServerID("s1", s1.member.DiskID()), raft.Configuration().Index)
		return err == nil
	})
	testkit.Poll(t, patience, "it is back", func() bool { return s1.ready() && serves(c.leader(t), "s1") })
}

// serves tells whether a node is in the Raft configuration that on knows.
func serves(on *machine, id string) bool {
	return slices.ContainsFunc(on.member.Raft().Configuration().Servers, func(s raftnode.Server) bool { return s.ID == id })
}

// TestWholeClusterAtOnce kills everything and starts it again.
func TestWholeClusterAtOnce(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	s1 := c.joiner(t, "s1", topic.RoleStorage)
	s1.start()
	all := append(cluster{s1}, c...)
	all.waitReady(t)
	made := create(t, s1, "orders")
	id := s1.member.ClusterID()
	for range 2 {
		for _, m := range all {
			m.kill()
		}
		for _, m := range all {
			m.start()
		}
		all.waitReady(t)
	}
	for _, m := range all {
		got, err := m.member.View().Topic("orders")
		if err != nil || got.Incarnation != made.Topic.Incarnation || m.member.ClusterID() != id {
			t.Errorf("%s: %+v, %v, cluster %s", m.cfg.NodeID, got, err, m.member.ClusterID())
		}
	}
}
