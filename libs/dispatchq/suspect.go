package dispatchq

import "time"

// Suspect tells that a storage node is probably dead, or is not any more. That is
// hearsay, from gossip: it is no verdict of the view (Place.Alive), releases no
// batch of unknown outcome and holds nothing up. All that it does is to point
// queues that may go elsewhere, and of which nothing is on its way there, to
// partitions of other nodes before their records have been refused for
// Config.RerouteAfter. Direct evidence beats hearsay: what the node commits or
// answers after it was suspected restores it, until a batch to it fails.
func (m *Machine) Suspect(now time.Duration, id string, suspected bool) {
	n := m.node(id)
	if n.suspected == suspected {
		return
	}
	n.suspected, n.suspectedAt, n.vouched = suspected, now, false
	if suspected {
		m.release(n) // who waits for it to answer others may have somewhere else to go
	}
	for _, l := range m.all.list {
		if l.route.State != Live || !l.route.Reroute {
			continue
		}
		for _, q := range l.all.list {
			m.suspectChanged(now, q, id, suspected)
		}
	}
}

// suspectChanged lets a queue look elsewhere now, or ask now whether its own
// partition serves again.
func (m *Machine) suspectChanged(now time.Duration, q *queue, id string, suspected bool) {
	places := q.life.route.Places
	leads := func(p int32) bool { return int(p) < len(places) && places[p].Leader == id }
	switch {
	case suspected && leads(q.at) && q.bound == nil && !q.key.Pinned:
		q.retryAt = 0
		m.kick(q)
	case !suspected && q.at != q.key.Partition && leads(q.key.Partition):
		q.probeAt = now
		m.kick(q)
	}
}

// vouch notes that a node did something that was asked of it at that time.
func (m *Machine) vouch(id string, asked time.Duration) {
	if n := m.node(id); n.suspected && asked > n.suspectedAt {
		n.vouched = true
	}
}

// avoided tells whether batches that may go elsewhere should.
func (m *Machine) avoided(p Place) bool {
	n := m.nodes[p.Leader]
	return n != nil && n.suspected && !n.vouched
}
