package dispatchq

import "time"

// target chooses where the queue's next batch goes; false: nowhere now.
func (m *Machine) target(now time.Duration, q *queue) (Target, bool) {
	route := q.life.route
	own := q.key.Partition
	if int(own) >= len(route.Places) {
		return Target{}, false // a view older than the record
	}
	if q.bound != nil && !q.released(route) {
		return place(route, q.bound.partition)
	}
	if !route.Reroute || q.key.Pinned {
		q.at = own
		return place(route, own)
	}
	switch {
	case m.failing(now, q, route):
		if !m.moveOn(now, q, route, false) { // better a suspected leader than one that fails
			m.moveOn(now, q, route, true)
		}
	case m.avoided(route.Places[q.at]):
		m.moveOn(now, q, route, false)
	}
	return place(route, q.at)
}

// place is where to send for a partition. A leader that the view calls dead is
// tried all the same: with no quorum the verdict may be old.
func place(route *Route, partition int32) (Target, bool) {
	p := route.Places[partition]
	return Target{Partition: partition, Place: p}, p.Leader != ""
}

// released tells whether a batch of unknown outcome may leave its partition: once
// the view shows that no living leader can answer for it. Only a queue that may go
// elsewhere is released: the others repeat it there whatever the view says. The
// binding itself ends when something is sent elsewhere (send), because the leader
// may come back before that.
func (q *queue) released(route *Route) bool {
	return route.Reroute && !q.key.Pinned && !route.Places[q.bound.partition].serves()
}

// failing tells whether the queue must leave the partition that it sends to.
func (m *Machine) failing(now time.Duration, q *queue, route *Route) bool {
	if int(q.at) >= len(route.Places) {
		return true
	}
	if !route.Places[q.at].serves() {
		return true
	}
	return q.refusedSince != 0 && now-q.refusedSince >= m.cfg.RerouteAfter
}

// moveOn points the queue at the next partition whose leader lives, if there is
// one; suspected says whether it may be one that is avoided.
func (m *Machine) moveOn(now time.Duration, q *queue, route *Route, suspected bool) bool {
	n := int32(len(route.Places))
	for step := int32(1); step < n; step++ {
		next := (q.at + step) % n
		if p := route.Places[next]; p.Leader == "" || !p.Alive || !suspected && m.avoided(p) {
			continue
		}
		if q.at == q.key.Partition {
			q.probePause = min(max(q.probePause*2, m.cfg.ProbeInterval), m.cfg.ProbeMax)
			q.probeAt = now + q.probePause
			m.wake(q, q.probeAt)
		}
		q.at = next
		q.refusedSince = 0
		return true
	}
	return false
}

// probe asks now and then whether the own partition of a rerouted queue serves
// again. The pause doubles when a return is followed by another reroute, so that a
// leader that answers probes and refuses records does not stop the queue for
// 3 s every second.
func (m *Machine) probe(now time.Duration, q *queue) {
	own := q.key.Partition
	route := q.life.route
	if q.at == own || q.probing || route.State != Live || int(own) >= len(route.Places) {
		return
	}
	if q.probeAt > now {
		m.wake(q, q.probeAt)
		return
	}
	to, ok := place(route, own)
	q.probeAt = now + max(q.probePause, m.cfg.ProbeInterval)
	if !ok {
		m.wake(q, q.probeAt)
		return
	}
	q.probing, q.probedAt = true, now
	m.orders.Probe = append(m.orders.Probe, Probe{Key: q.key, Target: to})
}

// Probed reports whether the leader of the own partition serves it.
func (m *Machine) Probed(now time.Duration, key Key, serves bool) {
	l := m.lives[lifeKey{key.Topic, key.Incarnation}]
	if l == nil || l.queues[key] == nil {
		return
	}
	q := l.queues[key]
	q.probing = false
	q.probeAt = now + max(q.probePause, m.cfg.ProbeInterval)
	if route := l.route; serves && route.State == Live && int(q.key.Partition) < len(route.Places) && route.Places[q.key.Partition].Alive {
		// A batch in flight or bound elsewhere still ends there: target looks at
		// the binding first, and only one batch is in flight.
		q.at = q.key.Partition
		q.refusedSince, q.retryAt = 0, 0
		m.vouch(route.Places[q.at].Leader, q.probedAt)
	}
	m.kick(q)
}
