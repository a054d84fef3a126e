package controller

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// standing counts the partitions that an operator has to know about.
type standing struct {
	withoutLeader   int // nobody serves it now: no leader, or one that is dead or gone
	underReplicated int // some copies of several cannot be used now
	lost            int // metastate.Lost: waiting does not bring it back
}

// count adds one partition to what it is. A lost one has no leader either; a
// partition of one copy has all or none, and is never under-replicated.
func (s *standing) count(a *topic.Assignment, members map[string]*topic.Member) {
	usable := 0
	for _, r := range a.Replicas {
		m := members[r.Node]
		if m == nil || m.DiskID != r.DiskID {
			continue
		}
		if m.Status != topic.StatusDead && (len(a.Replicas) == 1 || r.CopyID != 0) { // one of several counts once it is recorded
			usable++
		}
	}
	if l := members[a.Leader]; l == nil || l.Status == topic.StatusDead {
		s.withoutLeader++
	}
	if len(a.Replicas) > 1 && usable < len(a.Replicas) {
		s.underReplicated++
	}
	if metastate.Lost(a, members) {
		s.lost++
	}
}

// standingOf looks at every partition in the view.
func standingOf(v metastate.View) (standing, error) {
	var s standing
	topics, err := v.Topics("", "", maxTopicsCounted)
	if err != nil {
		return s, err
	}
	members := v.Members().ByID
	for _, t := range topics {
		p, err := v.Assignments(t.Name)
		if errors.Is(err, metastate.ErrNoTopic) {
			continue // it has gone meanwhile
		}
		if err != nil {
			return s, err
		}
		for i := range p.List {
			s.count(&p.List[i], members)
		}
	}
	return s, nil
}

// maxTopicsCounted bounds one look: far above what a metastore may hold.
const maxTopicsCounted = 1 << 20

// partitionGauges shows the standing, on the leading voter only, so that a sum
// over voters counts nothing twice. It looks anew when something has changed.
type partitionGauges struct {
	view  metastate.View
	heard func() (missing map[string]missed, leading bool)

	without, under, lost *prometheus.Desc

	mu      sync.Mutex // guards the rest, and keeps two scrapes from looking at once
	changed <-chan struct{}
	last    standing
}

func newPartitionGauges(v metastate.View, heard func() (map[string]missed, bool)) *partitionGauges {
	return &partitionGauges{
		view: v, heard: heard,
		without: prometheus.NewDesc("narad_partitions_without_leader", "Partitions that no living node leads; shown by the leading voter.", nil, nil),
		under:   prometheus.NewDesc("narad_partitions_under_replicated", "Partitions of several copies of which some cannot be used; shown by the leading voter.", nil, nil),
		lost:    prometheus.NewDesc("narad_partitions_lost", "Partitions without a majority of copies on disks of record, or whose only copy its node misses; shown by the leading voter.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (g *partitionGauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.without
	ch <- g.under
	ch <- g.lost
}

// Collect implements prometheus.Collector.
func (g *partitionGauges) Collect(ch chan<- prometheus.Metric) {
	missing, leading := g.heard()
	if !leading {
		return
	}
	s, ok := g.look()
	if !ok {
		return // what is not known is not shown as 0
	}
	shown := map[*prometheus.Desc]int{g.without: s.withoutLeader, g.under: s.underReplicated}
	if lost, err := lostCopies(g.view, missing); err == nil {
		for i := range lost.Nodes {
			s.lost += lost.Nodes[i].Count
		}
		if s.lost > 0 || len(lost.Unknown) == 0 {
			shown[g.lost] = s.lost
		}
	}
	for d, n := range shown {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n))
	}
}

func (g *partitionGauges) look() (standing, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.changed != nil {
		select {
		case <-g.changed:
		default:
			return g.last, true
		}
	}
	changed := g.view.Changed()
	s, err := standingOf(g.view)
	if err != nil {
		g.changed = nil
		return s, false
	}
	g.changed, g.last = changed, s
	return s, true
}
