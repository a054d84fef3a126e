package api

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// statuses is one more than the highest status that an answer can have.
const statuses = 600

// metrics counts answers. Series exist from their first answer on; labels are
// bounded by the table of routes, the methods named here and the statuses.
type metrics struct {
	vec    *prometheus.CounterVec
	routes []counters // by Route.index
}

type counters [statuses]atomic.Pointer[prometheus.Counter]

func newMetrics(reg prometheus.Registerer, routes []Route) (*metrics, error) {
	m := &metrics{
		vec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "narad_http_requests_total",
			Help: "Requests answered on the client port, by route pattern, method and status.",
		}, []string{"route", "method", "code"}),
		routes: make([]counters, len(routes)),
	}
	if reg != nil {
		if err := reg.Register(m.vec); err != nil {
			return nil, fmt.Errorf("register narad_http_requests_total: %w", err)
		}
	}
	return m, nil
}

// count adds one answer. route is nil for a path that is none or a method that it does not take.
func (m *metrics) count(route *Route, method []byte, status int) {
	if route == nil || status < 0 || status >= statuses {
		m.vec.WithLabelValues("", knownMethod(method), strconv.Itoa(status)).Inc()
		return
	}
	slot := &m.routes[route.index][status]
	c := slot.Load()
	if c == nil {
		made := m.vec.WithLabelValues(route.Pattern, route.Method, strconv.Itoa(status))
		c = &made
		slot.Store(c)
	}
	(*c).Inc()
}

// knownMethod bounds the label: a client can send any word.
func knownMethod(method []byte) string {
	switch m := string(method); m {
	case "GET", "POST", "PATCH", "DELETE", "HEAD", "OPTIONS", "PUT":
		return m
	default:
		return "other"
	}
}
