package route

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/nodeapi"
)

// measures is what a router counts. Series are made once, so that a request costs
// no look-up of labels.
type measures struct {
	delivered, empty, refused prometheus.Observer // how long consumes took, by how they ended
	settle                    prometheus.Observer
	settled                   [3]prometheus.Counter // by nodeapi.SettleStatus
	settleFailed              prometheus.Counter
}

func newMeasures(reg prometheus.Registerer, waiting func() float64) (*measures, error) {
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "narad_consume_wait_seconds", Help: "Time from a consume to its answer, by how it ended.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 3, 11), // 0.5 ms to 30 s, the longest wait
	}, []string{"outcome"})
	settle := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "narad_settle_seconds", Help: "Time of one ack, extend or nack request, many handles included.",
		Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14), // to 4 s; the budget is 5 s
	})
	settled := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "narad_settled_total", Help: "Settlements of single deliveries, by how they ended.",
	}, []string{"outcome"})
	all := []prometheus.Collector{wait, settle, settled, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "narad_consume_waiting", Help: "Consume requests that wait.",
	}, waiting)}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the router: %w", err)
		}
	}
	return &measures{
		delivered: wait.WithLabelValues("delivered"), empty: wait.WithLabelValues("empty"), refused: wait.WithLabelValues("refused"),
		settle: settle,
		settled: [3]prometheus.Counter{
			nodeapi.SettleOK: settled.WithLabelValues("ok"), nodeapi.SettleLost: settled.WithLabelValues("lost"),
			nodeapi.SettleUnavailable: settled.WithLabelValues("unavailable"),
		},
		settleFailed: settled.WithLabelValues("unknown"),
	}, nil
}

func (m *measures) consumed(begin time.Time, res *api.ConsumeResult, err error) {
	took := time.Since(begin).Seconds()
	switch {
	case err != nil:
		m.refused.Observe(took)
	case len(res.Deliveries) > 0:
		m.delivered.Observe(took)
	default:
		m.empty.Observe(took)
	}
}

func (m *measures) wasSettled(begin time.Time, ops int, statuses []nodeapi.SettleStatus, err error) {
	m.settle.Observe(time.Since(begin).Seconds())
	if err != nil {
		m.settleFailed.Add(float64(ops))
		return
	}
	for _, s := range statuses {
		if int(s) < len(m.settled) {
			m.settled[s].Inc()
		}
	}
}
