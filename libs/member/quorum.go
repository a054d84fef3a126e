package member

import (
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// OwnQuorum is what this process knows of the metastore's Raft by itself, as the
// quorum document with one server: for its operator port, when no gateway
// answers. A node that was not admitted yet shows itself without a vote.
func (m *Member) OwnQuorum() (any, error) { return m.raftStatus(), nil }

func (m *Member) raftStatus() *metaapi.QuorumResult {
	return ownQuorum(m.cfg.NodeID, m.cfg.Role, m.raft.Stats(), m.View().Members().ByID)
}

func ownQuorum(self string, role topic.MemberRole, s raftnode.Stats, members map[string]*topic.Member) *metaapi.QuorumResult {
	all := QuorumOf(self, s, members)
	own := metaapi.QuorumServer{}
	for _, row := range all.Servers {
		if row.ID == self {
			own = row
		}
	}
	if own.ID == "" {
		own = serverRow(self, &s, raftnode.ServerStats{Server: raftnode.Server{ID: self}}, members[self])
	}
	if own.Role == "" {
		own.Role = string(role)
	}
	committed := []string{}
	for _, id := range all.CommittedBy {
		if id == self {
			committed = append(committed, id)
		}
	}
	all.Servers, all.CommittedBy = []metaapi.QuorumServer{own}, committed
	return all
}

// QuorumOf writes a node's Raft measurements as the quorum document. Indexes
// become exclusive ends.
func QuorumOf(self string, s raftnode.Stats, members map[string]*topic.Member) *metaapi.QuorumResult {
	leads := s.State == "leader"
	out := &metaapi.QuorumResult{
		LeaderEpoch: s.Term, LeaderEpochStart: s.TermStart, HighWatermark: s.Commit + 1,
		CommittedBy: []string{}, AnsweredBy: self, Servers: []metaapi.QuorumServer{},
	}
	if s.LeaderID != "" {
		out.LeaderID = &s.LeaderID
	}
	voters := 0
	for _, srv := range s.Servers {
		row := serverRow(self, &s, srv, members[srv.ID])
		if srv.Voter {
			voters++
			if row.LEO != nil && *row.LEO >= out.HighWatermark && (leads || srv.ID == self) {
				out.CommittedBy = append(out.CommittedBy, srv.ID)
			}
		}
		out.Servers = append(out.Servers, row)
	}
	out.Majority = voters/2 + 1
	return out
}

func serverRow(self string, s *raftnode.Stats, srv raftnode.ServerStats, m *topic.Member) metaapi.QuorumServer {
	row := metaapi.QuorumServer{ID: srv.ID, Suffrage: "non_voter", State: "unknown"}
	if srv.Voter {
		row.Suffrage = "voter"
	}
	if m != nil {
		row.Member, row.Role, row.Release = true, string(m.Role), m.Release
	}
	leads := s.State == "leader"
	ownLEO := s.LastLog + 1
	switch {
	case srv.ID == self:
		applied := s.Applied + 1
		row.Reachable, row.State, row.LEO, row.Applied, row.LeaderEpoch = true, s.State, &ownLEO, &applied, &s.Term
		if !leads && s.HasContact {
			ms := s.ContactAge.Milliseconds()
			row.LastContactMS = &ms
		}
	case leads && srv.Reachable():
		leo := srv.LastLog + 1
		row.Reachable, row.State, row.LEO, row.LeaderEpoch = true, "follower", &leo, &srv.Term
	case srv.ID == s.LeaderID:
		row.State = "leader"
	}
	if leads && row.LEO != nil {
		lag := ownLEO - min(*row.LEO, ownLEO)
		row.Lag = &lag
	}
	return row
}
