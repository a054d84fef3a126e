package controller

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

func TestStanding(t *testing.T) {
	members := map[string]*topic.Member{
		"s1": {ID: "s1", DiskID: 1, Status: topic.StatusAlive},
		"s2": {ID: "s2", DiskID: 2, Status: topic.StatusAlive},
		"s3": {ID: "s3", DiskID: 3, Status: topic.StatusDead},
	}
	on := func(node string, disk topic.ID64) topic.Replica {
		return topic.Replica{Node: node, DiskID: disk, CopyID: 7}
	}
	fresh := topic.Replica{Node: "s1", DiskID: 1}
	for name, tc := range map[string]struct {
		leader   string
		replicas []topic.Replica
		want     standing
	}{
		"served":                        {"s1", []topic.Replica{on("s1", 1)}, standing{}},
		"its only copy is not recorded": {"s1", []topic.Replica{fresh}, standing{}},
		"one of two is not recorded":    {"s2", []topic.Replica{fresh, on("s2", 2)}, standing{underReplicated: 1}},
		"its only node is dead":         {"s3", []topic.Replica{on("s3", 3)}, standing{withoutLeader: 1}},
		"nobody leads it yet":           {"", []topic.Replica{on("s1", 1)}, standing{withoutLeader: 1}},
		"its node has a new disk":       {"", []topic.Replica{on("s1", 9)}, standing{withoutLeader: 1, lost: 1}},
		"its node is gone":              {"s9", []topic.Replica{on("s9", 9)}, standing{withoutLeader: 1, lost: 1}},
		"three copies, one dead":        {"s1", []topic.Replica{on("s1", 1), on("s2", 2), on("s3", 3)}, standing{underReplicated: 1}},
		"two copies":                    {"s1", []topic.Replica{on("s1", 1), on("s2", 2)}, standing{}},
		"three copies, all lost":        {"", []topic.Replica{on("s1", 9), on("s2", 9), on("s9", 9)}, standing{1, 1, 1}},
		"one copy of three exists":      {"s2", []topic.Replica{on("s1", 9), on("s2", 2), on("s9", 9)}, standing{underReplicated: 1, lost: 1}},
	} {
		var got standing
		got.count(&topic.Assignment{Leader: tc.leader, Replicas: tc.replicas}, members)
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

// oneTopic is a view with one topic.
type oneTopic struct {
	metastate.View
	list    []topic.Assignment
	changed chan struct{}
	looks   int
}

func (v *oneTopic) Topics(string, string, int) ([]*topic.Topic, error) {
	v.looks++
	return []*topic.Topic{{Name: "a"}}, nil
}

func (v *oneTopic) Assignments(string) (*metastate.Partitions, error) {
	return &metastate.Partitions{List: v.list}, nil
}

func (v *oneTopic) Members() *metastate.MemberTable {
	return &metastate.MemberTable{ByID: map[string]*topic.Member{
		"s1": {ID: "s1", Status: topic.StatusAlive}, "s2": {ID: "s2", Status: topic.StatusAlive},
	}}
}

func (v *oneTopic) Changed() <-chan struct{} { return v.changed }

// TestPartitionGauges: only the leader shows them, and only a change costs a look.
func TestPartitionGauges(t *testing.T) {
	lone := []topic.Replica{{Node: "s1"}}
	v := &oneTopic{list: []topic.Assignment{{Leader: "s1", Replicas: lone}}, changed: make(chan struct{})}
	leading := false
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(newPartitionGauges(v, func() (map[string]missed, bool) { return nil, leading }))
	if n, err := testutil.GatherAndCount(reg); n != 0 || err != nil {
		t.Errorf("a follower shows %d series: %v", n, err)
	}
	leading = true
	for range 3 {
		if n, err := testutil.GatherAndCount(reg); n != 3 || err != nil {
			t.Errorf("the leader shows %d series: %v", n, err)
		}
	}
	if v.looks != 1 {
		t.Errorf("%d looks without a change", v.looks)
	}
	three := topic.Assignment{Leader: "s2", Replicas: []topic.Replica{{Node: "s1", CopyID: 1}, {Node: "s2", CopyID: 2}, {Node: "gone", CopyID: 3}}}
	v.list = []topic.Assignment{{Replicas: lone}, three, three}
	close(v.changed)
	v.changed = make(chan struct{})
	want := "# HELP narad_partitions_under_replicated Partitions of several copies of which some cannot be used; shown by the leading voter.\n" +
		"# TYPE narad_partitions_under_replicated gauge\nnarad_partitions_under_replicated 2\n" +
		"# HELP narad_partitions_without_leader Partitions that no living node leads; shown by the leading voter.\n" +
		"# TYPE narad_partitions_without_leader gauge\nnarad_partitions_without_leader 1\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "narad_partitions_without_leader", "narad_partitions_under_replicated"); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.GatherAndLint(reg); len(problems) > 0 || err != nil {
		t.Error(problems, err)
	}
}
