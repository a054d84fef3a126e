package quorum

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/testkit/race"
	"github.com/narad-mq/narad/libs/topic"
)

// A second opinion, independent of package sim: every interleaving of three
// replicas with a few records and epochs, searched exhaustively. The decisions
// are the real ones (Leader, Elect, Diverging, TruncateTo); what surrounds them
// is the smallest model that has unsynced tails, crashes, late fetches, lost
// answers and leaders that do not know of their end. What makes no difference is
// left out: a follower's unsynced tail is an answer that did not arrive, a lost
// fence answer is an election by the others, and one fetch at a time is late.

const (
	searchLog    = 6 // longest log: the records and a leader change per epoch
	searchEpochs = 3 // array size: epochs 1 and 2
)

// spot is a replica.
type spot struct {
	log      [searchLog]int8 // epoch of each record: with the offset it tells the content
	end      int8
	synced   int8
	hwm      int8
	promised int8
	leads    int8    // epoch; 0: none
	ends     [3]int8 // a leader's: what the others fetched from
}

// asked is a fetch under way.
type asked struct {
	by           int8
	epoch        int8 // 0: there is none
	offset, last int8
}

// scene is a state of everything.
type scene struct {
	spots    [3]spot
	epoch    int8 // of the metastore
	leader   [searchEpochs]int8
	led      [searchEpochs]bool
	late     asked
	ledger   [searchLog]int8
	length   int8 // of the ledger
	appended int8
	crashes  int8
}

// search is a breadth-first search.
type search struct {
	records, epochs, crashes int8
	minority                 bool // the planted mistake: elections without a majority
	set                      []Replica
	seen                     map[scene]struct{}
	queue                    []scene
	broken                   string
}

// add takes a state up that was not seen, under its simplest form: a late fetch
// that can move nothing is dropped, and the two replicas that do not begin as
// leader are alike.
func (s *search) add(c scene) {
	if l := c.leader[c.late.epoch]; c.late.epoch > 0 && (c.spots[l].leads != c.late.epoch || c.late.offset <= c.spots[l].hwm) {
		c.late = asked{}
	}
	if d := c.swapped(); d.less(&c) {
		c = d
	}
	if _, ok := s.seen[c]; !ok {
		s.seen[c] = struct{}{}
		s.queue = append(s.queue, c)
	}
}

// swapped has replicas 1 and 2 change places.
func (c *scene) swapped() scene {
	other := [3]int8{0, 2, 1}
	d := *c
	d.spots[1], d.spots[2] = c.spots[2], c.spots[1]
	for i := range d.spots {
		e := &d.spots[i].ends
		e[1], e[2] = e[2], e[1]
	}
	for e, l := range d.leader {
		if l >= 0 {
			d.leader[e] = other[l]
		}
	}
	d.late.by = other[c.late.by]
	return d
}

// less orders a state and its swapped form.
func (c *scene) less(d *scene) bool {
	a, b := &c.spots[1], &d.spots[1]
	x := [...]int8{a.end, a.synced, a.hwm, a.promised, a.leads, a.ends[0], c.spots[0].ends[1], c.leader[1], c.leader[2], c.late.by}
	y := [...]int8{b.end, b.synced, b.hwm, b.promised, b.leads, b.ends[0], d.spots[0].ends[1], d.leader[1], d.leader[2], d.late.by}
	return cmp.Or(slices.Compare(a.log[:], b.log[:]), slices.Compare(x[:], y[:])) < 0
}

func (s *search) fail(format string, args ...any) { s.broken = fmt.Sprintf(format, args...) }

func (s *search) run() {
	first := scene{epoch: 1}
	for i := range first.leader {
		first.leader[i] = -1
	}
	first.leader[1] = 0 // which one does not matter
	for i := range first.spots {
		first.spots[i].promised = 1
	}
	s.add(first)
	for len(s.queue) > 0 && s.broken == "" {
		c := s.queue[0]
		s.queue = s.queue[1:]
		s.next(&c)
	}
}

// next adds every state that one step leads to.
func (s *search) next(c *scene) {
	if c.epoch < s.epochs {
		d := *c
		d.epoch = c.epoch + 1
		s.add(d)
	}
	s.elect(*c)
	for i := range int8(3) {
		s.promise(*c, i)
		s.lead(*c, i)
		s.write(*c, i)
		s.fetch(*c, i)
	}
	if d := *c; d.late.epoch > 0 {
		d.late = asked{}
		s.deliver(&d, c.late)
	}
}

func (p *spot) history() []EpochStart {
	var h []EpochStart
	for i := range p.end {
		if e := topic.Epoch(p.log[i]); len(h) == 0 || h[len(h)-1].Epoch < e {
			h = append(h, EpochStart{e, int64(i)})
		}
	}
	return h
}

func (p *spot) lastEpoch(end int8) int8 {
	if end == 0 {
		return 0
	}
	return p.log[end-1]
}

func (p *spot) cut(to int8) {
	for i := to; i < p.end; i++ {
		p.log[i] = 0
	}
	p.end, p.synced = to, min(to, p.synced)
}

// promise: durable, and answered with what is synced.
func (s *search) promise(c scene, i int8) {
	p := &c.spots[i]
	if p.promised >= c.epoch || c.leader[c.epoch] >= 0 {
		return
	}
	p.promised, p.leads, p.ends = c.epoch, 0, [3]int8{}
	s.add(c)
}

// elect by the answers of any of those that have promised.
func (s *search) elect(c scene) {
	if c.leader[c.epoch] >= 0 {
		return
	}
	for some := 1; some < 8; some++ {
		var answers []FenceAnswer
		var set []Replica
		for i := range c.spots {
			if p := &c.spots[i]; some>>i&1 == 1 && p.promised == c.epoch {
				answers = append(answers, answer(s.set[i], 2, topic.Epoch(p.lastEpoch(p.synced)), int64(p.synced)))
				set = append(set, s.set[i])
			}
		}
		if !s.minority {
			set = s.set
		}
		if len(answers) > 0 {
			s.choose(c, answers, set)
		}
	}
}

// choose whoever of equals.
func (s *search) choose(c scene, answers []FenceAnswer, set []Replica) {
	for i, wanted := range s.set {
		if out, err := Elect(2, answers, set, wanted); err == nil && out.Leader == wanted {
			c.leader[c.epoch] = int8(i)
			s.add(c)
		}
	}
}

func (s *search) lead(c scene, i int8) {
	p := &c.spots[i]
	e := p.promised
	if c.leader[e] != i || c.led[e] || p.end == searchLog || p.lastEpoch(p.end) >= e {
		return // the last: it has followed a newer leader meanwhile
	}
	c.led[e] = true
	p.synced, p.leads = p.end, e
	if e == c.epoch && (p.end < c.length || p.log != prefixed(p.log, c.ledger, c.length)) {
		s.fail("%d leads epoch %d with %v and lacks some of %v", i, e, p.log[:p.end], c.ledger[:c.length])
	}
	p.log[p.end] = e // the leader change
	p.end++
	s.add(c)
}

// prefixed is log with the first n records of ledger.
func prefixed(log, ledger [searchLog]int8, n int8) [searchLog]int8 {
	copy(log[:n], ledger[:n])
	return log
}

// write: an append, a sync, a crash that takes what is not synced.
func (s *search) write(c scene, i int8) {
	p := c.spots[i]
	if p.leads > 0 && c.appended < s.records && p.end < searchLog {
		d := c
		q := &d.spots[i]
		q.log[q.end] = q.leads
		q.end++
		d.appended++
		s.add(d)
	}
	if p.synced < p.end && p.leads > 0 {
		d := c
		d.spots[i].synced = p.end
		s.commit(&d, i)
		s.add(d)
	}
	if c.crashes < s.crashes && (p.leads > 0 || p.synced < p.end) {
		d := c
		d.crashes++
		q := &d.spots[i]
		q.cut(p.synced)
		q.leads, q.ends = 0, [3]int8{}
		s.add(d)
	}
}

// fetch sends one under any epoch that the copy may still follow; it arrives at
// once or late, and its answer arrives or does not.
func (s *search) fetch(c scene, i int8) {
	p := &c.spots[i]
	for e := max(p.promised, p.lastEpoch(p.end), 1); e <= c.epoch; e++ {
		if l := c.leader[e]; l >= 0 && l != i && p.leads == 0 {
			d := c
			d.spots[i].synced = p.end
			a := asked{i, e, p.end, p.lastEpoch(p.end)}
			if d.late.epoch == 0 {
				d.late = a
				s.add(d)
				d.late = asked{}
			}
			s.deliver(&d, a)
			if a.epoch == d.spots[l].leads {
				s.answer(&d, i, l, a)
				s.add(d)
			}
		}
	}
}

// deliver has a fetch arrive; its answer does not.
func (s *search) deliver(c *scene, a asked) {
	k := c.leader[a.epoch]
	l := &c.spots[k]
	if l.leads == a.epoch {
		if _, _, diverged := Diverging(l.history(), int64(l.end), topic.Epoch(a.last), int64(a.offset)); !diverged {
			l.ends[a.by] = a.offset
			s.commit(c, k)
		}
	}
	s.add(*c)
}

// answer has follower i take what the leader k says at once. (A late answer is
// about a position: to one that still holds, the next fetch brings the same.)
func (s *search) answer(c *scene, i, k int8, a asked) {
	p, l := &c.spots[i], &c.spots[k]
	toEpoch, toEnd, diverged := Diverging(l.history(), int64(l.end), topic.Epoch(a.last), int64(a.offset))
	if diverged {
		to := TruncateTo(p.history(), int64(p.end), toEpoch, toEnd)
		if int8(to) < p.hwm || int8(to) >= p.end {
			s.fail("%d is told to cut %v at %d, high watermark %d", i, p.log[:p.end], to, p.hwm)
		}
		p.cut(int8(to))
		return
	}
	p.hwm = max(p.hwm, min(l.hwm, p.synced))
	if p.end < l.end {
		p.log[p.end] = l.log[p.end]
		p.end++
		p.synced = p.end
	}
}

// commit lets the real leader count.
func (s *search) commit(c *scene, i int8) {
	p := &c.spots[i]
	if p.leads == 0 {
		return
	}
	start := int8(0)
	for p.log[start] != p.leads {
		start++
	}
	l, err := BecomeLeader(s.set[i], s.set, topic.Epoch(p.leads), Log{LEO: int64(start), HWM: int64(min(p.hwm, start))})
	if err != nil {
		s.fail("lead: %v", err)
		return
	}
	l.Appended(int64(p.end))
	l.Synced(int64(p.synced))
	for j, end := range p.ends {
		if int8(j) != i {
			if _, err := l.Fetched(s.set[j], topic.Epoch(p.leads), int64(end)); err != nil {
				s.fail("fetched: %v", err)
			}
		}
	}
	p.hwm = max(p.hwm, int8(l.HWM()))
	same := min(p.hwm, c.length)
	if prefixed(p.log, c.ledger, same) != p.log {
		s.fail("%d commits %v under epoch %d over %v", i, p.log[:p.hwm], p.leads, c.ledger[:c.length])
	}
	if p.hwm > c.length {
		copy(c.ledger[:p.hwm], p.log[:p.hwm])
		c.length = p.hwm
	}
}

func TestExhaustiveSearch(t *testing.T) {
	for _, s := range []search{{records: 3, epochs: 2}, {records: 2, epochs: 2, crashes: 1}} {
		if race.Enabled {
			s.records = 1
		}
		s.set, s.seen = replicas(3), map[scene]struct{}{}
		s.run()
		t.Logf("%d records, %d epochs, %d crashes: %d states", s.records, s.epochs, s.crashes, len(s.seen))
		if s.broken != "" {
			t.Fatal(s.broken)
		}
	}
}

// The search can fail: it finds what an election without a majority loses.
func TestExhaustiveSearchFindsAMistake(t *testing.T) {
	s := search{records: 1, epochs: 2, crashes: 0, minority: true, set: replicas(3), seen: map[scene]struct{}{}}
	s.run()
	if s.broken == "" {
		t.Fatalf("nothing found in %d states", len(s.seen))
	}
	t.Logf("%d states: %s", len(s.seen), s.broken)
}
