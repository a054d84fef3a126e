package bus

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of messages. What is published or failed was ours, what is received or
// ignored came from the server.
const (
	outcomePublished = "published" // the server has it
	outcomeFailed    = "failed"    // lost on the way out: the queue was full, or the connection broke
	outcomeReceived  = "received"  // handed on
	outcomeIgnored   = "ignored"   // garbage, or more than could be handed on
)

type metrics struct {
	messages  *prometheus.CounterVec
	connected prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "narad_bus_messages_total", Help: "Broadcasts of the bus, by subject and outcome.",
		}, []string{"subject", "outcome"}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "narad_bus_connected", Help: "1 while a NATS server is connected; without one, purges come by the metastore and the sweep alone.",
		}),
	}
	for _, k := range kinds {
		for _, o := range []string{outcomePublished, outcomeFailed, outcomeReceived, outcomeIgnored} {
			m.messages.WithLabelValues(string(k), o)
		}
	}
	if r == nil {
		return m, nil
	}
	if err := errors.Join(r.Register(m.messages), r.Register(m.connected)); err != nil {
		return nil, fmt.Errorf("register metrics of the bus: %w", err)
	}
	return m, nil
}

func (m *metrics) count(k kind, outcome string, n int) {
	m.messages.WithLabelValues(string(k), outcome).Add(float64(n))
}
