package placement

import (
	"cmp"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Complete plans how partitions that have fewer replicas than their topic is to have
// come back to that: by one replica more (a Move without From), or by one in the place
// of a replica whose node is no member any more. factor tells how many a topic is to
// have; member whether a node is one, dead or not: a node that is only down has its
// copy still.
//
// Each goes to one of nodes (Candidates gives them) that has none of the partition, in
// a zone that it is not in yet where there is one, then where the fewest replicas are,
// and to none whose disk is full.
// A partition gets one at a time, and none while it is moving or nobody leads it (what
// is lost is an operator's business). Those that have the fewest come first. The plan is
// empty when nothing lacks, or no node is left for what does.
func Complete(nodes []Node, assignments []topic.Assignment, moving []topic.Move, factor func(topic.Incarnation) int, member func(node string) bool, away Away) []Move {
	load := slices.Clone(nodes)
	under := arriving(load, moving)
	var short []*topic.Assignment
	for i := range assignments {
		a := &assignments[i]
		if a.Leader == "" || present(a, member) == 0 || under[a.Ref] || len(a.Observers) > 0 {
			continue
		}
		if len(a.Replicas) < factor(a.Incarnation) || buried(a, member) != "" {
			short = append(short, a)
		}
	}
	slices.SortStableFunc(short, func(a, b *topic.Assignment) int { return cmp.Compare(present(a, member), present(b, member)) })
	var out []Move
	for _, a := range short {
		from := buried(a, member)
		to := receiver(load, a, from, away.of(a.Ref))
		if to == nil {
			continue
		}
		to.Replicas++
		out = append(out, Move{Ref: a.Ref, From: from, To: to.ID})
	}
	return out
}

// buried is the first replica's node that is no member any more; "": there is none.
func buried(a *topic.Assignment, member func(string) bool) string {
	for _, r := range a.Replicas {
		if !member(r.Node) {
			return r.Node
		}
	}
	return ""
}

// present counts the replicas on nodes that are members.
func present(a *topic.Assignment, member func(string) bool) (n int) {
	for _, r := range a.Replicas {
		if member(r.Node) {
			n++
		}
	}
	return n
}

// arriving counts what moves to the nodes as there, and tells which partitions move.
func arriving(load []Node, moving []topic.Move) map[topic.Ref]bool {
	under := make(map[topic.Ref]bool, len(moving))
	for i := range moving {
		under[moving[i].Ref] = true
		for n := range load {
			if load[n].ID == moving[i].To && !moving[i].Aborted {
				load[n].Replicas++ // it comes
			}
		}
	}
	return under
}
