package commit

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
)

type metrics struct {
	outcomes *prometheus.CounterVec
	ok       prometheus.Counter
	seconds  prometheus.Histogram
	batch    prometheus.Histogram
}

func newMetrics(r prometheus.Registerer, waiting func() float64) (*metrics, error) {
	m := &metrics{
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "narad_committed_total", Help: "Messages of ack=committed by outcome: committed, or the code of the refusal.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_committed_seconds", Help: "Time of an ack=committed request, waiting for elections included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 17),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "narad_committed_batch_records", Help: "Messages that shared one call to a partition's leader.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 14),
		}),
	}
	m.ok = m.outcomes.WithLabelValues("committed")
	err := errors.Join(r.Register(m.outcomes), r.Register(m.seconds), r.Register(m.batch), r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "narad_committed_waiting", Help: "Requests of ack=committed that wait for their partitions.",
	}, waiting)))
	if err != nil {
		return nil, fmt.Errorf("register commit metrics: %w", err)
	}
	return m, nil
}

// count counts a request of so many messages.
func (m *metrics) count(out []api.Committed, err error, messages int, took time.Duration) {
	if err != nil {
		m.outcomes.WithLabelValues(string(asProblem(err).Code)).Add(float64(messages))
		return
	}
	m.seconds.Observe(took.Seconds())
	for i := range out {
		if out[i].Refusal == nil {
			m.ok.Inc()
		} else {
			m.outcomes.WithLabelValues(string(out[i].Refusal.Code)).Inc()
		}
	}
}
