package voter

import (
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
	leader := c.leader(t)
	q := leader.voter.controller
	full := func() *metaapi.QuorumResult {
		doc, err := q.Quorum(within(t))
		if err != nil {
			t.Fatal(err)
		}
		return doc
	}
	for _, s := range full().Servers {
		if !s.Reachable || s.Applied == nil || !s.Member || (s.LastContactMS == nil) != (s.ID == leader.cfg.NodeID) {
			t.Errorf("%+v", s)
		}
	}
	storage.kill()
	row := func(id string) *metaapi.QuorumServer {
		for _, s := range full().Servers {
			if s.ID == id {
				return &s
			}
		}
		return nil
	}
	if s := row("s1"); s == nil || s.Reachable || s.Applied != nil {
		t.Errorf("killed: %+v", s)
	}
	for _, m := range c {
		if m != leader {
			if _, err := m.voter.controller.Quorum(within(t)); !problem.HasCode(err, problem.NotMetastoreLeader) {
				t.Errorf("a follower: %v", err)
			}
			if doc := m.member.Quorum(within(t)); doc.LeaderID == nil || *doc.LeaderID != leader.cfg.NodeID || doc.AnsweredBy != m.cfg.NodeID {
				t.Errorf("gathered by a follower: %+v", doc)
			}
		}
	}

	raft := leader.member.Raft()
	if _, err := raft.AddNonvoter(within(t), "ghost", "127.0.0.1:1", raft.Configuration().Index); err != nil {
		t.Fatal(err)
	}
	if s := row("ghost"); s == nil || s.Member || s.Reachable {
		t.Errorf("ghost: %+v", s)
	}
	for id, code := range map[string]problem.Code{
		"nobody": problem.MemberNotFound, "s1": problem.HasMemberRecord, leader.cfg.NodeID: problem.HasMemberRecord,
	} {
		if _, err := q.Forget(within(t), &metaapi.ForgetRequest{NodeID: id}); !problem.HasCode(err, code) {
			t.Errorf("forget %s: %v", id, err)
		}
	}
	if _, err := q.Forget(within(t), &metaapi.ForgetRequest{NodeID: "ghost"}); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, patience, "the ghost is gone everywhere", func() bool {
		for _, m := range c {
			for _, s := range m.member.Raft().Configuration().Servers {
				if s.ID == "ghost" {
					return false
				}
			}
		}
		return true
	})
	if s := row("s1"); s == nil {
		t.Error("s1 went too")
	}
}
