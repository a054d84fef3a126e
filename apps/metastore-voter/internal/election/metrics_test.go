package election

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/topic"
)

// Each partition of an election is counted once, by how it ended.
func TestElectionsAreCounted(t *testing.T) {
	cl := newCluster(t)
	cl.topic("a", 6, "s1")
	ref := func(p int) topic.Ref { return cl.topics["a"][p].Ref }
	for _, p := range []int{0, 1} { // no majority promises
		cl.has[key("s2", ref(p))], cl.has[key("s3", ref(p))] = Promise{}, Promise{}
	}
	cl.topics["a"][2].Replicas = cl.topics["a"][2].Replicas[:2]
	cl.has[key("s1", ref(2))] = Promise{OK: true, Damaged: true, LastEpoch: 1, LEO: 10, HWM: 8}
	cl.has[key("s2", ref(2))] = Promise{OK: true, LastEpoch: 1, LEO: 8}
	cl.publishLocked("a")
	var list []*contest
	for _, a := range cl.topics["a"] {
		list = append(list, &contest{a: a, wanted: "s1"})
	}
	r := cl.runner(Timing{})
	r.turn.Lock()
	r.elect(t.Context(), list, "suspected")
	r.turn.Unlock()
	want := `
# HELP narad_elections_total Elections of partition leaders run by this voter, by what started them and how they ended.
# TYPE narad_elections_total counter
narad_elections_total{outcome="damaged",reason="suspected"} 1
narad_elections_total{outcome="elected",reason="suspected"} 3
narad_elections_total{outcome="none",reason="suspected"} 2
`
	if err := testutil.CollectAndCompare(r.metrics.elections, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
