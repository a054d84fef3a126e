package voter

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestQuorumAsksEveryServerAndForgetRemovesStrangers: over a real cluster.
func TestQuorumAsksEveryServerAndForgetRemovesStrangers(t *testing.T) {
	c := newVoters(t, 3)
	storage := c.joiner(t, "s1", topic.RoleStorage)
	c.start()
	storage.start()
	append(c, storage).waitReady(t)
	// look gathers it from whoever leads until it is right: on a machine that stands still
	// another one may lead by then, or one that was asked be late.
	look := func(what string, ok func(leader *machine, doc *metaapi.QuorumResult) bool) {
		t.Helper()
		var doc *metaapi.QuorumResult
		defer func() {
			if t.Failed() {
				t.Logf("last seen: %+v", doc)
			}
		}()
		testkit.Poll(t, patience, what, func() bool {
			leader := c.leader(t)
			var err error
			doc, err = leader.voter.controller.Quorum(within(t))
			return err == nil && ok(leader, doc)
		})
	}
	row := func(id string, ok func(*metaapi.QuorumServer) bool) func(*machine, *metaapi.QuorumResult) bool {
		return func(_ *machine, doc *metaapi.QuorumResult) bool {
			i := slices.IndexFunc(doc.Servers, func(s metaapi.QuorumServer) bool { return s.ID == id })
			return i >= 0 && ok(&doc.Servers[i])
		}
	}
	look("all answer", func(leader *machine, doc *metaapi.QuorumResult) bool {
		return len(doc.Servers) == 4 && !slices.ContainsFunc(doc.Servers, func(s metaapi.QuorumServer) bool {
			return !s.Reachable || s.Applied == nil || !s.Member || (s.LastContactMS == nil) != (s.ID == leader.cfg.NodeID)
		})
	})
	storage.kill()
	look("killed", row("s1", func(s *metaapi.QuorumServer) bool { return !s.Reachable && s.Applied == nil }))
	testkit.Poll(t, patience, "followers refuse it, and gather it for themselves", func() bool {
		leader, followers := c.leader(t), 0
		for _, m := range c {
			_, err := m.voter.controller.Quorum(within(t))
			doc := m.member.Quorum(within(t))
			if problem.HasCode(err, problem.NotMetastoreLeader) && doc.LeaderID != nil && *doc.LeaderID == leader.cfg.NodeID && doc.AnsweredBy == m.cfg.NodeID {
				followers++
			}
		}
		return followers == 2
	})

	testkit.Poll(t, patience, "the ghost is added", func() bool {
		raft := c.leader(t).member.Raft()
		_, err := raft.AddNonvoter(within(t), "ghost", "127.0.0.1:1", raft.Configuration().Index)
		return err == nil
	})
	look("ghost", row("ghost", func(s *metaapi.QuorumServer) bool { return !s.Member && !s.Reachable }))
	forget := func(id string) error {
		return c.ask(t, "forget "+id, func(l *machine) error {
			_, err := l.voter.controller.Forget(within(t), &metaapi.ForgetRequest{NodeID: id})
			return err
		})
	}
	for id, code := range map[string]problem.Code{
		"nobody": problem.MemberNotFound, "s1": problem.HasMemberRecord, "v1": problem.HasMemberRecord,
	} {
		if err := forget(id); !problem.HasCode(err, code) {
			t.Errorf("forget %s: %v", id, err)
		}
	}
	if err := forget("ghost"); err != nil && !problem.HasCode(err, problem.MemberNotFound) { // a try before may have done it
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the ghost is gone everywhere", func() bool {
		return !slices.ContainsFunc(c, func(m *machine) bool { return serves(m, "ghost") })
	})
	look("s1 stays", row("s1", func(*metaapi.QuorumServer) bool { return true }))
}
