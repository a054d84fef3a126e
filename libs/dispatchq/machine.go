package dispatchq

import (
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// life groups the queues of one life of a topic: they share a route.
type life struct {
	key    lifeKey
	route  *Route
	queues map[Key]*queue
	all    bag[*queue]
	index  int           // in Machine.all
	askAt  time.Duration // not listed by Held before it
}

type lifeKey struct {
	name string
	id   topic.Incarnation
}

// flight is a batch in flight.
type flight struct {
	id      uint64
	q       *queue
	target  Target
	count   int
	counted bool // it takes a slot
	aborted bool // the shell was told to give it up
	started time.Duration
}

// binding says that the first count records of a queue may be on their way at a
// partition: they go nowhere else.
type binding struct {
	partition int32
	count     int
}

// queue is the records of one Key, oldest first: front (a window of the parked
// log), the rest of the parked log (unloaded), items (in the WAL).
type queue struct {
	key      Key
	life     *life
	front    fifo
	items    fifo
	unloaded int64
	flight   *flight
	bound    *binding
	parking  int  // items at the head of `items` that are being parked
	loading  bool // a Load is under way
	refused  bool // the leader last said that it knows another life
	parked   bool // counted in Machine.parkedQueues

	at           int32         // partition that it sends to now
	refusedSince time.Duration // first try of an unbroken row that surely did nothing; 0: none
	retryAt      time.Duration
	retryPause   time.Duration
	stuckSince   time.Duration // 0: it makes progress
	parkedAt     time.Duration // last parking; 0: never
	parkNext     time.Duration // not before it, after a parking that failed
	probing      bool
	probeAt      time.Duration
	probedAt     time.Duration // start of the last probe
	probePause   time.Duration

	index       int // in life.all
	lingerIndex int // in Machine.lingering

	wakeAt    time.Duration
	ready     bool
	waiting   bool // in Machine.waiting or in nodeState.waiting
	lingering bool
}

func (q *queue) len() int      { return q.front.len() + q.items.len() }
func (q *queue) backlog() bool { return q.front.len() > 0 || q.unloaded > 0 }

// head is the fifo whose records are next.
func (q *queue) head() *fifo {
	if q.backlog() {
		return &q.front
	}
	return &q.items
}

// nodeState is what the machine remembers of a storage node.
type nodeState struct {
	overdue int           // batches in flight for longer than SlotTime
	latency time.Duration // smoothed time to commit
	waiting []*queue

	suspected   bool // hearsay; see Suspect
	suspectedAt time.Duration
	vouched     bool // it has served since
}

// Machine is the dispatcher's decisions. Build one with New.
type Machine struct {
	cfg   Config
	world World

	lives    map[lifeKey]*life
	all      bag[*life]
	flights  map[uint64]*flight
	order    []*flight // in order of start, ended ones included until they reach the head
	nodes    map[string]*nodeState
	nodeList []*nodeState
	timers   timers

	// parkedLast is the highest number of each identity that the parked logs held
	// at start. It is as small as they were few.
	parkedLast map[Key]map[topic.ID64]uint64

	ready     []*queue
	waiting   []*queue // for a slot
	lingering bag[*queue]

	parkedQueues int // with a backlog in a parked log

	nextID   uint64
	slots    int
	known    int // items in memory
	relieved time.Duration
	rerouted uint64
	orders   Orders
}

// New returns an empty machine.
func New(cfg Config, world World) *Machine {
	return &Machine{
		cfg: cfg, world: world, lives: map[lifeKey]*life{}, flights: map[uint64]*flight{},
		nodes: map[string]*nodeState{}, parkedLast: map[Key]map[topic.ID64]uint64{},
		all:       bag[*life]{place: func(l *life) *int { return &l.index }},
		lingering: bag[*queue]{place: func(q *queue) *int { return &q.lingerIndex }},
	}
}

// Add takes the next record that the shell read from the WAL, and tells whether
// it did. A record that lies in the parked log of its queue too (the gateway
// crashed between parking it and remembering that) is not taken: it is done for
// the WAL. Records of one queue must come in WAL order.
func (m *Machine) Add(now time.Duration, key Key, it Item) bool {
	if last := m.parkedLast[key]; last != nil && it.Seq <= last[it.WAL] {
		return false
	}
	q := m.queue(key)
	it.added = now
	q.items.push(it)
	m.known++
	n := q.len()
	if n == 1 || q.lingering && n >= m.cfg.TargetItems {
		m.kick(q)
	}
	return true
}

// AddParked tells at start, before the first Add, that the parked log of a queue
// holds records: how many, and the highest number of each WAL identity.
func (m *Machine) AddParked(now time.Duration, key Key, records int64, last map[topic.ID64]uint64) {
	m.parkedLast[key] = last
	q := m.queue(key)
	q.unloaded += records
	q.parkedAt = now
	m.countParked(q)
	m.kick(q)
}

// Full tells the shell to read no further from the WAL for now.
func (m *Machine) Full() bool { return m.known >= m.cfg.MaxItems }

// Stats counts. It walks all queues.
func (m *Machine) Stats() Stats {
	s := Stats{Items: m.known, InFlight: len(m.flights), Rerouted: m.rerouted}
	for _, l := range m.all.list {
		for _, q := range l.all.list {
			s.Unloaded += q.unloaded
			if l.route.State == Gone || q.refused {
				s.Held += q.unloaded + int64(q.len())
			}
		}
	}
	return s
}

func (m *Machine) queue(key Key) *queue {
	lk := lifeKey{key.Topic, key.Incarnation}
	l := m.lives[lk]
	if l == nil {
		l = &life{key: lk, route: m.world.Route(key.Topic, key.Incarnation), queues: map[Key]*queue{}}
		l.all.place = func(q *queue) *int { return &q.index }
		m.lives[lk] = l
		m.all.add(l)
	}
	q := l.queues[key]
	if q == nil {
		q = &queue{key: key, life: l, at: key.Partition}
		l.queues[key] = q
		l.all.add(q)
	}
	return q
}

func (m *Machine) node(id string) *nodeState {
	n := m.nodes[id]
	if n == nil {
		n = &nodeState{}
		m.nodes[id] = n
		m.nodeList = append(m.nodeList, n)
	}
	return n
}

// kick puts q on the ready list.
func (m *Machine) kick(q *queue) {
	if !q.ready {
		q.ready = true
		m.ready = append(m.ready, q)
	}
}

// ViewChanged tells that topics, assignments or members may have changed.
func (m *Machine) ViewChanged() {
	changed := false
	for _, l := range m.all.list {
		route := m.world.Route(l.key.name, l.key.id)
		if route == l.route {
			continue
		}
		l.route, changed = route, true
		for _, q := range l.all.list {
			q.retryAt, q.retryPause, q.refused = 0, 0, false
			m.kick(q)
		}
	}
	if changed {
		for _, n := range m.nodeList {
			m.release(n)
		}
	}
}

// release lets the queues decide again that wait for a node.
func (m *Machine) release(n *nodeState) {
	for _, q := range n.waiting {
		q.waiting = false
		m.kick(q)
	}
	n.waiting = nil
}

// Answer reports the outcome of a batch and returns the items that are now done.
func (m *Machine) Answer(now time.Duration, id uint64, out Outcome) (done []Item) {
	f := m.flights[id]
	if f == nil {
		return nil
	}
	m.land(f)
	if f.aborted {
		m.relieved = 0 // it was given up so that its queue can be parked before it is sent again
	}
	q := f.q
	if out != Committed {
		m.node(f.target.Leader).vouched = false
	}
	switch out {
	case Committed:
		m.vouch(f.target.Leader, f.started)
		done = append(done, q.head().first(f.count)...)
		m.committed(now, f)
	case Refused:
		q.refused = false
		if q.refusedSince == 0 && f.target.Partition == q.at {
			q.refusedSince = f.started
		}
		m.failed(now, q)
	case Mismatch:
		q.refused = true
		q.refusedSince = 0
		m.failed(now, q)
	case Unknown:
		q.refused = false
		if q.bound == nil {
			q.bound = &binding{partition: f.target.Partition, count: f.count}
		}
		q.refusedSince = 0
		m.failed(now, q)
	}
	m.kick(q)
	return done
}

// land takes a batch out of flight and lets those go on that waited for it.
func (m *Machine) land(f *flight) {
	delete(m.flights, f.id)
	f.q.flight = nil
	n := m.node(f.target.Leader)
	if f.counted {
		f.counted = false
		m.slots--
	} else {
		n.overdue--
	}
	if n.overdue < m.cfg.NodeOverdue {
		m.release(n)
	}
	if len(m.flights) == 0 {
		for _, q := range m.lingering.list {
			m.kick(q)
		}
	}
}

func (m *Machine) committed(now time.Duration, f *flight) {
	q := f.q
	q.head().pop(f.count)
	m.known -= f.count
	m.countParked(q)
	q.refused = false
	if b := q.bound; b != nil {
		if b.count -= f.count; b.count <= 0 {
			q.bound = nil
		}
	}
	q.refusedSince, q.retryAt, q.retryPause, q.stuckSince = 0, 0, 0, 0
	if f.target.Partition == q.key.Partition {
		q.probePause = 0
	}
	n := m.node(f.target.Leader)
	took := now - f.started
	if n.latency == 0 {
		n.latency = took
	}
	n.latency += (took - n.latency) / 8
}

func (m *Machine) failed(now time.Duration, q *queue) {
	q.retryPause = min(max(q.retryPause*2, m.cfg.RetryMin), m.cfg.RetryMax)
	q.retryAt = now + q.retryPause
	m.stuck(now, q)
}

// stuck starts the clock of parking, if it does not run.
func (m *Machine) stuck(now time.Duration, q *queue) {
	if q.stuckSince == 0 {
		q.stuckSince = now
	}
}

// Drop reports that a record of a batch cannot be read any more, while the batch
// has not been sent: the record is given up and the batch ends as refused. The
// caller counts and reports the loss.
func (m *Machine) Drop(now time.Duration, id uint64, pos Pos) (done []Item) {
	f := m.flights[id]
	if f == nil {
		return nil
	}
	h := f.q.head()
	for i, it := range h.first(f.count) {
		if it.Pos != pos {
			continue
		}
		done = append(done, it)
		rest := append(append([]Item(nil), h.list[h.head:h.head+i]...), h.list[h.head+i+1:]...)
		h.list, h.head = rest, 0
		m.known--
		m.countParked(f.q)
		if b := f.q.bound; b != nil {
			if b.count--; b.count == 0 {
				f.q.bound = nil
			}
		}
		break
	}
	m.land(f)
	m.kick(f.q)
	return done
}
