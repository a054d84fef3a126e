package dispatchq

import "time"

// relieveEvery bounds how often all queues are walked under pressure.
const relieveEvery = 100 * time.Millisecond

// park orders the queue's WAL records into its parked log when it is time, and
// tells whether it did; never while records are being loaded, so that the log is
// used by one at a time. Appending keeps the order even while the log is being
// drained: it holds everything older.
func (m *Machine) park(now time.Duration, q *queue) bool {
	if q.items.len() == 0 || q.parking > 0 || q.loading || m.parkAt(q) == 0 || m.parkAt(q) > now {
		return false
	}
	m.orderPark(q)
	return true
}

// parkAt is when the queue is to be parked next; 0: there is no reason.
func (m *Machine) parkAt(q *queue) time.Duration {
	switch {
	case q.items.len() == 0:
		return 0
	case q.backlog(): // what comes behind a parked backlog would pin the WAL as long as it lasts
		return max(q.parkedAt+m.cfg.ReparkAfter, q.parkNext)
	case q.stuckSince == 0:
		return 0
	default:
		return max(q.stuckSince+m.cfg.ParkAfter, q.parkNext)
	}
}

func (m *Machine) wakeToPark(q *queue) {
	if at := m.parkAt(q); at != 0 {
		m.wake(q, at)
	}
}

func (m *Machine) orderPark(q *queue) {
	q.parking = q.items.len()
	items := append([]Item(nil), q.items.first(q.parking)...)
	m.orders.Park = append(m.orders.Park, Park{q.key, items})
}

// Parked reports the end of a Park: its first n items are in the parked log, and
// done for the WAL. The others stay, and are tried again later.
func (m *Machine) Parked(now time.Duration, key Key, n int) {
	q := m.queue(key)
	if n < q.parking { // a full disk, most likely: not every 100 ms again, also not under pressure
		q.parkNext = now + m.cfg.ReparkAfter
	}
	q.parking = 0
	q.parkedAt = now
	q.items.pop(n)
	q.unloaded += int64(n)
	m.known -= n
	m.countParked(q)
	m.kick(q)
}

// Loaded reports the next records of a parked log, oldest first. None means that
// they could not be read now; lost says how many were given up as damaged.
func (m *Machine) Loaded(now time.Duration, key Key, items []Item, lost int64) {
	q := m.queue(key)
	q.loading = false
	for _, it := range items {
		it.Parked, it.added = true, now
		q.front.push(it)
	}
	m.known += len(items)
	q.unloaded = max(q.unloaded-int64(len(items))-lost, 0)
	m.countParked(q)
	if len(items) == 0 && lost == 0 {
		m.failed(now, q)
		m.wake(q, q.retryAt)
		return
	}
	m.kick(q)
}

// relieve parks queues that make no progress, the largest first, until what is
// left is known to move: else one dead partition would fill the memory and stop
// the reading of everything behind it.
func (m *Machine) relieve(now time.Duration) {
	if now-m.relieved < relieveEvery {
		return
	}
	m.relieved = now
	excess := m.known - m.cfg.MaxItems*3/4
	for excess > 0 {
		var largest *queue
		for _, l := range m.all.list {
			for _, q := range l.all.list {
				if q.parkable(now) && (largest == nil || q.items.len() > largest.items.len()) {
					largest = q
				}
			}
		}
		if largest == nil {
			m.abort()
			return
		}
		excess -= largest.items.len()
		m.orderPark(largest)
	}
}

// abort gives up on the batches that are in flight beyond SlotTime: a queue cannot
// be parked before its batch has an outcome, and the records behind a batch to a
// silent node would keep the reader from everybody else's.
func (m *Machine) abort() {
	for _, l := range m.all.list {
		for _, q := range l.all.list {
			if f := q.flight; f != nil && !f.counted && !f.aborted && !q.backlog() {
				f.aborted = true
				m.orders.Abort = append(m.orders.Abort, f.id)
			}
		}
	}
}

// parkable tells whether the queue makes no progress and may be parked now: a
// batch of WAL records in flight must stay where it is.
func (q *queue) parkable(now time.Duration) bool {
	if q.parking > 0 || q.parkNext > now || q.loading || q.items.len() == 0 || q.life.route.State == Unavailable {
		return false
	}
	return q.backlog() || q.stuckSince != 0 && q.flight == nil
}
