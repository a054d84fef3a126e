package placement

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// Partitions of a child keep away from those of its parent while that costs balance
// at most one replica.
func TestAssignAway(t *testing.T) {
	nodes := []Node{{ID: "a", DiskID: 1}, {ID: "b", DiskID: 2}, {ID: "c", DiskID: 3}}
	for factor, together := range map[int]int{1: 0, 3: 2} {
		list, err := AssignAway(newTopic(6, factor), nodes, []string{"a", "b", "c", "a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		same := 0
		for i, a := range list {
			if a.Replicas[0].Node == []string{"a", "b", "c"}[i%3] {
				same++
			}
		}
		if same > together || spread(nodes, list) > 1 {
			t.Errorf("factor %d: %d of 6 beside their parent, spread %d: %v", factor, same, spread(nodes, list), list)
		}
	}
	// All of the parent on one node: it gets no more than the others, and not much less.
	list, err := AssignAway(newTopic(12, 1), nodes, []string{"a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"})
	if n := spread(nodes, list); err != nil || n > 2 {
		t.Errorf("spread %d, %v", n, err)
	}
}

func newTopic(partitions, factor int) *topic.Topic {
	cfg := topic.DefaultConfig()
	cfg.Partitions, cfg.ReplicationFactor = partitions, factor
	return &topic.Topic{Name: "t", Incarnation: 9, Config: cfg}
}

func TestAssignProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones := rapid.IntRange(0, 4).Draw(t, "zones")
		nodes := make([]Node, rapid.IntRange(1, 9).Draw(t, "nodes"))
		distinct := map[string]bool{}
		for i := range nodes {
			nodes[i] = Node{ID: fmt.Sprintf("s%d", i), DiskID: topic.ID64(i + 1), Replicas: rapid.IntRange(0, 20).Draw(t, "load")}
			if zones > 0 {
				nodes[i].Zone = fmt.Sprintf("z%d", rapid.IntRange(1, zones).Draw(t, "zone"))
				distinct[nodes[i].Zone] = true
			}
		}
		factor := rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "factor")
		top := newTopic(rapid.IntRange(1, 40).Draw(t, "partitions"), factor)
		before := spread(nodes, nil)
		list, err := Assign(top, nodes)
		if len(nodes) < factor {
			var short *NotEnoughNodesError
			if !errors.As(err, &short) || short.Live != len(nodes) || short.Wanted != factor {
				t.Fatalf("error %v", err)
			}
			return
		}
		if err != nil || len(list) != top.Partitions {
			t.Fatalf("%d assignments, %v", len(list), err)
		}
		for p, a := range list {
			checkOne(t, p, &a, nodes, factor, len(distinct))
		}
		if after := spread(nodes, list); zones == 0 && after > max(before, 1) {
			t.Fatalf("spread grew from %d to %d", before, after)
		}
	})
}

func checkOne(t *rapid.T, p int, a *topic.Assignment, nodes []Node, factor, zones int) {
	if int(a.Partition) != p || a.Topic != "t" || a.Incarnation != 9 || a.LeaderEpoch != 1 || len(a.Replicas) != factor {
		t.Fatalf("assignment %d: %+v", p, a)
	}
	seen, inZones := map[string]bool{}, map[string]bool{}
	for _, r := range a.Replicas {
		for _, n := range nodes {
			if n.ID == r.Node && n.DiskID == r.DiskID {
				seen[n.ID] = true
				inZones[n.Zone] = true
			}
		}
	}
	if len(seen) != factor || (factor == 1) != seen[a.Leader] || factor > 1 && a.Leader != "" {
		t.Fatalf("replicas %v led by %q", a.Replicas, a.Leader)
	}
	if zones > 0 && len(inZones) != min(factor, zones) {
		t.Fatalf("%d zones used of %d", len(inZones), zones)
	}
}

func spread(nodes []Node, list []topic.Assignment) int {
	load := map[string]int{}
	for _, n := range nodes {
		load[n.ID] = n.Replicas
	}
	for _, a := range list {
		for _, r := range a.Replicas {
			load[r.Node]++
		}
	}
	low, high := 1<<30, 0
	for _, n := range load {
		low, high = min(low, n), max(high, n)
	}
	return high - low
}

// One-partition topics created one after the other must not pile up on one node.
func TestManySmallTopicsSpread(t *testing.T) {
	members := []topic.Member{
		{ID: "g", Role: topic.RoleGateway, Status: topic.StatusAlive},
		{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1},
		{ID: "s2", Role: topic.RoleStorage, Status: topic.StatusDead, DiskID: 2},
		{ID: "s3", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 3, Draining: true},
		{ID: "s4", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 4},
	}
	var all []topic.Assignment
	for range 10 {
		list, err := Assign(newTopic(1, 1), Candidates(members, all))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, list...)
	}
	count := map[string]int{}
	for _, a := range all {
		count[a.Leader]++
	}
	if count["s1"] != 5 || count["s4"] != 5 {
		t.Fatalf("leaders %v", count)
	}
}

// With three replicas on three nodes everyone holds everything: leaderships must still spread.
func TestLeadershipsSpread(t *testing.T) {
	list, err := Assign(newTopic(9, 3), []Node{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, a := range list {
		count[a.Replicas[0].Node]++
	}
	if count["a"] != 3 || count["b"] != 3 || count["c"] != 3 {
		t.Fatalf("leaders %v", count)
	}
}
