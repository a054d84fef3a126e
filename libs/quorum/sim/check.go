package sim

import (
	"cmp"
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// checker knows everything that must never be otherwise.
type checker struct {
	ledger    []rec // what is committed, by offset
	numbers   numbers
	seen      map[place]uint64 // hash of the log up to and with (epoch, offset)
	committer map[topic.Epoch]uint64
	lifeHWM   [maxNodes]mark        // of the process
	storedHWM [maxNodes]mark        // of the copy
	slowest   [maxNodes]mark        // fetch that counted, ms, per leadership
	committed map[topic.Epoch]int64 // when an epoch first committed
	reach     []mark                // how far each epoch committed, in order
	ends      []ranked
}

type place struct {
	epoch  topic.Epoch
	offset int64
}

// mark is a number that belongs to something with an identity.
type mark struct {
	of    uint64
	value int64
}

func newChecker() checker {
	return checker{
		seen: map[place]uint64{}, committer: map[topic.Epoch]uint64{}, committed: map[topic.Epoch]int64{},
	}
}

// record: equal (epoch, offset) means equal bytes, and equal bytes before.
func (c *checker) record(n *node, offset int64) {
	r := n.disk.log.at(offset)
	at := place{r.epoch, offset}
	if h, ok := c.seen[at]; ok && h != r.hash {
		fail("%s has other bytes at offset %d of epoch %d than another copy", n.name, offset, r.epoch)
	}
	c.seen[at] = r.hash
}

// hash is that of the ledger below end.
func (c *checker) hash(end int64) uint64 {
	if end == 0 {
		return 0
	}
	return c.ledger[end-1].hash
}

// holds tells whether a log, up to end, has the first n of what is committed.
func (c *checker) holds(log *plog, end, n int64) bool {
	return end >= n && (n < log.base.start || log.hashAt(n) == c.hash(n))
}

// leads: a leader begins with everything that was committed under earlier epochs.
// (One that sees late that it was elected may begin when a later one has
// committed more; it commits nothing.)
func (c *checker) leads(n *node) {
	need := int64(0)
	for _, r := range c.reach {
		if r.of < uint64(n.lead.Epoch()) {
			need = r.value
		}
	}
	if !c.holds(&n.disk.log, n.disk.synced, need) {
		fail("%s leads epoch %d with a log that ends at %d and lacks a committed record (%d are)",
			n.name, n.lead.Epoch(), n.disk.synced, need)
	}
}

// commit takes what a leader counts as committed.
func (c *checker) commit(n *node, hwm int64) {
	if hwm > n.disk.synced {
		fail("%s: high watermark %d above the synced end %d", n.name, hwm, n.disk.synced)
	}
	if hwm <= int64(len(c.ledger)) {
		return
	}
	epoch := n.lead.Epoch()
	if who, ok := c.committer[epoch]; ok && who != n.boot {
		fail("%s commits under epoch %d, and so did another leader", n.name, epoch)
	}
	c.committer[epoch] = n.boot
	if _, ok := c.committed[epoch]; !ok {
		c.committed[epoch] = n.w.now
	}
	log := &n.disk.log
	if have := int64(len(c.ledger)); log.hashAt(have) != c.hash(have) {
		fail("%s commits up to %d under epoch %d over other records than were committed", n.name, hwm, epoch)
	}
	for at := int64(len(c.ledger)); at < hwm; at++ {
		r := log.at(at)
		if r.client != control {
			if r.seq != c.numbers[r.client]+1 {
				fail("%s commits number %d of client %d at %d after %d", n.name, r.seq, r.client, at, c.numbers[r.client])
			}
			c.numbers[r.client] = r.seq
		}
		c.ledger = append(c.ledger, r)
	}
	c.reached(epoch, hwm)
	n.w.stats.Committed = len(c.ledger)
	if n.w.tracing {
		n.note("commits up to %d", hwm)
	}
}

// reached: once an epoch has committed, no earlier one does.
func (c *checker) reached(epoch topic.Epoch, hwm int64) {
	last := len(c.reach) - 1
	switch {
	case last >= 0 && c.reach[last].of > uint64(epoch):
		fail("epoch %d commits up to %d after epoch %d has", epoch, hwm, c.reach[last].of)
	case last >= 0 && c.reach[last].of == uint64(epoch):
		c.reach[last].value = hwm
	default:
		c.reach = append(c.reach, mark{uint64(epoch), hwm})
	}
}

// acknowledged: an answered record is committed.
func (c *checker) acknowledged(n *node, client int8, seq int32) {
	if c.numbers[client] < seq {
		fail("%s answers number %d of client %d, committed are %d", n.name, seq, client, c.numbers[client])
	}
}

// heard keeps the longest time that a fetch was under way.
func (c *checker) heard(n *node, took int64) {
	m := &c.slowest[n.index]
	if id := n.boot<<32 | uint64(n.lead.Epoch()); m.of != id {
		*m = mark{of: id}
	}
	m.value = max(m.value, took)
}

// served: a leader that serves was not replaced longer ago than its lease and the
// slowest fetch.
func (c *checker) served(n *node) {
	epoch := n.lead.Epoch()
	for later, at := range c.committed {
		if ago := n.w.now - at; later > epoch && ago >= quorum.LeaseMS+c.slowest[n.index].value {
			fail("%s serves under epoch %d, and epoch %d has committed %d ms ago", n.name, epoch, later, ago)
		}
	}
}

// all looks at every copy.
func (c *checker) all(w *world) {
	for _, n := range w.nodes {
		c.copy(n)
	}
	c.everyMajority(w)
}

func (c *checker) copy(n *node) {
	hwm := n.hwm()
	if n.up {
		if m := &c.lifeHWM[n.index]; m.of == n.boot && hwm < m.value {
			fail("%s: high watermark falls from %d to %d", n.name, m.value, hwm)
		}
		c.lifeHWM[n.index] = mark{n.boot, hwm}
		if hwm > n.disk.synced {
			fail("%s: high watermark %d above the synced end %d", n.name, hwm, n.disk.synced)
		}
		if hwm > int64(len(c.ledger)) {
			fail("%s: high watermark %d, and %d records are committed", n.name, hwm, len(c.ledger))
		}
		if hwm >= n.disk.log.base.start && n.disk.log.hashAt(hwm) != c.hash(hwm) {
			fail("%s has other records below its high watermark %d than were committed", n.name, hwm)
		}
	}
	stored := mark{uint64(n.disk.copy), n.disk.hwm}
	if m := c.storedHWM[n.index]; m.of == stored.of && stored.value < m.value {
		fail("%s: stored high watermark falls from %d to %d", n.name, m.value, stored.value)
	}
	c.storedHWM[n.index] = stored
}

type ranked struct {
	epoch topic.Epoch
	end   int64
	whole bool
}

// everyMajority: whichever majority answers an election now, the log that wins
// holds everything committed. Of the copies in order of what they would answer,
// the best of any majority is one of the upper ones.
func (c *checker) everyMajority(w *world) {
	set := w.meta.now().set.Replicas
	c.ends = c.ends[:0]
	for _, r := range set {
		if n := w.node(r.Node); n.whole(r) {
			log := &n.disk.log
			c.ends = append(c.ends, ranked{quorum.EpochAt(log.history, n.disk.synced), n.disk.synced, c.holds(log, n.disk.synced, int64(len(c.ledger)))})
		}
	}
	slices.SortFunc(c.ends, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.end, b.end))
	})
	for i := quorum.Majority(len(set)) - 1; i < len(c.ends); i++ {
		if !c.ends[i].whole {
			fail("a majority could elect a log of epoch %d that ends at %d and lacks a committed record (%d are)",
				c.ends[i].epoch, c.ends[i].end, len(c.ledger))
		}
	}
}
