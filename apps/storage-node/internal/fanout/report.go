package fanout

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// Cursors tells where the cursors of a partition led here stand; false when it has
// none.
func (m *Manager) Cursors(ref topic.Ref) (out nodeapi.PartitionCursors, ok bool) {
	m.mu.Lock()
	l := m.led[ref]
	m.mu.Unlock()
	if l == nil {
		return out, false
	}
	out.Partition, out.HighWatermark = ref.Partition, l.p.HighWatermark()
	for _, c := range *l.list.Load() {
		at, due := c.standing()
		out.Cursors = append(out.Cursors, nodeapi.CursorDetails{
			AttachEpoch: c.child.AttachEpoch, NextOffset: at.Next, DueLagMS: due, Dropped: at.Dropped,
		})
	}
	return out, true
}

// counters are the metrics of fan-out.
type counters struct {
	copies, dropped prometheus.Counter
}

func newCounters(reg prometheus.Registerer, m *Manager) (*counters, error) {
	c := &counters{
		copies: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "narad_fanout_copies_total", Help: "Records copied to children by cursors of this node.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "narad_fanout_dropped_total", Help: "Records of parents that were gone, or unreadable, before they were copied to a child. Never 0 when there were some; an estimate for partitions of a child that were behind.",
		}),
	}
	for _, r := range []prometheus.Collector{
		c.copies, c.dropped,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_fanout_lag_records", Help: "Records of parents led here that are still to be copied, summed over children; those that are not due included.",
		}, func() float64 { records, _ := m.lag(); return float64(records) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_fanout_due_lag_seconds", Help: "For how long the record that is overdue most has been due, of any cursor here.",
		}, func() float64 { _, ms := m.lag(); return float64(ms) / 1000 }),
	} {
		if err := reg.Register(r); err != nil {
			return nil, fmt.Errorf("register metrics of fan-out: %w", err)
		}
	}
	return c, nil
}

// lag is how many records all cursors have before them, and the largest time for
// which one of them is due.
func (m *Manager) lag() (records, dueMS int64) {
	for _, l := range m.snapshot() {
		for _, c := range *l.list.Load() {
			at, due := c.standing()
			records += max(l.p.HighWatermark()-at.Next, 0)
			dueMS = max(dueMS, due)
		}
	}
	return records, dueMS
}
