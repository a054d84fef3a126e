package voter

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/gossip"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestGossipDecidesNothing: everybody suspects a storage node, for several times
// the silence that makes a member dead, while it goes on sending heartbeats. Nobody is marked dead, no partition loses its leader or changes its
// epoch, and the Raft configuration stays as it is.
func TestGossipDecidesNothing(t *testing.T) {
	c := newVoters(t, 3)
	for _, m := range c {
		m.cfg.GossipBind = "127.0.0.1:0"
	}
	storage := c.joiner(t, "s1", topic.RoleStorage)
	gateway := c.joiner(t, "g1", topic.RoleGateway)
	gateway.cfg.GossipBind = "127.0.0.1:0"
	c.start()
	gateway.start()
	all := append(append(cluster{}, c...), gateway)
	all.waitReady(t)

	// s1 says that it gossips, and does, in this test's hands.
	leader := c.leader(t)
	storage.start()
	append(cluster{storage}, all...).waitReady(t)
	hands := borrowGossip(t, storage, leader)
	if err := leader.member.Raft().WaitApplied(within(t), create(t, leader, "orders").Index); err != nil {
		t.Fatal(err)
	}
	before := stateOf(t, leader)
	testkit.Poll(t, patience, "everybody hears everybody", func() bool {
		for _, m := range all {
			if gossipMembers(t, m) < len(all)+1 {
				return false
			}
		}
		return hands.heard(len(all) + 1)
	})
	hands.silence()
	suspected := func(id string) func() bool {
		return func() bool {
			for _, m := range all {
				if m.cfg.NodeID != id && !m.member.Suspects().Has(id) {
					return false
				}
			}
			return true
		}
	}
	testkit.Poll(t, patience, "everybody suspects s1", suspected("s1"))
	end := time.Now().Add(3 * fastController().DeadAfter)
	testkit.Poll(t, patience, "time passes", func() bool {
		if got := stateOf(t, leader); got != before {
			t.Fatalf("gossip changed the metastore: %+v, before %+v", got, before)
		}
		return time.Now().After(end)
	})
	// A busy machine may have kept the leader from being heard for a moment; who is
	// silent here stays so.
	testkit.Poll(t, patience, "readiness does not follow gossip", func() bool { return leader.ready() && storage.ready() })
	if !suspected("s1")() {
		t.Error("s1 is not suspected any more: the test showed nothing")
	}
}

// gossipMembers is how many nodes m hears, itself too, as its metric says.
func gossipMembers(t *testing.T, m *machine) int {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "narad_gossip_members" {
			return int(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	t.Fatalf("%s has no metric of gossip", m.cfg.NodeID)
	return 0
}

// verdicts is all that gossip must not touch.
type verdicts struct {
	alive, members, servers, voters int
	leader                          string
	epoch                           topic.Epoch
	config                          uint64
}

func stateOf(t *testing.T, m *machine) verdicts {
	t.Helper()
	var v verdicts
	view := m.member.View()
	for _, rec := range view.Members().ByID {
		v.members++
		if rec.Status == topic.StatusAlive {
			v.alive++
		}
	}
	for _, s := range m.member.Raft().Configuration().Servers {
		v.servers++
		if s.Voter {
			v.voters++
		}
	}
	parts, err := view.Assignments("orders")
	if err != nil {
		t.Fatal(err)
	}
	v.leader, v.epoch, v.config = parts.List[0].Leader, parts.List[0].LeaderEpoch, parts.List[0].ConfigVersion
	return v
}

// borrowed is a node's gossip that a test may silence while the node lives.
type borrowed struct {
	members func() int
	silence func()
}

func (b borrowed) heard(n int) bool { return b.members() >= n }

// borrowGossip registers s again, as the same process, with the address of a
// Gossip that the test runs for it.
func borrowGossip(t *testing.T, s, leader *machine) borrowed {
	t.Helper()
	self := *leader.member.View().Members().ByID[s.cfg.NodeID]
	g, err := gossip.Open(gossip.Config{NodeID: self.ID, Bind: "127.0.0.1:0", Advertise: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "it is registered by whoever leads", func() bool {
		_, err := leader.member.Leader().Register(within(t), &metaapi.RegisterRequest{
			NodeID: self.ID, DiskID: self.DiskID, BootNonce: self.BootNonce, Role: self.Role, RaftAddr: self.RaftAddr, RPCAddr: self.RPCAddr,
			GossipAddr: g.Addr(), Zone: self.Zone, Release: self.Release, NewestEntryType: self.NewestEntryType,
		})
		if err != nil && !elsewhere(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	view := leader.member.View()
	go func() {
		done <- g.Run(ctx, gossip.Source{
			ClusterID: view.ClusterID, Changed: view.Changed,
			Peers: func() map[string]string {
				peers := map[string]string{}
				for id, rec := range view.Members().ByID {
					peers[id] = rec.GossipAddr
				}
				return peers
			},
		})
	}()
	return borrowed{members: g.Members, silence: func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}}
}

// TestMembersOfAnotherSecretAreNotHeard: the key of a member's gossip is that of its
// secret file. With another one it is a member all the same, and hears nobody.
func TestMembersOfAnotherSecretAreNotHeard(t *testing.T) {
	c := newVoters(t, 3)
	for i, m := range c {
		secret := "the secret of the first two"
		if i == 2 {
			secret = "another one of some length"
		}
		m.journal, m.cfg.GossipBind, m.cfg.SecretFile = &testkit.Journal{}, "127.0.0.1:0", filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(m.cfg.SecretFile, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.start()
	c.waitReady(t)
	for _, m := range c {
		testkit.Poll(t, patience, m.cfg.NodeID+" gossips", func() bool { return m.journal.Count("gossip has started") == 1 })
		if m.journal.Count("encrypted=true") != 1 {
			t.Errorf("%s gossips in plaintext", m.cfg.NodeID)
		}
	}
	testkit.Poll(t, patience, "the first two hear each other", func() bool { return gossipMembers(t, c[0]) == 2 && gossipMembers(t, c[1]) == 2 })
	end := time.Now().Add(time.Second) // some rounds
	testkit.Poll(t, patience, "time passes", func() bool {
		for i, want := range []int{2, 2, 1} {
			if n := gossipMembers(t, c[i]); n > want {
				t.Fatalf("%s hears %d", c[i].cfg.NodeID, n)
			}
		}
		return time.Now().After(end)
	})
}
