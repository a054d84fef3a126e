package placement

import (
	"cmp"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// HandOver gives the leadership of a partition to another of its replicas.
type HandOver struct {
	At int    // index of the partition in the list that was planned for
	To string // node
}

// Lead plans which leaderships change hands, so that the numbers of leaderships of
// nodes are as even as the replicas of list allow, and then so that partitions are led by
// the first of their set as far as that leaves the numbers as even. nodes may lead
// (Candidates gives them; their Leads count all partitions, those that are not in list
// included); one with a full disk only gives. list is what may change hands now. What
// another node leads, one that drains, is left as it is and counts for nothing.
//
// The answer is chains: each takes a leadership from a node that leads more to one that
// leads less, over nodes between them that get one and give one, or round in a circle.
// Part of a chain may leave the numbers less even than before; some of the chains, each
// whole, do not. All together have at most limit hand-overs, unless the first alone has
// more.
//
// Every chain lowers the sum of the squares of the numbers, or leaves that and brings a
// leadership home to the first of its set. So it ends, and never goes the way back. When
// it is empty, no chain lowers that sum, which is then the least there is (an exchange of
// leaderships between two solutions falls into such chains): if some choice of leaders
// leaves no two nodes further apart than one, this is one. And if to be led by their first
// replicas is as even as can be, all are.
func Lead(nodes []Node, list []*topic.Assignment, limit int) (chains [][]HandOver) {
	l := newLeads(nodes, list)
	planned := 0
	take := func(path []int, kinds ...kind) bool {
		hops := len(path) - 1
		if hops < 1 || planned > 0 && planned+hops > limit {
			return false
		}
		planned += hops
		chains = append(chains, l.hand(path, kinds))
		return true
	}
	for planned < limit && slices.ContainsFunc(l.byLoad(), func(from int) bool {
		return take(l.path(from, l.fewer(from, 2), homeward, abroad, away), homeward, abroad, away)
	}) {
	}
	if planned > 0 {
		return chains // what is even only when these succeed is no ground to go on
	}
	for from := range l.nodes {
		for planned < limit && take(l.path(from, func(to int) bool { return to == from }, homeward), homeward) {
		}
		if path := l.path(from, l.fewer(from, 1), homeward); planned < limit && !l.touched[from] && take(path, homeward) {
			l.touched[from], l.touched[path[len(path)-1]] = true, true
		}
	}
	return chains
}

// kind is what a hand-over does for the first replica of the set. In this order they are
// made: those that bring a leadership home first, those that take one from there last.
type kind int

const (
	homeward kind = iota // to the first of the set
	abroad               // between two others
	away                 // from the first of the set
	kinds
)

// leads is the state of a plan in the making. Nodes are their indexes.
type leads struct {
	nodes   []Node
	list    []*topic.Assignment
	ways    [][kinds][]int // by from*len(nodes)+to: partitions that can be handed over so
	moved   []bool         // partitions that this plan hands over
	touched []bool         // nodes whose number a chain has changed that only brings home
}

func newLeads(nodes []Node, list []*topic.Assignment) *leads {
	n := len(nodes)
	l := &leads{
		nodes: slices.Clone(nodes), list: list,
		ways: make([][kinds][]int, n*n), moved: make([]bool, len(list)), touched: make([]bool, n),
	}
	index := make(map[string]int, n)
	for i := range nodes {
		index[nodes[i].ID] = i
	}
	for at, a := range list {
		from, in := index[a.Leader]
		if !in {
			continue
		}
		for k, r := range a.Replicas {
			to, in := index[r.Node]
			if !in || to == from || nodes[to].Full || r.CopyID == 0 || r.DiskID != nodes[to].DiskID {
				continue
			}
			how := abroad
			switch {
			case k == 0:
				how = homeward
			case a.Replicas[0].Node == a.Leader:
				how = away
			}
			way := &l.ways[from*n+to][how]
			*way = append(*way, at)
		}
	}
	return l
}

// byLoad lists the nodes, that which leads most first.
func (l *leads) byLoad() []int {
	order := make([]int, len(l.nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(l.nodes[y].Leads, l.nodes[x].Leads) })
	return order
}

// fewer accepts nodes that lead at least that many fewer than one, and that no chain
// before has changed only to bring a leadership home.
func (l *leads) fewer(than, by int) func(int) bool {
	return func(to int) bool { return l.nodes[to].Leads <= l.nodes[than].Leads-by && !l.touched[to] }
}

// path is the shortest way to the node that leads least of those that are accepted; nil:
// there is none. It is over hand-overs of these kinds.
func (l *leads) path(from int, accepted func(int) bool, how ...kind) []int {
	before := make([]int, len(l.nodes)) // on the way to a node; -1: not reached
	for i := range before {
		before[i] = -1
	}
	best := -1
	reached := []int{from}
	for i := 0; i < len(reached); i++ {
		at := reached[i]
		for to := range l.nodes {
			if before[to] >= 0 || !slices.ContainsFunc(how, func(k kind) bool { return l.next(at, to, k) >= 0 }) {
				continue
			}
			before[to] = at
			if to != from {
				reached = append(reached, to)
			}
			if accepted(to) && (best < 0 || l.nodes[to].Leads < l.nodes[best].Leads) {
				best = to
			}
		}
	}
	if best < 0 {
		return nil
	}
	path := []int{best}
	for at := before[best]; ; at = before[at] {
		path = append(path, at)
		if at == from {
			slices.Reverse(path)
			return path
		}
	}
}

// next is a partition that can be handed over so; -1: there is none.
func (l *leads) next(from, to int, how kind) int {
	way := &l.ways[from*len(l.nodes)+to][how]
	for len(*way) > 0 && l.moved[(*way)[len(*way)-1]] {
		*way = (*way)[:len(*way)-1]
	}
	if len(*way) == 0 {
		return -1
	}
	return (*way)[len(*way)-1]
}

// hand makes a chain of a path: every hand-over of the first kind that there is.
func (l *leads) hand(path []int, how []kind) (chain []HandOver) {
	for i, to := range path[1:] {
		for _, k := range how {
			if at := l.next(path[i], to, k); at >= 0 {
				l.moved[at] = true
				chain = append(chain, HandOver{At: at, To: l.nodes[to].ID})
				break
			}
		}
	}
	l.nodes[path[0]].Leads--
	l.nodes[path[len(path)-1]].Leads++
	return chain
}
