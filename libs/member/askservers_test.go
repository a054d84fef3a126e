package member

import (
	"errors"
	"reflect"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// says is the report of a server with a log of leo entries, exclusive.
func says(id, state string, epoch, hwm, leo, applied uint64, contactMS int64) report {
	row := metaapi.QuorumServer{ID: id, State: state, LeaderEpoch: &epoch, LEO: &leo, Applied: &applied, Reachable: true}
	if state != "leader" {
		row.LastContactMS = &contactMS
	}
	return reportOf(&metaapi.QuorumResult{LeaderEpoch: epoch, LeaderEpochStart: epoch * 10, HighWatermark: hwm, Servers: []metaapi.QuorumServer{row}}, nil)
}

// threeVoters are v1, v2 and v3, and s1, which has no vote and a log as long as theirs.
func threeVoters(state string, self int) (*metaapi.QuorumResult, []report) {
	ids := []string{"v1", "v2", "v3", "s1"}
	stats := raftnode.Stats{State: state, LeaderID: "v1", Term: 3, TermStart: 30, Commit: 99, LastLog: 99, Applied: 98}
	members := map[string]*topic.Member{}
	for _, id := range ids {
		rec := &topic.Member{ID: id, Role: topic.RoleVoter}
		if id == "s1" {
			rec.Role = topic.RoleStorage
		}
		stats.Servers = append(stats.Servers, raftnode.ServerStats{
			Server: raftnode.Server{ID: id, Voter: rec.Role == topic.RoleVoter}, Known: state == "leader", LastLog: 99, Term: 3,
		})
		members[id] = rec
	}
	return QuorumOf(ids[self], stats, members), make([]report, len(ids))
}

// TestLeaderAddsWhatServersSay: applied and last contact of others are their own
// words, and who did not answer is not reachable, whatever Raft last heard.
func TestLeaderAddsWhatServersSay(t *testing.T) {
	doc, said := threeVoters("leader", 0)
	said[1] = says("v2", "follower", 3, 98, 97, 96, 41)
	said[2] = reportOf(nil, errors.New("no route"))
	merge(doc, said, true)
	two, three := doc.Servers[1], doc.Servers[2]
	if !two.Reachable || *two.Applied != 96 || *two.LEO != 97 || *two.Lag != 3 || *two.LastContactMS != 41 || two.State != "follower" {
		t.Errorf("v2 %+v", two)
	}
	if three.Reachable || three.Applied != nil || three.LastContactMS != nil || three.State != "unknown" || *three.LEO != 100 {
		t.Errorf("v3 %+v", three)
	}
	if four := doc.Servers[3]; four.Suffrage != "non_voter" || *four.LEO != 100 || *four.Lag != 0 {
		t.Errorf("s1 %+v", four)
	}
	if *doc.LeaderID != "v1" || doc.HighWatermark != 100 || doc.LeaderEpoch != 3 || doc.LeaderEpochStart != 30 || !reflect.DeepEqual(doc.CommittedBy, []string{"v1", "v3"}) {
		t.Errorf("%+v", doc)
	}
	doc, said = threeVoters("leader", 0)
	said[1] = reportOf(nil, problem.New(problem.RouteNotFound, "a release before"))
	merge(doc, said, true)
	if two := doc.Servers[1]; !two.Reachable || two.Applied != nil || *two.LEO != 100 {
		t.Errorf("an older release: %+v", two)
	}
}

// TestNobodyLeads: the document is made of what the servers say, and a leader
// that this one only heard of is not in it.
func TestNobodyLeads(t *testing.T) {
	doc, said := threeVoters("follower", 2)
	said[0] = reportOf(nil, errors.New("down"))
	said[1] = says("v2", "candidate", 5, 102, 110, 101, 9000)
	said[3] = says("s1", "follower", 4, 102, 110, 101, 9000) // it counts for no majority
	merge(doc, said, false)
	if doc.LeaderID != nil || doc.LeaderEpoch != 5 || doc.LeaderEpochStart != 0 || doc.HighWatermark != 102 || doc.Majority != 2 ||
		!reflect.DeepEqual(doc.CommittedBy, []string{"v2"}) || doc.Servers[0].Reachable || doc.Servers[0].State != "unknown" || doc.Servers[1].Lag != nil {
		t.Errorf("%+v", doc)
	}
	doc, said = threeVoters("follower", 2)
	said[0] = says("v1", "leader", 4, 102, 110, 101, 0)
	said[1] = says("v2", "leader", 3, 90, 95, 95, 0) // cut off, and does not know yet
	merge(doc, said, false)
	if doc.LeaderID == nil || *doc.LeaderID != "v1" || doc.LeaderEpoch != 4 || doc.LeaderEpochStart != 40 || *doc.Servers[2].Lag != 10 {
		t.Errorf("two say that they lead: %+v", doc)
	}
}
