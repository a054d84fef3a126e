package accept

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/problem"
)

// Metrics of accepting and of the WAL. They are made before the WAL is opened,
// so that its first sync counts.
type Metrics struct {
	outcomes *prometheus.CounterVec
	ok       prometheus.Counter
	seconds  prometheus.Histogram
	sync     prometheus.Histogram
	producer atomic.Pointer[Producer]
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "narad_accept_total", Help: "Messages by outcome: accepted, or the code of the refusal.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_accept_seconds", Help: "Time to accept a produce request, from the call to its sync.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		sync: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_wal_fsync_seconds", Help: "Time of each fdatasync of the ingress WAL.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
	}
	m.ok = m.outcomes.WithLabelValues("accepted")
	err := errors.Join(
		r.Register(m.outcomes), r.Register(m.seconds), r.Register(m.sync),
		m.gauge(r, "narad_wal_backlog_records", "Records accepted and not dispatched, parked ones included.", func(p *Producer) float64 {
			return float64(p.stats.Load().Backlog)
		}),
		m.gauge(r, "narad_wal_backlog_oldest_seconds", "Age of the oldest record that is not dispatched; 0: none.", func(p *Producer) float64 {
			if at := p.stats.Load().OldestAcceptMS; at != 0 {
				return max(0, time.Since(time.UnixMilli(at)).Seconds())
			}
			return 0
		}),
		m.gauge(r, "narad_wal_failed", "1 while the WAL refuses to be written.", func(p *Producer) float64 {
			if p.stats.Load().Failed {
				return 1
			}
			return 0
		}),
		m.gauge(r, "narad_disk_free_bytes", "Free bytes of the data disk.", func(p *Producer) float64 {
			return float64(p.free.Load())
		}),
		m.counter(r, "narad_wal_damage_ranges_total", "Damaged ranges of the WAL met and skipped since the start.", func(p *Producer) float64 {
			return float64(p.stats.Load().Damages)
		}),
		m.counter(r, "narad_wal_damage_bytes_total", "Bytes in those ranges.", func(p *Producer) float64 {
			return float64(p.stats.Load().DamagedBytes)
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("register accept metrics: %w", err)
	}
	return m, nil
}

func (m *Metrics) gauge(r prometheus.Registerer, name, help string, value func(*Producer) float64) error {
	return r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, m.read(value)))
}

func (m *Metrics) counter(r prometheus.Registerer, name, help string, value func(*Producer) float64) error {
	return r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, m.read(value)))
}

// read is value once there is a producer; the port is scraped before.
func (m *Metrics) read(value func(*Producer) float64) func() float64 {
	return func() float64 {
		if p := m.producer.Load(); p != nil {
			return value(p)
		}
		return 0
	}
}

// ObserveSync counts one sync of the WAL.
func (m *Metrics) ObserveSync(d time.Duration) { m.sync.Observe(d.Seconds()) }

// watch makes the gauges show p.
func (m *Metrics) watch(p *Producer) { m.producer.Store(p) }

func (m *Metrics) accepted(err error, messages int, took time.Duration) {
	if err == nil {
		m.ok.Add(float64(messages))
		m.seconds.Observe(took.Seconds())
		return
	}
	outcome := string(problem.Internal)
	var p *problem.Problem
	if errors.As(err, &p) {
		outcome = string(p.Code)
	}
	m.outcomes.WithLabelValues(outcome).Add(float64(messages))
}
