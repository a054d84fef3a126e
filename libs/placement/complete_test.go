package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// TestCompleteProperties: carried out again and again, with some replicas lost before, it
// ends with every partition at its factor as far as nodes are there, one replica at a
// time, never two on a node, none taken from a node that is a member, zones not used
// twice without need; and then it plans nothing.
func TestCompleteProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(3, 7).Draw(t, "nodes")
		var members []topic.Member
		for i := range n {
			zone := rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "zone")
			members = append(members, topic.Member{ID: fmt.Sprintf("s%d", i), DiskID: topic.ID64(i + 1), Zone: zone, Role: topic.RoleStorage, Status: topic.StatusAlive})
		}
		factor := rapid.SampledFrom([]int{1, 3, 5}).Draw(t, "factor")
		if factor > n {
			factor = 3
		}
		top := &topic.Topic{Name: "t", Incarnation: 9, Config: topic.Config{Partitions: rapid.IntRange(1, 12).Draw(t, "partitions"), ReplicationFactor: factor}}
		list, err := Assign(top, Candidates(members, nil))
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "one is buried") {
			members = members[1:]
		}
		if rapid.Bool().Draw(t, "one is dead") {
			members[0].Status = topic.StatusDead
		}
		is := func(id string) bool {
			return slices.ContainsFunc(members, func(m topic.Member) bool { return m.ID == id })
		}
		for i := range list {
			a := &list[i]
			if keep := rapid.IntRange(1, len(a.Replicas)).Draw(t, "left"); keep < len(a.Replicas) {
				a.Replicas = a.Replicas[:keep] // after a reset
			}
			a.Leader = a.Replicas[0].Node
			if !is(a.Leader) && len(a.Replicas) == 1 || rapid.IntRange(0, 9).Draw(t, "nobody leads") == 0 {
				a.Leader = ""
			}
		}
		wanted := func(topic.Incarnation) int { return factor }
		for round := 0; ; round++ {
			plan := Complete(Candidates(members, list), list, nil, wanted, is, nil)
			if len(plan) == 0 {
				break
			}
			if round > 2*factor {
				t.Fatalf("it does not come to rest: %+v", plan)
			}
			carryOut(t, list, plan, members, is, factor)
		}
		for i := range list {
			a := &list[i]
			free := 0
			for _, c := range Candidates(members, nil) {
				if !a.On(c.ID) {
					free++
				}
			}
			if a.Leader != "" && free > 0 && (len(a.Replicas) < factor || buried(a, is) != "") {
				t.Fatalf("partition %d has %+v of %d, and %d nodes are free", i, a.Replicas, factor, free)
			}
		}
	})
}

// carryOut checks a plan and does what it says.
func carryOut(t *rapid.T, list []topic.Assignment, plan []Move, members []topic.Member, is func(string) bool, factor int) {
	nodes := Candidates(members, list)
	zones := map[string]string{}
	for _, n := range nodes {
		zones[n.ID] = n.Zone
	}
	seen := map[topic.Ref]bool{}
	for _, m := range plan {
		a := &list[m.Partition]
		if _, receives := zones[m.To]; !receives || seen[m.Ref] || a.On(m.To) || a.Leader == "" {
			t.Fatalf("%+v for %+v", m, a)
		}
		seen[m.Ref] = true
		if m.From != "" && (is(m.From) || !a.On(m.From)) || m.From == "" && len(a.Replicas) >= factor {
			t.Fatalf("%+v for %+v", m, a)
		}
		a.Replicas = slices.DeleteFunc(slices.Clone(a.Replicas), func(r topic.Replica) bool { return r.Node == m.From })
		if a.Leader == m.From {
			a.Leader = m.To
		}
		used := func(node string) bool {
			return zones[node] != "" && slices.ContainsFunc(a.Replicas, func(r topic.Replica) bool { return zones[r.Node] == zones[node] })
		}
		for _, n := range nodes {
			if used(m.To) && !a.On(n.ID) && !used(n.ID) {
				t.Fatalf("%+v uses a zone twice, %s is in another one", m, n.ID)
			}
		}
		a.Replicas = append(a.Replicas, topic.Replica{Node: m.To})
	}
}

// What has the fewest copies comes first, and what is moving, or has nobody to tell
// what it has, is left alone.
func TestCompleteOrder(t *testing.T) {
	nodes := []Node{{ID: "s1"}, {ID: "s2"}, {ID: "s3"}, {ID: "s4", Replicas: 9}}
	part := func(i int32, leader string, on ...string) topic.Assignment {
		a := topic.Assignment{Ref: topic.Ref{Topic: "t", Partition: i}, Leader: leader}
		for _, id := range on {
			a.Replicas = append(a.Replicas, topic.Replica{Node: id})
		}
		return a
	}
	list := []topic.Assignment{
		part(0, "s1", "s1", "s2"), part(1, "s1", "s1"), part(2, "", "s1"), part(3, "s1", "s1"), part(4, "s1", "s1", "s2", "s9"), part(5, "s1", "s1", "s2", "s3"),
		part(6, "s9", "s9"), part(7, "s1", "s1"),
	}
	moving := []topic.Move{{Ref: list[3].Ref, To: "s2"}}
	plan := Complete(nodes, list, moving, func(topic.Incarnation) int { return 3 }, func(id string) bool { return id != "s9" }, nil)
	var got []string
	for _, m := range plan {
		got = append(got, fmt.Sprintf("%d %s>%s", m.Partition, m.From, m.To))
	}
	if want := []string{"1 >s3", "7 >s2", "0 >s3", "4 s9>s3"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
