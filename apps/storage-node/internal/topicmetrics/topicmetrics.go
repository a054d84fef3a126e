// Package topicmetrics is /metrics/topics of a storage node: what operators and
// autoscalers want to know of each topic, as far as this node leads it.
//
// It keeps nothing: every scrape asks the node itself through its contract, so
// that a series goes with its topic and a recreated topic inherits nothing.
// Invariant: at most MaxTopics topics have series of their own, the first by
// name; the rest are summed under the empty name. A partition that cannot be
// asked is left out. topicmetrics_test.go explains it.
package topicmetrics

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// MaxTopics bounds the series of one node: five each, so that a scrape stays
// below a second and a few megabytes.
const MaxTopics = 2000

// scrapeTimeout ends a scrape whose partitions do not answer: Prometheus gives
// up after 10 s by default.
const scrapeTimeout = 8 * time.Second

// Details is what a scrape asks of the node, see nodeapi.Node.
type Details interface {
	Details(ctx context.Context, req *nodeapi.DetailsRequest) (*nodeapi.DetailsResult, error)
}

// Assigned lists the partitions with a replica on a node, see metastate.View.
type Assigned interface {
	AssignmentsOf(node string) ([]topic.Assignment, error)
}

// Handler serves the page.
func Handler(node string, view Assigned, details Details) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{node: node, view: view, details: details})
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 1})
}

type collector struct {
	node    string
	view    Assigned
	details Details
}

var (
	labels    = []string{"topic"}
	backlog   = prometheus.NewDesc("narad_topic_backlog_messages", "Committed messages that no consumer has settled, in partitions led here.", labels, nil)
	inFlight  = prometheus.NewDesc("narad_topic_in_flight_messages", "Messages leased to consumers now.", labels, nil)
	oldest    = prometheus.NewDesc("narad_topic_oldest_unsettled_seconds", "Age of the oldest message that no consumer has settled.", labels, nil)
	dropped   = prometheus.NewDesc("narad_topic_dropped_unsettled_total", "Messages that retention removed before they were settled.", labels, nil)
	sizeBytes = prometheus.NewDesc("narad_topic_bytes", "Bytes of partition logs led here.", labels, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{backlog, inFlight, oldest, dropped, sizeBytes} {
		out <- d
	}
}

// sums is one topic, or the rest of them.
type sums struct {
	backlog, inFlight, dropped, bytes int64
	oldestMS                          int64
}

func (s *sums) add(d *nodeapi.PartitionDetails) {
	s.backlog += max(d.HighWatermark-d.Frontier-d.SettledAhead, 0)
	s.inFlight += d.InFlight
	s.dropped += d.DroppedUnsettled
	s.bytes += d.Bytes
	s.oldestMS = max(s.oldestMS, d.OldestUnsettledMS)
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	all, err := c.view.AssignmentsOf(c.node)
	if err != nil {
		return // before the latch nothing is known to be led here
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var rest sums
	led := ledByTopic(all, c.node)
	for i := range led {
		var own sums
		into := &own
		if i >= MaxTopics {
			into = &rest
		}
		res, err := c.details.Details(ctx, &led[i])
		if err != nil {
			continue // another life by now, or a disk that does not answer: it shows elsewhere
		}
		for j := range res.Partitions {
			if res.Partitions[j].Problem == nil {
				into.add(&res.Partitions[j])
			}
		}
		if i < MaxTopics {
			own.send(out, led[i].Topic)
		}
	}
	if len(led) > MaxTopics {
		rest.send(out, "")
	}
}

func (s *sums) send(out chan<- prometheus.Metric, name string) {
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
	}
	gauge(backlog, float64(s.backlog))
	gauge(inFlight, float64(s.inFlight))
	gauge(oldest, float64(s.oldestMS)/1000)
	gauge(sizeBytes, float64(s.bytes))
	out <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(s.dropped), name)
}

// ledByTopic makes one question per topic that node leads something of, by name.
func ledByTopic(all []topic.Assignment, node string) []nodeapi.DetailsRequest {
	at := map[string]int{}
	var out []nodeapi.DetailsRequest
	for i := range all {
		a := &all[i]
		if a.Leader != node {
			continue
		}
		k, ok := at[a.Topic]
		if !ok {
			k = len(out)
			at[a.Topic] = k
			out = append(out, nodeapi.DetailsRequest{Topic: a.Topic, Incarnation: a.Incarnation})
		}
		out[k].Partitions = append(out[k].Partitions, a.Partition)
	}
	slices.SortFunc(out, func(x, y nodeapi.DetailsRequest) int { return cmp.Compare(x.Topic, y.Topic) })
	return out
}
