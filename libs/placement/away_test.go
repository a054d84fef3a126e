package placement

import (
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// TestChildrenKeepAway: of partitions that would do as well, those go to a node that do
// not get their messages from it; the numbers of replicas come first.
func TestChildrenKeepAway(t *testing.T) {
	nodes := []Node{{ID: "s1", DiskID: 1}, {ID: "s2", DiskID: 1}}
	away := func(ref topic.Ref) string {
		if ref.Partition < 2 {
			return "s2"
		}
		return "s1"
	}
	var list []topic.Assignment
	for p := range int32(4) {
		list = append(list, topic.Assignment{
			Ref: topic.Ref{Topic: "t", Partition: p}, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}, Leader: "s1",
		})
	}
	plan := Rebalance(nodes, list, nil, away)
	if len(plan) != 2 || plan[0].Partition != 2 || plan[1].Partition != 3 {
		t.Errorf("%+v", plan)
	}
	for name, c := range map[string]struct {
		loads [2]int
		want  string
	}{
		"equal":                      {[2]int{3, 3}, "s3"},
		"the other has one more":     {[2]int{3, 4}, "s3"},
		"the other has far too many": {[2]int{3, 5}, "s2"},
	} {
		two := []Node{{ID: "s2", Replicas: c.loads[0]}, {ID: "s3", Replicas: c.loads[1]}}
		if plan := Evacuate("s1", two, list[:1], nil, away); len(plan) != 1 || plan[0].To != c.want {
			t.Errorf("evacuate, %s: %+v", name, plan)
		}
		lacks := topic.Assignment{Ref: list[0].Ref, Replicas: list[0].Replicas, Leader: "s1"}
		all := func(string) bool { return true }
		if plan := Complete(two, []topic.Assignment{lacks}, nil, func(topic.Incarnation) int { return 3 }, all, away); len(plan) != 1 || plan[0].To != c.want {
			t.Errorf("complete, %s: %+v", name, plan)
		}
	}
}
