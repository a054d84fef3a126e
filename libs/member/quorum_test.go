package member

import (
	"testing"

	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// TestOwnQuorumHasOneServer: the operator port shows what the process knows of
// itself, and claims nothing about others.
func TestOwnQuorumHasOneServer(t *testing.T) {
	stats := raftnode.Stats{
		State: "leader", LeaderID: "v1", Term: 3, TermStart: 7, Commit: 9, LastLog: 9, Applied: 8,
		Servers: []raftnode.ServerStats{
			{Server: raftnode.Server{ID: "v1", Voter: true}, Known: true, LastLog: 9},
			{Server: raftnode.Server{ID: "v2", Voter: true}, Known: true, LastLog: 9},
			{Server: raftnode.Server{ID: "s1"}, Known: true, LastLog: 9},
		},
	}
	members := map[string]*topic.Member{"v1": {ID: "v1", Role: topic.RoleVoter, Release: "r"}}
	got := ownQuorum("v1", topic.RoleVoter, stats, members)
	if len(got.Servers) != 1 || len(got.CommittedBy) != 1 || got.CommittedBy[0] != "v1" || got.Majority != 2 || got.HighWatermark != 10 {
		t.Fatalf("%+v", got)
	}
	row := got.Servers[0]
	if row.ID != "v1" || row.Suffrage != "voter" || row.State != "leader" || *row.LEO != 10 || *row.Applied != 9 || row.LastContactMS != nil || !row.Member {
		t.Errorf("%+v", row)
	}
	got = ownQuorum("g9", topic.RoleGateway, raftnode.Stats{State: "follower"}, nil)
	if len(got.Servers) != 1 || got.LeaderID != nil {
		t.Fatalf("not admitted: %+v", got)
	}
	if row := got.Servers[0]; row.ID != "g9" || row.Role != string(topic.RoleGateway) || row.Suffrage != "non_voter" || row.Member {
		t.Errorf("not admitted: %+v", row)
	}
}
