package dispatch

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/seglog"
)

type metrics struct {
	batch   prometheus.Histogram
	seconds prometheus.Histogram
	lost    prometheus.Counter

	discarded   prometheus.Counter
	unconfirmed prometheus.Counter
}

func newMetrics(r prometheus.Registerer, d *Dispatcher) (*metrics, error) {
	m := &metrics{
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_dispatch_batch_records", Help: "Records of each committed batch.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 8),
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_dispatch_seconds", Help: "Time of each committed batch, from its building to the answer.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "narad_dispatch_lost_total", Help: "Accepted records that the disk of this gateway has lost.",
		}),
	}
	m.discarded = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "narad_dispatch_discarded_total", Help: "Accepted records given up because the metastore leader confirmed that their topic was deleted.",
	})
	m.unconfirmed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "narad_dispatch_unconfirmed_total", Help: "Questions about topics of held records that the metastore leader did not answer with their end: the records were kept.",
	})
	err := errors.Join(
		r.Register(m.batch), r.Register(m.seconds), r.Register(m.lost), r.Register(m.discarded), r.Register(m.unconfirmed),
		r.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "narad_dispatch_rerouted_total", Help: "Records sent to another partition than they were accepted for, repeats included.",
		}, func() float64 { return float64(d.stats.Load().Rerouted) })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_dispatch_held_records", Help: "Records of lives of topics that ended, or that a leader refuses.",
		}, func() float64 { return float64(d.stats.Load().Held) })),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_dispatch_parked_records", Help: "Records of stuck queues in logs of their own.",
		}, func() float64 { return float64(d.parked.left()) })),
	)
	if err != nil {
		return nil, fmt.Errorf("register dispatch metrics: %w", err)
	}
	return m, nil
}

func (d *Dispatcher) onDamage(g seglog.Damage) {
	d.deps.Log.Error("a parked log is damaged", "segment", g.Segment, "from", g.From, "to", g.To)
}
