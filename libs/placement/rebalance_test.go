package placement

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

// world is a cluster that a property draws.
type world struct {
	members []topic.Member
	parts   []topic.Assignment
	moving  []topic.Move
}

func drawWorld(t *rapid.T, factors []int) *world {
	w := &world{}
	zones := rapid.SampledFrom([]int{0, 1, 2, 3}).Draw(t, "zones")
	for i := range rapid.IntRange(1, 8).Draw(t, "nodes") {
		m := topic.Member{ID: fmt.Sprintf("s%d", i), Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1}
		if zones > 0 {
			m.Zone = fmt.Sprintf("z%d", rapid.IntRange(0, zones-1).Draw(t, "zone"))
		}
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			m.Status = topic.StatusDead
		case 1:
			m.Draining = true
		}
		w.members = append(w.members, m)
	}
	for p := range rapid.IntRange(0, 30).Draw(t, "partitions") {
		factor := min(rapid.SampledFrom(factors).Draw(t, "factor"), len(w.members))
		a := topic.Assignment{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)}, LeaderEpoch: 1, ConfigVersion: 1}
		order := rapid.Permutation(w.members).Draw(t, "order")
		for _, m := range order[:factor] {
			a.Replicas = append(a.Replicas, topic.Replica{Node: m.ID, DiskID: m.DiskID})
		}
		a.Leader = a.Replicas[0].Node
		w.parts = append(w.parts, a)
		if factor < len(order) && rapid.IntRange(0, 9).Draw(t, "moves") == 0 {
			w.moving = append(w.moving, topic.Move{Ref: a.Ref, From: a.Replicas[0].Node, To: order[factor].ID, Aborted: rapid.Bool().Draw(t, "aborted")})
		}
	}
	return w
}

func (w *world) plan() []Move {
	return Rebalance(Candidates(w.members, w.parts), w.parts, w.moving, nil)
}

// settled is where every replica is when the moves under way have ended.
func (w *world) settled() *world {
	out := &world{members: w.members}
	under := map[topic.Ref]topic.Move{}
	for _, m := range w.moving {
		under[m.Ref] = m
	}
	for _, a := range w.parts {
		if m, ok := under[a.Ref]; ok && !m.Aborted {
			a = moved(a, m.From, m.To)
		}
		out.parts = append(out.parts, a)
	}
	return out
}

func moved(a topic.Assignment, from, to string) topic.Assignment {
	a.Replicas = slices.Clone(a.Replicas)
	for i := range a.Replicas {
		if a.Replicas[i].Node == from {
			a.Replicas[i].Node = to
		}
	}
	return a
}

func (w *world) do(m Move) {
	w.parts[m.Partition] = moved(w.parts[m.Partition], m.From, m.To)
}

func (w *world) counts() (lo, hi, total int, by map[string]int) {
	by = map[string]int{}
	nodes := Candidates(w.members, w.parts)
	lo = 1 << 30
	for _, n := range nodes {
		by[n.ID] = n.Replicas
		lo, hi, total = min(lo, n.Replicas), max(hi, n.Replicas), total+n.Replicas
	}
	return lo, hi, total, by
}

func zonesOf(w *world, a *topic.Assignment) int {
	zones := map[string]bool{}
	for _, r := range a.Replicas {
		z := r.Node
		for _, m := range w.members {
			if m.ID == r.Node && m.Zone != "" && m.Status == topic.StatusAlive && !m.Draining {
				z = "zone " + m.Zone
			}
		}
		zones[z] = true
	}
	return len(zones)
}

// Whatever is drawn: a plan puts every replica on a node that may have it, takes
// nothing that moves or that nobody leads, spreads no partition less, and each of its moves leaves less
// to do than there was, so that it never leads back.
func TestRebalanceProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, []int{1, 3, 5})
		for i := range w.parts {
			if rapid.IntRange(0, 4).Draw(t, "nobody leads") == 0 {
				w.parts[i].Leader = ""
			}
		}
		plan := w.plan()
		_, _, _, before := w.settled().counts()
		done := w.settled()
		seen := map[topic.Ref]bool{}
		for _, m := range plan {
			if seen[m.Ref] {
				t.Fatalf("%v: twice in one plan", m)
			}
			seen[m.Ref] = true
			a := &done.parts[m.Partition]
			if a.Leader == "" {
				t.Fatalf("%v: nobody leads it", m)
			}
			if _, ok := a.ReplicaOn(m.From); !ok {
				t.Fatalf("%v: no replica there", m)
			}
			if _, ok := a.ReplicaOn(m.To); ok {
				t.Fatalf("%v: one is there already", m)
			}
			if _, ok := before[m.To]; !ok {
				t.Fatalf("%v: to a node that is dead or draining", m)
			}
			if slices.ContainsFunc(w.moving, func(u topic.Move) bool { return u.Ref == m.Ref }) {
				t.Fatalf("%v: it is moving", m)
			}
			_, _, _, by := done.counts()
			if by[m.From]-by[m.To] < 2 {
				t.Fatalf("%v: from %d to %d", m, by[m.From], by[m.To])
			}
			zones := zonesOf(done, a)
			done.do(m)
			if zonesOf(done, a) < zones {
				t.Fatalf("%v: fewer zones", m)
			}
		}
	})
}

// Repeated with at most 8 moves at once, whatever of them is taken back, it comes
// to rest, and nothing of single copies without zones is out of balance then.
func TestRebalanceComesToRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t, []int{1, 3, 5}).settled()
		single := !slices.ContainsFunc(w.parts, func(a topic.Assignment) bool { return len(a.Replicas) > 1 })
		_, _, total, by := w.counts()
		needed := 0
		if n := len(by); n > 0 {
			excess, deficit := 0, 0
			for _, c := range by {
				excess += max(c-(total+n-1)/n, 0)
				deficit += max(total/n-c, 0)
			}
			needed = max(excess, deficit)
		}
		made := 0
		for {
			plan := w.plan()
			if len(plan) == 0 {
				break
			}
			for _, m := range plan[:min(8, len(plan))] {
				if rapid.IntRange(0, 4).Draw(t, "taken back") > 0 {
					w.do(m)
					made++
				}
			}
			if made > 1000 {
				t.Fatal("it never ends")
			}
		}
		lo, hi, _, _ := w.counts()
		if single && len(by) > 0 {
			if hi-lo > 1 {
				t.Fatalf("at rest with %d and %d", lo, hi)
			}
			if made != needed {
				t.Fatalf("%d moves, %d were needed", made, needed)
			}
		}
	})
}

// What is moving is at its destination for the plan: it is not made up for twice.
func TestRebalanceCountsMovesAtTheirDestination(t *testing.T) {
	w := &world{}
	for _, id := range []string{"s1", "s2"} {
		w.members = append(w.members, topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1})
	}
	for p := range 4 {
		w.parts = append(w.parts, topic.Assignment{
			Ref:      topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)},
			Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}, Leader: "s1",
		})
	}
	if got := len(w.plan()); got != 2 {
		t.Fatalf("%d moves for an empty node beside one with 4", got)
	}
	w.moving = []topic.Move{{Ref: w.parts[0].Ref, From: "s1", To: "s2"}}
	if got := w.plan(); len(got) != 1 || got[0].Partition == 0 {
		t.Fatalf("with one under way: %v", got)
	}
	w.moving[0].Aborted = true
	if got := w.plan(); len(got) != 2 {
		t.Fatalf("with one that is taken back: %v", got)
	}
}

// What nobody leads stays where it is, and counts there: others make up for it.
func TestRebalanceMovesOthersForWhatNobodyLeads(t *testing.T) {
	w := &world{}
	for _, id := range []string{"s1", "s2"} {
		w.members = append(w.members, topic.Member{ID: id, Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1})
	}
	for p := range 6 {
		a := topic.Assignment{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: int32(p)}, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}}
		if p >= 2 {
			a.Leader = "s1"
		}
		w.parts = append(w.parts, a)
	}
	if got := w.plan(); len(got) != 3 || slices.ContainsFunc(got, func(m Move) bool { return m.Partition < 2 }) {
		t.Errorf("two of six have no leader: %v", got)
	}
	for p := range w.parts {
		w.parts[p].Leader = ""
	}
	if got := w.plan(); len(got) != 0 {
		t.Errorf("none has a leader: %v", got)
	}
}
