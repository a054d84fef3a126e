package placement

import (
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Move takes the replica of a partition from one node to another. Without From the
// partition gets one more.
type Move struct {
	topic.Ref
	From, To string
}

// Away tells which node a partition keeps away from where nothing better speaks for it:
// of a child, the leader that it gets its messages from. "": none. nil: none of any.
type Away func(topic.Ref) string

func (a Away) of(ref topic.Ref) string {
	if a == nil {
		return ""
	}
	return a(ref)
}

// Rebalance plans the moves after which every node has floor or ceil of the
// average number of replicas, where distinct nodes and zones allow it. nodes may
// receive (Candidates gives them); what lies on others stays and counts for nothing. One
// with a full disk only gives.
// A partition that is moving counts at its destination and is left alone; one that nobody
// leads counts where it is and stays there, because nothing of it could be copied.
//
// Each move goes from a node to one that has at least two fewer, so that a plan,
// carried out in whole or in part, leaves less to do and never the way back: it
// converges and does not oscillate. Where nothing forces otherwise it has as many
// moves as replicas stand above the ceil, or lack below the floor. It never takes
// the zones of a partition's replicas closer together, and takes one to the node that it
// keeps away from only where no other would do as well.
func Rebalance(nodes []Node, assignments []topic.Assignment, moving []topic.Move, away Away) []Move {
	b := newBalance(nodes, assignments, moving)
	for i := range b.parts {
		b.parts[i].away = away.of(b.parts[i].ref)
	}
	var out []Move
	for m, ok := b.next(); ok; m, ok = b.next() {
		out = append(out, m)
	}
	return out
}

// balance is the state of a plan in the making.
type balance struct {
	nodes map[string]*load
	order []string // of nodes, so that equal inputs give equal plans
	parts []layout
}

// load is what a node has.
type load struct {
	zone     string
	full     bool // it gives, and does not receive
	replicas int
	firsts   int   // partitions that it leads when all is well
	movable  []int // indexes of parts that have a replica here
}

// layout is where the replicas of one partition will be.
type layout struct {
	ref   topic.Ref
	first string
	on    []string
	away  string // the node that it keeps away from; "": none
	fixed bool   // it is moving or was moved by this plan, or nobody leads it
}

func newBalance(nodes []Node, assignments []topic.Assignment, moving []topic.Move) *balance {
	b := &balance{nodes: make(map[string]*load, len(nodes))}
	for i := range nodes {
		b.nodes[nodes[i].ID] = &load{zone: nodes[i].Zone, full: nodes[i].Full}
		b.order = append(b.order, nodes[i].ID)
	}
	slices.Sort(b.order)
	under := make(map[topic.Ref]*topic.Move, len(moving))
	for i := range moving {
		under[moving[i].Ref] = &moving[i]
	}
	disks := make(map[string]topic.ID64, len(nodes))
	for i := range nodes {
		disks[nodes[i].ID] = nodes[i].DiskID
	}
	for i := range assignments {
		a := &assignments[i]
		at := layoutOf(a, under[a.Ref])
		for k, node := range at.on {
			n := b.nodes[node]
			if n == nil {
				continue
			}
			n.replicas++
			if k == 0 {
				n.firsts++
			}
			if r, in := a.ReplicaOn(node); in && !at.fixed && r.DiskID == disks[node] {
				n.movable = append(n.movable, len(b.parts))
			}
		}
		b.parts = append(b.parts, at)
	}
	return b
}

// layoutOf is where a partition is when its move, if it has one, has ended.
func layoutOf(a *topic.Assignment, m *topic.Move) layout {
	s := layout{ref: a.Ref, fixed: m != nil || len(a.Observers) > 0 || a.Leader == ""}
	from, to := "", ""
	if m != nil {
		from, to = m.From, m.To
		if m.Aborted {
			from, to = m.To, m.From
		}
	}
	for _, r := range a.Replicas {
		node := r.Node
		if node == from {
			node = to
		}
		if node != "" && !slices.Contains(s.on, node) {
			s.on = append(s.on, node)
		}
	}
	if m != nil && from == "" && !slices.Contains(s.on, to) {
		s.on = append(s.on, to) // one more comes
	}
	s.first = s.on[0]
	return s
}

// next plans one move; false: nothing more is better.
func (b *balance) next() (Move, bool) {
	donors, receivers := slices.Clone(b.order), slices.Clone(b.order)
	slices.SortStableFunc(donors, func(x, y string) int { return b.nodes[y].replicas - b.nodes[x].replicas })
	slices.SortStableFunc(receivers, func(x, y string) int { return b.nodes[x].replicas - b.nodes[y].replicas })
	for _, from := range donors {
		for _, to := range receivers {
			if b.nodes[from].replicas-b.nodes[to].replicas < 2 {
				break // those that follow have more
			}
			if b.nodes[to].full {
				continue
			}
			if at := b.choose(from, to); at >= 0 {
				return b.move(at, from, to), true
			}
		}
	}
	return Move{}, false
}

// choose finds a partition that may go from one node to another, preferring one
// that brings the leaderships of the two closer together, then one that does not keep
// away from where it goes; -1: none.
func (b *balance) choose(from, to string) int {
	wantFirst := b.nodes[from].firsts > b.nodes[to].firsts
	best, most := -1, -1
	for _, i := range b.nodes[from].movable {
		p := &b.parts[i]
		if p.fixed || slices.Contains(p.on, to) || !b.spreads(p, from, to) {
			continue
		}
		good := 0
		if (p.first == from) == wantFirst {
			good += 2
		}
		if p.away != to {
			good++
		}
		if good > most {
			best, most = i, good
		}
	}
	return best
}

// spreads tells whether the replicas stand in no fewer zones after the move. A node
// without one is a zone of its own.
func (b *balance) spreads(p *layout, from, to string) bool {
	zone := func(node string) string {
		if n := b.nodes[node]; n != nil && n.zone != "" {
			return n.zone
		}
		return "\x00" + node
	}
	goes, comes := true, true // the zone that is left has no other replica; the one that is entered has none
	for _, node := range p.on {
		if node == from {
			continue
		}
		goes = goes && zone(node) != zone(from)
		comes = comes && zone(node) != zone(to)
	}
	return comes || !goes
}

func (b *balance) move(at int, from, to string) Move {
	p := &b.parts[at]
	p.fixed = true
	d, r := b.nodes[from], b.nodes[to]
	d.replicas--
	r.replicas++
	if p.first == from {
		d.firsts--
		r.firsts++
	}
	d.movable = slices.DeleteFunc(d.movable, func(i int) bool { return i == at })
	p.on[slices.Index(p.on, from)] = to
	return Move{Ref: p.ref, From: from, To: to}
}
