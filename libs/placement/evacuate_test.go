package placement

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// TestEvacuateProperties: everything that can go goes, each to a node that has none of
// the partition; who receives stays even; a zone is not used twice without need.
func TestEvacuateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 6).Draw(t, "receivers")
		var members []topic.Member
		for i := range n + 1 {
			zone := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone")
			members = append(members, topic.Member{ID: fmt.Sprintf("s%d", i), DiskID: topic.ID64(i + 1), Zone: zone, Role: topic.RoleStorage, Status: topic.StatusAlive})
		}
		factor := rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "factor")
		if factor > n+1 {
			factor = 1
		}
		top := &topic.Topic{Name: "t", Incarnation: 9, Config: topic.Config{Partitions: rapid.IntRange(1, 20).Draw(t, "partitions"), ReplicationFactor: factor}}
		list, err := Assign(top, Candidates(members, nil))
		if err != nil {
			t.Fatal(err)
		}
		members[0].Draining = true
		nodes := Candidates(members, list)
		var moving []topic.Move
		if rapid.Bool().Draw(t, "one moves") {
			moving = append(moving, topic.Move{Ref: list[0].Ref, From: "s0", To: "s1"})
		}
		plan := Evacuate("s0", nodes, list, moving, nil)
		planned := map[topic.Ref]string{}
		got := map[string]int{}
		for _, m := range plan {
			if m.From != "s0" || m.To == "s0" || planned[m.Ref] != "" || list[m.Partition].On(m.To) {
				t.Fatalf("%+v", m)
			}
			planned[m.Ref] = m.To
			got[m.To]++
		}
		for i := range list {
			_, has := list[i].ReplicaOn("s0")
			want := has && factor <= n && (len(moving) == 0 || i > 0)
			if (planned[list[i].Ref] != "") != want {
				t.Fatalf("partition %d of factor %d with %d receivers: planned for %q", i, factor, n, planned[list[i].Ref])
			}
		}
		if factor > 1 || len(moving) > 0 {
			return
		}
		low, high := 1<<30, 0
		for _, node := range nodes {
			low, high = min(low, node.Replicas+got[node.ID]), max(high, node.Replicas+got[node.ID])
		}
		if high-low > 1 {
			t.Fatalf("between %d and %d replicas afterwards", low, high)
		}
	})
}

func TestEvacuateKeepsZonesApart(t *testing.T) {
	nodes := []Node{{ID: "s1", Zone: "a"}, {ID: "s2", Zone: "b"}, {ID: "s3", Zone: "b"}, {ID: "s4", Zone: "c", Replicas: 9}}
	a := topic.Assignment{Ref: topic.Ref{Topic: "t"}}
	for _, id := range []string{"s0", "s1", "s2"} {
		a.Replicas = append(a.Replicas, topic.Replica{Node: id})
	}
	if plan := Evacuate("s0", nodes, []topic.Assignment{a}, nil, nil); len(plan) != 1 || plan[0].To != "s4" {
		t.Errorf("%+v", plan)
	}
}
