package placement

import (
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Evacuate plans where every replica on a node goes that is to have none: to one of
// nodes (Candidates gives them; the node itself is not among them) that has none of
// the partition, in a zone that it is not in yet where there is one, then where the
// fewest replicas are, the one that it keeps away from counting as one that has one more.
// A partition that is moving already is left alone until it has
// moved; one that nobody can take stays, and nobody takes one on a full disk: such a
// move would wait there, while a node with room may come. The order is that of the
// assignments.
func Evacuate(from string, nodes []Node, assignments []topic.Assignment, moving []topic.Move, away Away) []Move {
	load := slices.Clone(nodes)
	under := arriving(load, moving)
	var out []Move
	for i := range assignments {
		a := &assignments[i]
		if _, has := a.ReplicaOn(from); !has || under[a.Ref] || len(a.Observers) > 0 {
			continue
		}
		to := receiver(load, a, from, away.of(a.Ref))
		if to == nil {
			continue
		}
		to.Replicas++
		if a.Leader == from {
			to.Leads++
		}
		out = append(out, Move{Ref: a.Ref, From: from, To: to.ID})
	}
	return out
}

// receiver is the best node for the replica that leaves; nil: there is none.
func receiver(load []Node, a *topic.Assignment, from, avoid string) *Node {
	var stay []*Node // the replicas that stay, as far as they are nodes that receive
	for i := range load {
		if load[i].ID != from && a.On(load[i].ID) {
			stay = append(stay, &load[i])
		}
	}
	var best *Node
	for i := range load {
		if n := &load[i]; n.ID != from && !n.Full && !a.On(n.ID) && (best == nil || better(n, best, stay, avoid)) {
			best = n
		}
	}
	return best
}
