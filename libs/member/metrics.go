package member

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/topic"
)

// registerMetrics shows the member's Raft and its replica's members.
func (m *Member) registerMetrics(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	gauge := func(name, help string, value func() float64) error {
		return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	err := errors.Join(
		gauge("narad_raft_has_leader", "1 while a Raft leader is in view.", func() float64 {
			if id, _ := m.raft.Leader(); id != "" {
				return 1
			}
			return 0
		}),
		gauge("narad_raft_last_contact_seconds", "Time since the Raft leader was heard; 0 on the leader, -1 when never.", func() float64 {
			if age, ok := m.raft.LeaderContact(); ok {
				return age.Seconds()
			}
			return -1
		}),
		gauge("narad_raft_applied_index", "Index up to which the metastore replica has applied.", func() float64 {
			return float64(m.raft.Applied())
		}),
		r.Register(&memberGauge{
			m:    m,
			desc: prometheus.NewDesc("narad_members", "Members of record in this node's replica.", []string{"role", "status"}, nil),
		}),
	)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// memberGauge counts the members when it is asked.
type memberGauge struct {
	m    *Member
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (g *memberGauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector; each pair of role and status is there, zero too.
func (g *memberGauge) Collect(ch chan<- prometheus.Metric) {
	type pair struct {
		role   topic.MemberRole
		status topic.MemberStatus
	}
	count := map[pair]float64{}
	for _, rec := range g.m.View().Members().ByID {
		count[pair{rec.Role, rec.Status}]++
	}
	for _, role := range []topic.MemberRole{topic.RoleVoter, topic.RoleStorage, topic.RoleGateway} {
		for _, status := range []topic.MemberStatus{topic.StatusAlive, topic.StatusDead} {
			ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, count[pair{role, status}], string(role), string(status))
		}
	}
}
