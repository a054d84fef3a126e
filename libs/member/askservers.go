package member

import (
	"context"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
)

const (
	// askServersFor is how long all Raft servers together have for their answers.
	askServersFor = 2 * time.Second
	// maxAsking bounds the questions under way: the largest cluster that is tested
	// has 50 servers, and a quorum document is asked for by people.
	maxAsking = 64
)

// Quorum is the quorum document as this process can gather it: its own Raft, and
// what every server of the configuration says of itself within 2 s. On the leader
// it is complete. Elsewhere, with no leader, the high watermark is the highest
// commit index that a server reported, and committed_by are the voters whose
// logs are that long: two logs of one length may differ in what is above it.
func (m *Member) Quorum(ctx context.Context) *metaapi.QuorumResult {
	stats := m.raft.Stats()
	out := QuorumOf(m.cfg.NodeID, stats, m.View().Members().ByID)
	ctx, cancel := context.WithTimeout(ctx, askServersFor)
	defer cancel()
	said := make([]report, len(out.Servers))
	slots := make(chan struct{}, maxAsking)
	var all sync.WaitGroup
	for i := range out.Servers {
		id := out.Servers[i].ID
		rec := m.View().Members().ByID[id]
		if id == m.cfg.NodeID || rec == nil || rec.RPCAddr == "" {
			continue // a server without a record has no address; Raft's own contact tells
		}
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			said[i] = reportOf(metaapi.RaftStatus(ctx, m.client.Peer(id, rec.RPCAddr)))
		})
	}
	all.Wait()
	merge(out, said, stats.State == "leader")
	return out
}

// report is what one server said when it was asked.
type report struct {
	asked    bool
	answered bool
	doc      *metaapi.QuorumResult // its own view; nil: it said nothing that helps
}

func reportOf(doc *metaapi.QuorumResult, err error) report {
	switch {
	case problem.HasCode(err, problem.RouteNotFound): // a release before the question
		return report{asked: true, answered: true}
	case err != nil || len(doc.Servers) != 1:
		return report{asked: true}
	}
	return report{asked: true, answered: true, doc: doc}
}

// merge puts what the servers said of themselves into the document; said has one
// report per server. leads: the document's own numbers are the leader's.
func merge(out *metaapi.QuorumResult, said []report, leads bool) {
	for i := range said {
		if said[i].asked {
			overlay(&out.Servers[i], said[i])
		}
	}
	if !leads {
		leaderless(out, said)
	}
	leader := leaderOf(out)
	out.CommittedBy = []string{}
	for i := range out.Servers {
		s := &out.Servers[i]
		s.Lag = nil
		if leader != nil && leader.LEO != nil && s.LEO != nil {
			lag := *leader.LEO - min(*s.LEO, *leader.LEO)
			s.Lag = &lag
		}
		if s.Suffrage == "voter" && s.LEO != nil && *s.LEO >= out.HighWatermark {
			out.CommittedBy = append(out.CommittedBy, s.ID)
		}
	}
}

// leaderless takes the numbers that describe the whole group from what the
// servers said. A leader that was heard of does not count, only one that says so.
func leaderless(out *metaapi.QuorumResult, said []report) {
	out.LeaderID, out.LeaderEpochStart = nil, 0
	for i := range said {
		if doc := said[i].doc; doc != nil {
			out.HighWatermark = max(out.HighWatermark, doc.HighWatermark)
			out.LeaderEpoch = max(out.LeaderEpoch, doc.LeaderEpoch)
		}
	}
	var epoch uint64
	for i := range said {
		row, doc := &out.Servers[i], said[i].doc
		if doc != nil && row.State == "leader" && doc.LeaderEpoch >= epoch { // one that was cut off still has an older epoch
			epoch = doc.LeaderEpoch
			out.LeaderID, out.LeaderEpoch, out.LeaderEpochStart = &row.ID, epoch, doc.LeaderEpochStart
		}
	}
}

func leaderOf(out *metaapi.QuorumResult) *metaapi.QuorumServer {
	for i := range out.Servers {
		if s := &out.Servers[i]; out.LeaderID != nil && s.ID == *out.LeaderID {
			return s
		}
	}
	return nil
}

// overlay replaces what this process knew of another server by what that said.
func overlay(row *metaapi.QuorumServer, r report) {
	row.Reachable = r.answered
	if !r.answered {
		row.State, row.LastContactMS, row.Applied = "unknown", nil, nil
		return
	}
	if r.doc == nil {
		return
	}
	own := r.doc.Servers[0]
	row.State, row.LeaderEpoch, row.LEO = own.State, own.LeaderEpoch, own.LEO
	row.Applied, row.LastContactMS = own.Applied, own.LastContactMS
}
