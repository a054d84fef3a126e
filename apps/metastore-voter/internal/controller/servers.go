package controller

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// roleUnknown labels Raft servers that never registered: nobody has told their role.
const roleUnknown = "unknown"

// serverCount is what the Raft configuration says of those that do not vote.
type serverCount struct {
	nonvoters map[string]int // by role
	pending   int            // of them, those that may vote
}

func countServers(servers []raftnode.Server, members map[string]*topic.Member) serverCount {
	n := serverCount{nonvoters: map[string]int{
		string(topic.RoleVoter): 0, string(topic.RoleStorage): 0, string(topic.RoleGateway): 0, roleUnknown: 0,
	}}
	for _, s := range servers {
		if s.Voter {
			continue
		}
		role := roleUnknown
		if m := members[s.ID]; m != nil {
			role = string(m.Role)
		}
		n.nonvoters[role]++
		if role == string(topic.RoleVoter) {
			n.pending++
		}
	}
	return n
}

// serverGauges shows it on the leading voter only, so that a sum over voters
// counts nothing twice.
type serverGauges struct {
	count   func() serverCount
	leading func() bool

	nonvoters, pending *prometheus.Desc
}

func newServerGauges(count func() serverCount, leading func() bool) *serverGauges {
	return &serverGauges{
		count: count, leading: leading,
		nonvoters: prometheus.NewDesc("narad_raft_nonvoters", "Raft servers without a vote, by role; shown by the leading voter.", []string{"role"}, nil),
		pending:   prometheus.NewDesc("narad_raft_voters_pending", "Raft servers that may vote and do not yet; shown by the leading voter.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *serverGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.nonvoters
	ch <- g.pending
}

// Collect implements prometheus.Collector.
func (g *serverGauges) Collect(ch chan<- prometheus.Metric) {
	if !g.leading() {
		return
	}
	n := g.count()
	for role, k := range n.nonvoters {
		ch <- prometheus.MustNewConstMetric(g.nonvoters, prometheus.GaugeValue, float64(k), role)
	}
	ch <- prometheus.MustNewConstMetric(g.pending, prometheus.GaugeValue, float64(n.pending))
}
