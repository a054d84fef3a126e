package dispatchq

import "time"

// Step decides what to do now and when to call again at the latest (0: when
// something was reported). The shell calls it after every round of reports.
// Times are since an origin of the shell's, monotonic, and above 0.
func (m *Machine) Step(now time.Duration) (Orders, time.Duration) {
	m.expireSlots(now)
	m.due(now)
	for m.slots < m.cfg.Slots && len(m.waiting) > 0 { // first, who waits for longest
		q := m.waiting[0]
		m.waiting = m.waiting[1:]
		q.waiting = false
		m.advance(now, q)
	}
	for i := 0; i < len(m.ready); i++ { // advance may kick further queues
		q := m.ready[i]
		q.ready = false
		m.advance(now, q)
	}
	m.ready = m.ready[:0]
	if m.Full() {
		m.relieve(now)
	}
	out := m.orders
	m.orders = Orders{}
	return out, m.next()
}

// next is when Step has something to do on its own.
func (m *Machine) next() time.Duration {
	var at time.Duration
	if len(m.timers) > 0 {
		at = m.timers[0].at
	}
	if len(m.waiting) > 0 && len(m.order) > 0 {
		if end := m.order[0].started + m.cfg.SlotTime; at == 0 || end < at {
			at = end
		}
	}
	return at
}

// expireSlots takes the slot from batches that are in flight for too long.
func (m *Machine) expireSlots(now time.Duration) {
	for len(m.order) > 0 {
		f := m.order[0]
		if f.counted && f.started+m.cfg.SlotTime > now {
			return
		}
		m.order = m.order[1:]
		if f.counted {
			f.counted = false
			m.slots--
			m.node(f.target.Leader).overdue++
		}
	}
}

// advance decides for one queue. Every path either gives an order, waits for a
// report, or arms a timer.
func (m *Machine) advance(now time.Duration, q *queue) {
	m.stopLingering(q)
	m.probe(now, q)
	if q.flight != nil || q.waiting {
		return
	}
	if q.len() == 0 && q.unloaded == 0 {
		if !q.loading { // else its parked log is being removed
			m.forget(q)
		}
		return
	}
	state := q.life.route.State
	if state == Unavailable {
		q.stuckSince = 0 // the records stay in the WAL, however long
		return
	}
	if m.park(now, q) || q.parking > 0 {
		return
	}
	if state == Gone {
		m.stuck(now, q)
		m.wakeToPark(q)
		return
	}
	if q.retryAt > now {
		m.wake(q, q.retryAt)
		m.wakeToPark(q)
		return
	}
	target, ok := m.target(now, q)
	if !ok {
		m.stuck(now, q)
		m.wakeToPark(q)
		return
	}
	if !m.loaded(q) { // only now: a parked queue that is still stuck keeps nothing in memory
		return
	}
	if m.linger(now, q, target) {
		return
	}
	m.send(now, q, target)
}

// loaded makes sure that the next records are known.
func (m *Machine) loaded(q *queue) bool {
	if q.front.len() == 0 && q.unloaded > 0 {
		if !q.loading {
			q.loading = true
			m.orders.Load = append(m.orders.Load, Load{q.key, m.window()})
		}
		return false
	}
	return true
}

// minWindow is the least that is loaded of a parked log: one batch of the target size.
const minWindow = 64

// window is how many records of a parked log may be known: ten thousand logs that
// are drained at one moment share what Config.MaxItems allows.
func (m *Machine) window() int {
	return max(min(m.cfg.LoadItems, m.cfg.MaxItems/max(m.parkedQueues, 1)), min(minWindow, m.cfg.LoadItems))
}

// countParked keeps parkedQueues; to be called when a queue's backlog changed.
func (m *Machine) countParked(q *queue) {
	switch has := q.backlog(); {
	case has && !q.parked:
		m.parkedQueues++
	case !has && q.parked:
		m.parkedQueues--
	}
	q.parked = q.backlog()
}

// linger waits for more records, while others are in flight anyway.
func (m *Machine) linger(now time.Duration, q *queue, to Target) bool {
	h := q.head()
	if q.bound != nil || len(m.flights) == 0 || h.len() >= m.cfg.TargetItems {
		return false
	}
	until := h.first(1)[0].added + min(2*m.node(to.Leader).latency, m.cfg.MaxLinger)
	if until <= now {
		return false
	}
	q.lingering = true
	m.lingering.add(q)
	m.wake(q, until)
	return true
}

func (m *Machine) stopLingering(q *queue) {
	if q.lingering {
		q.lingering = false
		m.lingering.remove(q)
	}
}

// send orders the next batch, or waits for a slot.
func (m *Machine) send(now time.Duration, q *queue, to Target) {
	n := m.node(to.Leader)
	if n.overdue >= m.cfg.NodeOverdue {
		m.stuck(now, q) // as long as the node is silent: it may have to be parked
		q.waiting = true
		n.waiting = append(n.waiting, q)
		return
	}
	if m.slots >= m.cfg.Slots {
		q.waiting = true
		m.waiting = append(m.waiting, q)
		return
	}
	if q.bound != nil && to.Partition != q.bound.partition {
		q.bound = nil
	}
	count := m.batchLen(q)
	m.nextID++
	f := &flight{id: m.nextID, q: q, target: to, count: count, counted: true, started: now}
	m.slots++
	m.flights[f.id] = f
	m.order = append(m.order, f)
	q.flight = f
	if to.Partition != q.key.Partition {
		m.rerouted += uint64(count)
	}
	items := append([]Item(nil), q.head().first(count)...)
	m.orders.Send = append(m.orders.Send, Batch{ID: f.id, Key: q.key, Target: to, Items: items})
}

// batchLen is how many records the next batch takes: the bound ones and no
// other, else as many of one WAL identity as fit.
func (m *Machine) batchLen(q *queue) int {
	h := q.head()
	if q.bound != nil { // a loaded window may hold only the first of them
		return min(q.bound.count, h.len())
	}
	items := h.first(min(h.len(), m.cfg.BatchItems))
	bytes := 0
	for i, it := range items {
		bytes += int(it.Size)
		// A number that does not grow was parked and is still in the WAL too, after a
		// crash between the two: it is a batch of its own, and dropped as known.
		if i > 0 && (bytes > m.cfg.BatchBytes || it.WAL != items[0].WAL || it.Seq <= items[i-1].Seq) {
			return i
		}
	}
	return len(items)
}

// forget drops an empty queue, unless it must remember that it is rerouted.
func (m *Machine) forget(q *queue) {
	if q.at != q.key.Partition && q.life.route.State == Live {
		return
	}
	l := q.life
	delete(l.queues, q.key)
	l.all.remove(q)
	if len(l.queues) == 0 {
		delete(m.lives, l.key)
		m.all.remove(l)
	}
	q.wakeAt = -1 // no timer of it is valid any more
}
