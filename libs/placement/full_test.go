package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// fullWorld is storage nodes of which some are full, with what a topic puts on them as
// if none was.
func fullWorld(t *rapid.T) (members []topic.Member, list []topic.Assignment, factor int, full map[string]bool) {
	n := rapid.IntRange(1, 7).Draw(t, "nodes")
	full = map[string]bool{}
	for i := range n {
		members = append(members, topic.Member{
			ID: fmt.Sprintf("s%d", i), DiskID: topic.ID64(i + 1), Role: topic.RoleStorage, Status: topic.StatusAlive,
			Zone: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone"),
		})
	}
	factor = rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "factor")
	if factor > n {
		factor = 1
	}
	var err error
	if list, err = Assign(newTopic(rapid.IntRange(1, 12).Draw(t, "partitions"), factor), Candidates(members, nil)); err != nil {
		t.Fatal(err)
	}
	for i := range list {
		list[i].Leader = list[i].Replicas[0].Node
	}
	for i := range members {
		use := rapid.SampledFrom([]int{0, FullPercent - 1, FullPercent, 100}).Draw(t, "use")
		members[i].DiskUsedPercent, full[members[i].ID] = use, use >= FullPercent
	}
	return members, list, factor, full
}

// TestFullNodesComeLast: whatever is drawn, a full node gets a replica of a new partition
// only when every node with room has one, leads only when all of its replicas are on full
// nodes, and gets nothing that is placed already.
func TestFullNodesComeLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, list, factor, full := fullWorld(t)
		nodes := Candidates(members, list)
		more, err := Assign(newTopic(rapid.IntRange(1, 12).Draw(t, "new partitions"), factor), nodes)
		if err != nil {
			t.Fatalf("with full nodes nothing can be created: %v", err)
		}
		for i := range more {
			on := more[i].Replicas
			for _, r := range on {
				if free := slices.ContainsFunc(nodes, func(n Node) bool { return !full[n.ID] && !more[i].On(n.ID) }); full[r.Node] && free {
					t.Fatalf("%s is full, and others have room: %+v", r.Node, on)
				}
			}
			if full[on[0].Node] && slices.ContainsFunc(on, func(r topic.Replica) bool { return !full[r.Node] }) {
				t.Fatalf("a full node is to lead %+v", on)
			}
		}
		lacks := slices.Clone(list)
		for i := range lacks {
			lacks[i].Replicas = lacks[i].Replicas[:1]
		}
		plan := slices.Concat(
			Evacuate("s0", nodes[1:], list, nil, nil), Rebalance(nodes, list, nil, nil), Rebalance(Candidates(members, more), more, nil, nil),
			Complete(nodes, lacks, nil, func(topic.Incarnation) int { return factor }, func(string) bool { return true }, nil),
		)
		for _, m := range plan {
			if full[m.To] {
				t.Fatalf("%+v goes to a full node", m)
			}
		}
	})
}

// What can go to a node with room goes, though it be farther from even, or in a zone
// that has a replica already; the limit itself is full.
func TestFullNodesTable(t *testing.T) {
	member := func(id, zone string, use int) topic.Member {
		return topic.Member{ID: id, DiskID: 1, Zone: zone, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskUsedPercent: use}
	}
	has := func(nodes ...string) (list []topic.Assignment) {
		for p, id := range nodes {
			list = append(list, topic.Assignment{Ref: topic.Ref{Topic: "old", Partition: int32(p)}, Leader: id, Replicas: []topic.Replica{{Node: id, DiskID: 1}}})
		}
		return list
	}
	cases := map[string]struct {
		members []topic.Member
		has     []topic.Assignment
		factor  int
		want    []string // the nodes of a new partition, the leader first
	}{
		"at the limit":            {[]topic.Member{member("a", "", FullPercent), member("b", "", 0)}, has("b", "b", "b"), 1, []string{"b"}},
		"below it":                {[]topic.Member{member("a", "", FullPercent-1), member("b", "", 0)}, has("b"), 1, []string{"a"}},
		"all are full":            {[]topic.Member{member("a", "", 99), member("b", "", 97)}, has("a"), 1, []string{"b"}},
		"in a zone of its own":    {[]topic.Member{member("a", "x", 99), member("b", "y", 0), member("c", "y", 0), member("d", "z", 0)}, nil, 3, []string{"b", "d", "c"}},
		"needed, but not to lead": {[]topic.Member{member("a", "", 99), member("b", "", 0), member("c", "", 0)}, has("b", "b", "c", "c"), 3, []string{"b", "c", "a"}},
	}
	for name, c := range cases {
		list, err := Assign(newTopic(1, c.factor), Candidates(c.members, c.has))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, r := range list[0].Replicas {
			got = append(got, r.Node)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: on %v, want %v", name, got, c.want)
		}
	}
	// A full node gives in a rebalance, and one that is empty and full gets nothing.
	members := []topic.Member{member("a", "", 99), member("b", "", 0), member("c", "", 96)}
	list := has("a", "a", "a", "a")
	plan := Rebalance(Candidates(members, list), list, nil, nil)
	if len(plan) != 2 || plan[0].To != "b" || plan[1].To != "b" {
		t.Errorf("rebalance: %+v", plan)
	}
	if plan := Evacuate("a", Candidates(members[2:], nil), list, nil, nil); len(plan) != 0 {
		t.Errorf("evacuated to where nothing fits: %+v", plan)
	}
}
