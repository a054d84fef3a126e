package topicmetrics

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// node answers every partition alike, but for those of failing topics.
type node struct {
	assigned []topic.Assignment
	latched  error
	failing  string
}

func (n *node) AssignmentsOf(string) ([]topic.Assignment, error) { return n.assigned, n.latched }

func (n *node) Details(_ context.Context, req *nodeapi.DetailsRequest) (*nodeapi.DetailsResult, error) {
	if req.Topic == n.failing {
		return nil, errors.New("gone")
	}
	res := &nodeapi.DetailsResult{}
	for _, p := range req.Partitions {
		d := nodeapi.PartitionDetails{
			Partition: p, HighWatermark: 100, Frontier: 40, SettledAhead: 10, InFlight: 5,
			OldestUnsettledMS: int64(p) * 1000, DroppedUnsettled: 2, Bytes: 1000,
		}
		if p == 9 {
			d.Problem = problem.New(problem.PartitionUnavailable, "x")
		}
		res.Partitions = append(res.Partitions, d)
	}
	return res, nil
}

func assign(name, leader string, partition int32) topic.Assignment {
	return topic.Assignment{Ref: topic.Ref{Topic: name, Incarnation: 1, Partition: partition}, Leader: leader}
}

func scrape(t *testing.T, n *node) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler("s1", n, n).ServeHTTP(w, httptest.NewRequest("GET", "/metrics/topics", nil))
	return w.Body.String()
}

func TestSumsWhatIsLedHere(t *testing.T) {
	n := &node{failing: "broken", assigned: []topic.Assignment{
		assign("orders", "s1", 1), assign("orders", "s1", 2), assign("orders", "s2", 3), assign("orders", "s1", 9),
		assign("broken", "s1", 0), assign("elsewhere", "s2", 0),
	}}
	got := scrape(t, n)
	for _, want := range []string{
		`narad_topic_backlog_messages{topic="orders"} 100`, `narad_topic_in_flight_messages{topic="orders"} 10`,
		`narad_topic_oldest_unsettled_seconds{topic="orders"} 2`, `narad_topic_dropped_unsettled_total{topic="orders"} 4`,
		`narad_topic_bytes{topic="orders"} 2000`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("missing %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "broken") || strings.Contains(got, "elsewhere") {
		t.Errorf("series of what is not led or not answered:\n%s", got)
	}
}

func TestBoundAndLatch(t *testing.T) {
	n := &node{}
	for i := range MaxTopics + 3 {
		n.assigned = append(n.assigned, assign(fmt.Sprintf("t%05d", i), "s1", 0))
	}
	got := scrape(t, n)
	if c := strings.Count(got, "narad_topic_bytes{"); c != MaxTopics+1 {
		t.Errorf("%d series, want %d", c, MaxTopics+1)
	}
	if !strings.Contains(got, `narad_topic_bytes{topic=""} 3000`+"\n") {
		t.Error("the rest is not summed under the empty name")
	}
	n.latched = metastate.ErrUnavailable
	if got := scrape(t, n); strings.Contains(got, "narad_topic") {
		t.Errorf("series before the latch:\n%s", got)
	}
}

func TestNamesPassTheLinter(t *testing.T) {
	registry := prometheus.NewRegistry()
	n := &node{assigned: []topic.Assignment{assign("orders", "s1", 1)}}
	registry.MustRegister(&collector{node: "s1", view: n, details: n})
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}
