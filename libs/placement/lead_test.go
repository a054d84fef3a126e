package placement

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// led is a cluster whose partitions are led by somebody.
type led struct {
	members []topic.Member
	parts   []topic.Assignment
}

// drawLed draws some that are dead, drain or are full, lone partitions, copies that are not
// recorded or on a disk that is gone, and leaders wherever elections may have put them.
func drawLed(t *rapid.T, most int) *led {
	w := &led{}
	n := rapid.IntRange(1, 6).Draw(t, "nodes")
	for i := range n {
		m := topic.Member{ID: fmt.Sprintf("s%d", i), Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1}
		switch rapid.IntRange(0, 11).Draw(t, "state") {
		case 0:
			m.Status = topic.StatusDead
		case 1:
			m.Draining = true
		case 2:
			m.DiskUsedPercent = FullPercent
		}
		w.members = append(w.members, m)
	}
	for p := range rapid.IntRange(0, most).Draw(t, "partitions") {
		a := topic.Assignment{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)}, LeaderEpoch: 1, ConfigVersion: 1}
		factor := min(n, rapid.SampledFrom([]int{1, 3, 3, 3}).Draw(t, "factor"))
		for _, m := range rapid.Permutation(w.members).Draw(t, "order")[:factor] {
			r := topic.Replica{Node: m.ID, DiskID: 1, CopyID: topic.ID64(p + 1)}
			switch rapid.IntRange(0, 15).Draw(t, "copy") {
			case 0:
				r.CopyID = 0
			case 1:
				r.DiskID = 2
			}
			a.Replicas = append(a.Replicas, r)
		}
		a.Leader = rapid.SampledFrom(a.Replicas).Draw(t, "leader").Node
		w.parts = append(w.parts, a)
	}
	return w
}

func (w *led) nodes() []Node { return Candidates(w.members, w.parts) }

// plan is for those partitions that free is true for.
func (w *led) plan(limit int, free func(*topic.Assignment) bool) (list []*topic.Assignment, chains [][]HandOver) {
	for i := range w.parts {
		if free(&w.parts[i]) {
			list = append(list, &w.parts[i])
		}
	}
	return list, Lead(w.nodes(), list, limit)
}

func all(*topic.Assignment) bool { return true }

// options are the nodes that may lead a partition: its leader, and who may get it.
func (w *led) options(a *topic.Assignment) (out []string) {
	out = append(out, a.Leader)
	nodes := w.nodes()
	if !slices.ContainsFunc(nodes, func(n Node) bool { return n.ID == a.Leader }) {
		return out // it is left as it is
	}
	for _, r := range a.Replicas {
		for _, n := range nodes {
			if n.ID == r.Node && r.Node != a.Leader && !n.Full && r.CopyID != 0 && r.DiskID == n.DiskID {
				out = append(out, r.Node)
			}
		}
	}
	return out
}

// measure is what a plan lowers: how uneven the numbers are, and then how many
// partitions are not led by the first of their set; and the distance of the numbers.
func (w *led) measure() (squares, abroad, distance int) {
	least, most := len(w.parts), 0
	for _, n := range w.nodes() {
		squares += n.Leads * n.Leads
		least, most = min(least, n.Leads), max(most, n.Leads)
	}
	for i := range w.parts {
		if w.parts[i].Leader != w.parts[i].Replicas[0].Node {
			abroad++
		}
	}
	return squares, abroad, most - least
}

// rest hands over until nothing is planned, and fails unless every chain is legal and an
// improvement on its own.
func (w *led) rest(t *rapid.T, limit int) {
	for range 1000 {
		list, chains := w.plan(limit, all)
		if _, again := w.plan(limit, all); !reflect.DeepEqual(chains, again) {
			t.Fatalf("two plans for one state: %v, %v", chains, again)
		}
		if len(chains) == 0 {
			return
		}
		together := 0
		for _, chain := range chains {
			squares, abroad, _ := w.measure()
			together += len(chain)
			for _, h := range chain {
				if a := list[h.At]; !slices.Contains(w.options(a)[1:], h.To) {
					t.Fatalf("%s goes from %s to %s", a.Ref, a.Leader, h.To)
				}
				list[h.At].Leader = h.To
			}
			if s, b, _ := w.measure(); s > squares || s == squares && b >= abroad {
				t.Fatalf("%v: squares %d to %d, not led by the first %d to %d", chain, squares, s, abroad, b)
			}
		}
		if together > limit && len(chains) > 1 {
			t.Fatalf("%d hand-overs, at most %d", together, limit)
		}
	}
	t.Fatal("it does not come to rest")
}

// best looks at every choice of leaders: the least squares, and whether one has no
// two nodes further apart than one.
func (w *led) best() (least int, even bool) {
	try := &led{members: w.members, parts: slices.Clone(w.parts)}
	least = len(w.parts)*len(w.parts) + 1
	var choose func(at int)
	choose = func(at int) {
		if at < len(w.parts) {
			for _, node := range w.options(&w.parts[at]) {
				try.parts[at].Leader = node
				choose(at + 1)
			}
			return
		}
		squares, _, distance := try.measure()
		least, even = min(least, squares), even || distance <= 1
	}
	choose(0)
	return least, even
}

// Leaderships are as even as any choice of leaders makes them, no two nodes further
// apart than one if that can be, whatever is dead, drains or is full; and at rest then.
func TestLeadIsAsEvenAsCanBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLed(t, 6)
		least, even := w.best()
		w.rest(t, rapid.IntRange(1, 16).Draw(t, "limit"))
		squares, _, distance := w.measure()
		if squares != least {
			t.Fatalf("squares %d, could be %d", squares, least)
		}
		if even && distance > 1 {
			t.Fatalf("%d apart, could be one", distance)
		}
	})
}

// What is even when the first of each set leads comes back to that from wherever
// elections put it: after a restart of node after node everything is where it was.
func TestLeadBringsHome(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLed(t, 40)
		for i := range w.members {
			w.members[i].DiskUsedPercent, w.members[i].Draining, w.members[i].Status = 0, false, topic.StatusAlive
		}
		was := make([]string, len(w.parts))
		for i := range w.parts {
			a := &w.parts[i]
			for k := range a.Replicas {
				a.Replicas[k].CopyID, a.Replicas[k].DiskID = 1, 1
			}
			was[i], a.Leader = a.Leader, a.Replicas[0].Node
		}
		w.rest(t, 16)
		for i := range w.parts { // the first of each set leads, evenly, from here on
			a := &w.parts[i]
			at := slices.IndexFunc(a.Replicas, func(r topic.Replica) bool { return r.Node == a.Leader })
			a.Replicas[0], a.Replicas[at] = a.Replicas[at], a.Replicas[0]
			a.Leader = was[i]
		}
		w.rest(t, rapid.IntRange(1, 16).Draw(t, "limit"))
		if _, abroad, _ := w.measure(); abroad > 0 {
			t.Fatalf("%d partitions are not led by the first of their set", abroad)
		}
	})
}

// Replicas that stay behind for ever take nothing over. Their partitions are left
// alone for some passes after each refusal; the others come to rest all the same, and
// what succeeds of a plan leaves the numbers no less even.
func TestLeadRestsBesideWhoIsBehind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLed(t, 40)
		type to struct {
			at   topic.Ref
			node string
		}
		behind, slow := map[to]bool{}, rapid.IntRange(0, 3).Draw(t, "slow")
		for i := range w.parts {
			for _, r := range w.parts[i].Replicas {
				behind[to{w.parts[i].Ref, r.Node}] = rapid.IntRange(0, 3).Draw(t, "behind") < slow
			}
		}
		last, refused := 0, map[topic.Ref]int{}
		const alone, passes = 6, 300
		for pass := alone; pass < passes; pass++ {
			squares, _, _ := w.measure()
			list, chains := w.plan(16, func(a *topic.Assignment) bool { return pass-refused[a.Ref] >= alone })
			for _, chain := range chains {
				ok := !slices.ContainsFunc(chain, func(h HandOver) bool { return behind[to{list[h.At].Ref, h.To}] })
				for _, h := range chain {
					if ok {
						list[h.At].Leader, last = h.To, pass
					} else {
						refused[list[h.At].Ref] = pass
					}
				}
			}
			if now, _, _ := w.measure(); now > squares {
				t.Fatalf("%v in part: squares from %d to %d", chains, squares, now)
			}
		}
		if last > passes/2 {
			t.Fatalf("still handing over in pass %d", last)
		}
	})
}

// A node that drains keeps what it leads until that moves, and gets nothing; what the others
// lead stays as it is then and when the drain is taken back.
func TestLeadLeavesADrainAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawLed(t, 40)
		for i := range w.members {
			w.members[i].Draining = false
		}
		w.rest(t, 16)
		_, _, distance := w.measure()
		at := rapid.IntRange(0, len(w.members)-1).Draw(t, "drains")
		w.members[at].Draining = true
		_, chains := w.plan(16, all)
		for _, chain := range chains {
			for _, h := range chain {
				if w.parts[h.At].Leader == w.members[at].ID || h.To == w.members[at].ID {
					t.Fatalf("%v touches the node that drains", h)
				}
			}
		}
		if squares, _, after := w.measure(); distance <= 1 && (after > 1 || squaresFall(w, chains) != squares) {
			t.Fatalf("%v although the others are even", chains)
		}
		w.members[at].Draining = false
		if _, back := w.plan(16, all); len(back) > 0 {
			t.Fatalf("%v after the drain was taken back", back)
		}
	})
}

// squaresFall is how uneven the numbers are after chains.
func squaresFall(w *led, chains [][]HandOver) int {
	next := &led{members: w.members, parts: slices.Clone(w.parts)}
	for _, chain := range chains {
		for _, h := range chain {
			next.parts[h.At].Leader = h.To
		}
	}
	squares, _, _ := next.measure()
	return squares
}

// threeNodes have partitions, a pair of nodes each: the first of the set, and the leader.
func threeNodes(pairs ...[2]int) *led {
	w := &led{}
	for i := range 3 {
		w.members = append(w.members, topic.Member{ID: fmt.Sprintf("s%d", i), Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1})
	}
	for p, at := range pairs {
		a := topic.Assignment{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)}, Leader: w.members[at[1]].ID}
		for k := range 3 {
			a.Replicas = append(a.Replicas, topic.Replica{Node: w.members[(at[0]+k)%3].ID, DiskID: 1, CopyID: 1})
		}
		w.parts = append(w.parts, a)
	}
	return w
}

// An evacuation left sets whose first replicas are 7, 3 and 3.
func TestLeadAfterAnEvacuation(t *testing.T) {
	var pairs [][2]int
	for at, n := range []int{7, 3, 3} {
		for range n {
			pairs = append(pairs, [2]int{at, at})
		}
	}
	w := threeNodes(pairs...)
	list, chains := w.plan(16, all)
	for _, chain := range chains {
		for _, h := range chain {
			list[h.At].Leader = h.To
		}
	}
	if _, abroad, distance := w.measure(); distance > 1 || abroad != 2 {
		t.Fatalf("%d apart, %d not led by their first, after %v", distance, abroad, chains)
	}
}

// A leadership comes home to a node that is to give one away in the same plan only when it
// has done so: if that is refused, the node would lead two more than others.
func TestLeadBringsHomeOneAfterTheOther(t *testing.T) {
	w := threeNodes([2]int{1, 0}, [2]int{0, 0}, [2]int{0, 0}, [2]int{1, 1}, [2]int{1, 1}, [2]int{0, 2}, [2]int{2, 2}, [2]int{2, 2})
	for _, want := range [][][]HandOver{{{{0, "s1"}}}, {{{5, "s0"}}}, nil} {
		list, chains := w.plan(16, all)
		if !reflect.DeepEqual(chains, want) {
			t.Fatalf("%v, want %v", chains, want)
		}
		for _, chain := range chains {
			list[chain[0].At].Leader = chain[0].To
		}
	}
}

// BenchmarkLead is a pass over 30,000 partitions: at rest, and with leaderships where
// names come first.
func BenchmarkLead(b *testing.B) {
	for _, nodes := range []int{3, 12, 60} {
		w := &led{}
		for i := range nodes {
			w.members = append(w.members, topic.Member{ID: fmt.Sprintf("s%d", i), Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1})
		}
		for p := range 30_000 {
			a := topic.Assignment{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)}}
			for k := range 3 {
				a.Replicas = append(a.Replicas, topic.Replica{Node: w.members[(p+k*(1+p/nodes%max(1, nodes/3)))%nodes].ID, DiskID: 1, CopyID: 1})
			}
			w.parts = append(w.parts, a)
		}
		for name, leader := range map[string]func(a *topic.Assignment) string{
			"rest": func(a *topic.Assignment) string { return a.Replicas[0].Node },
			"skew": func(a *topic.Assignment) string {
				return slices.MinFunc(a.Replicas, func(x, y topic.Replica) int { return strings.Compare(x.Node, y.Node) }).Node
			},
		} {
			list := make([]*topic.Assignment, len(w.parts))
			for i := range w.parts {
				w.parts[i].Leader = leader(&w.parts[i])
				list[i] = &w.parts[i]
			}
			load := w.nodes()
			b.Run(fmt.Sprintf("%d nodes/%s", nodes, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					Lead(load, list, 16)
				}
			})
		}
	}
}
