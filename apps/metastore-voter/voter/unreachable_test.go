package voter

import (
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestUnreachableJoinerCostsNothing: a voter whose Raft nobody can reach is
// admitted while one of three voters is down, registers, lives and asks for a
// vote. With a vote it would make two reachable voters of four, and no leader.
func TestUnreachableJoinerCostsNothing(t *testing.T) {
	c := newVoters(t, 3)
	c.start()
	storage := c.joiner(t, "s1", topic.RoleStorage)
	storage.start()
	append(cluster{storage}, c...).waitReady(t)
	down := c[0]
	if down == c.leader(t) {
		down = c[1]
	}
	down.kill()

	v4 := c.joiner(t, "v4", topic.RoleVoter) // is not started yet: nobody answers at its address
	ask := &metaapi.JoinRequest{
		NodeID: "v4", DiskID: 4711, Role: topic.RoleVoter, RaftAddr: v4.cfg.RaftBind, RPCAddr: v4.cfg.RPCBind, NewestEntryType: 255, Empty: true,
	}
	l := storage.member.Leader()
	var reasons []string
	stay := time.Now().Add(10 * fastController().PromoteAfter)
	testkit.Poll(t, patience, "it has asked for long", func() bool {
		res, err := l.Join(within(t), ask)
		if err != nil {
			t.Logf("join: %v", err)
			return false
		}
		ask.RaftID = res.RaftID
		reasons = append(reasons, res.Status+" "+res.Reason)
		if res.Status == "promoted" || res.Status == "voter" {
			t.Fatalf("the leader made it a voter: %q", reasons)
		}
		_, err = l.Register(within(t), &metaapi.RegisterRequest{
			NodeID: "v4", DiskID: ask.DiskID, BootNonce: 1, Role: topic.RoleVoter, RaftAddr: ask.RaftAddr, RPCAddr: ask.RPCAddr, NewestEntryType: 255,
		})
		if err != nil {
			t.Logf("register: %v", err)
		}
		return time.Now().After(stay) && reasons[len(reasons)-1] == "deferred heartbeats_failing"
	})
	up := cluster{}
	for _, m := range c {
		if m != down {
			up = append(up, m)
		}
	}
	up.leader(t)
	create(t, storage, "goes-on")
	for _, s := range up.leader(t).member.Raft().Configuration().Servers {
		if s.ID == "v4" && s.Voter {
			t.Error("v4 votes")
		}
	}

	// The real one comes, on a disk of its own, once the other is dead: it replaces it.
	v4.start()
	testkit.Poll(t, patience, "v4 votes", func() bool { return voting(up.leader(t), v4) })
}

// TestDeferralsAreLoggedOnceEach: the joiner says why it does not vote yet, once however
// often it asks, and whoever leads.
func TestDeferralsAreLoggedOnceEach(t *testing.T) {
	const line = `level=INFO msg="cluster join: caught up as a raft non-voter; the leader defers promotion" reason=`
	c := newVoters(t, 1)
	usual := c[0].timing.PromoteAfter
	c[0].timing.PromoteAfter = time.Hour // however long the joiner takes until it asks
	c.start()
	v2 := c.joiner(t, "v2", topic.RoleVoter)
	v2.journal = &testkit.Journal{}
	v2.start()
	testkit.Poll(t, patience, "it says why it does not vote", func() bool { return strings.Contains(v2.journal.String(), line+"leader_too_young") })
	enough := time.Now().Add(10 * fastMember().JoinEvery)
	testkit.Poll(t, patience, "it asks again and again", func() bool { return time.Now().After(enough) })
	c[0].stop()
	c[0].timing.PromoteAfter = usual
	c[0].start()
	testkit.Poll(t, patience, "v2 votes", func() bool { return voting(c[0], v2) })
	v2.kill()
	said := v2.journal.String()
	if n := strings.Count(said, line+"leader_too_young"); n != 1 {
		t.Errorf("leader_too_young was said %d times", n)
	}
	for _, reason := range []string{"no_member_record", "heartbeats_failing", "member_dead", "member_draining"} {
		if n := strings.Count(said, line+reason); n > 1 {
			t.Errorf("%s was said %d times", reason, n)
		}
	}
}
