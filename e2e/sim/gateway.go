package sim

import (
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
)

// walRecord is one durable record of the gateway's log.
type walRecord struct {
	key  dispatchq.Key
	wal  topic.ID64
	seq  uint64
	rec  int // ledger number
	done bool
}

// volume is what survives a crash of the gateway.
type volume struct {
	log        []walRecord
	checkpoint int // everything below it is done
	parked     map[dispatchq.Key][]walRecord
	parkedKeys []dispatchq.Key // in order of first use, so that a seed is a run
}

func (v *volume) clone() volume {
	c := volume{log: append([]walRecord(nil), v.log...), checkpoint: v.checkpoint, parked: map[dispatchq.Key][]walRecord{}}
	for k, l := range v.parked {
		c.parked[k] = append([]walRecord(nil), l...)
	}
	c.parkedKeys = append(c.parkedKeys, v.parkedKeys...)
	return c
}

// gateway is one process start of the gateway: the shell around the machine.
type gateway struct {
	s      *Sim
	life   int
	dead   bool
	vol    *volume
	wal    topic.ID64
	next   uint64
	read   int // log index that the machine has been given
	wakeAt time.Duration
	m      *dispatchq.Machine
	view   *view
	loaded map[dispatchq.Key]int // records of the parked log that the machine knows
}

func (s *Sim) startGateway(readFrom int) {
	g := &gateway{
		s: s, life: s.lives, vol: &s.vol, next: 1, read: readFrom, view: s.view,
		loaded: map[dispatchq.Key]int{},
	}
	s.lives++
	s.nextWAL++
	g.wal = s.nextWAL
	if s.cfg.Bug == NumberReuse {
		g.wal = 1
		for _, r := range g.vol.log {
			g.next = max(g.next, r.seq+1)
		}
	}
	s.view.latched = false
	s.clock.after(s.clock.between(0, 5*time.Second), func() { s.view.latched = true; s.view.change() })
	g.m = dispatchq.New(s.cfg.Machine, s.view)
	for _, id := range s.names {
		g.m.Suspect(s.clock.now, id, s.view.suspect[id])
	}
	for _, k := range g.vol.parkedKeys {
		last := map[topic.ID64]uint64{}
		for _, r := range g.vol.parked[k] {
			last[r.wal] = max(last[r.wal], r.seq)
		}
		if n := len(g.vol.parked[k]); n > 0 {
			g.m.AddParked(s.clock.now, k, int64(n), last)
		}
	}
	s.gw = g
	g.step()
}

// accept appends one record; acknowledged tells whether its client heard of it.
func (g *gateway) accept(key dispatchq.Key, acknowledged bool) {
	rec := g.s.ledger.accepted(acknowledged)
	g.vol.log = append(g.vol.log, walRecord{key: key, wal: g.wal, seq: g.next, rec: rec})
	g.next++
	g.step()
}

// step feeds the machine and does what it orders.
func (g *gateway) step() {
	if g.dead {
		return
	}
	now := g.s.clock.now
	for g.read < len(g.vol.log) && !g.m.Full() {
		r := g.vol.log[g.read]
		it := dispatchq.Item{Pos: dispatchq.Pos{Segment: uint64(g.read)}, WAL: r.wal, Seq: r.seq, Size: 100}
		if !g.m.Add(now, r.key, it) {
			g.vol.log[g.read].done = true
		}
		g.read++
	}
	orders, next := g.m.Step(now)
	if next > 0 && (g.wakeAt <= now || next < g.wakeAt) {
		g.wakeAt = next
		g.s.clock.after(next-now, g.step)
	}
	for _, b := range orders.Send {
		g.send(b)
	}
	for _, id := range orders.Abort { // the batch may arrive all the same, and its answer finds nobody
		g.s.clock.after(time.Millisecond, func() {
			if !g.dead {
				g.m.Answer(g.s.clock.now, id, dispatchq.Unknown)
				g.step()
			}
		})
	}
	for _, p := range orders.Probe {
		g.probe(p)
	}
	for _, p := range orders.Park {
		g.park(p)
	}
	for _, l := range orders.Load {
		g.load(l)
	}
}

// record finds what an item stands for: Segment is an index of the log, or for
// parked ones the ledger number.
func (g *gateway) record(it dispatchq.Item) int {
	if it.Parked {
		return int(it.Pos.Segment)
	}
	return g.vol.log[it.Pos.Segment].rec
}

func (g *gateway) send(b dispatchq.Batch) {
	s := g.s
	if s.cfg.Bug == Overtake && len(b.Items) > 1 && s.clock.chance(10) {
		late := b
		late.Items = b.Items[:1]
		b.Items = b.Items[1:]
		g.transmit(b, func(out dispatchq.Outcome) {
			if out == dispatchq.Committed {
				g.transmit(late, func(out dispatchq.Outcome) { g.answer(b.ID, out) })
				return
			}
			g.answer(b.ID, out)
		})
		return
	}
	g.transmit(b, func(out dispatchq.Outcome) { g.answer(b.ID, out) })
}

// transmit puts a batch on the network; the outcome comes exactly once.
func (g *gateway) transmit(b dispatchq.Batch, outcome func(dispatchq.Outcome)) {
	s := g.s
	recs := make([]int, len(b.Items))
	for i, it := range b.Items {
		recs[i] = g.record(it)
	}
	s.ledger.sent(g, b, recs)
	answered := false
	end := func(out dispatchq.Outcome) {
		if answered || g.dead {
			return
		}
		answered = true
		s.ledger.answered(g, b, recs, out)
		if out == dispatchq.Unknown && s.cfg.Bug == LostAnswerCalledRefused {
			out = dispatchq.Refused
		}
		outcome(out)
	}
	n := s.nodes[b.Target.Leader]
	delay := s.clock.between(0, 2*time.Millisecond)
	if !n.up && !n.hanging {
		s.clock.after(delay, func() { end(dispatchq.Refused) }) // could not connect
		return
	}
	if s.faulty() && s.clock.chance(30) {
		delay = s.clock.between(0, 20*time.Second) // a late batch
	}
	lost := s.faulty() && s.clock.chance(15)
	s.clock.after(delay, func() {
		n.commit(b, b.Key, recs, func(out dispatchq.Outcome) {
			if !lost {
				s.clock.after(s.clock.between(0, 2*time.Millisecond), func() { end(out) })
			}
		})
	})
	s.clock.after(s.clock.between(500*time.Millisecond, 10*time.Second), func() { end(dispatchq.Unknown) })
}

func (g *gateway) answer(id uint64, out dispatchq.Outcome) {
	for _, it := range g.m.Answer(g.s.clock.now, id, out) {
		g.done(it)
	}
	g.step()
}

func (g *gateway) probe(p dispatchq.Probe) {
	n := g.s.nodes[p.Target.Leader]
	serves := n.up && !n.hanging && (!n.refuses || g.s.clock.chance(3)) && p.Target.Epoch == n.epoch
	g.s.clock.after(g.s.clock.between(0, 50*time.Millisecond), func() {
		if !g.dead {
			g.m.Probed(g.s.clock.now, p.Key, serves)
			g.step()
		}
	})
}

// done moves the checkpoint, sooner or later.
func (g *gateway) done(it dispatchq.Item) {
	v := g.vol
	if it.Parked {
		for _, k := range v.parkedKeys {
			if l := v.parked[k]; len(l) > 0 && l[0].rec == int(it.Pos.Segment) && l[0].wal == it.WAL && l[0].seq == it.Seq {
				v.parked[k] = l[1:]
				g.loaded[k]--
				return
			}
		}
		panic("BUG: a parked record was committed out of order")
	}
	v.log[it.Pos.Segment].done = true
	if g.s.clock.chance(20) { // written now and then, as a real one is
		for v.checkpoint < len(v.log) && v.log[v.checkpoint].done {
			v.checkpoint++
		}
	}
}

func (g *gateway) park(p dispatchq.Park) {
	g.s.Parkings++
	if g.s.cfg.Bug == CopyBehind {
		for _, it := range p.Items {
			r := g.vol.log[it.Pos.Segment]
			g.vol.log[it.Pos.Segment].done = true
			g.vol.log = append(g.vol.log, r)
		}
		// It takes time, else what is copied is read, is stuck and is copied for ever.
		g.s.clock.after(time.Millisecond, func() {
			if !g.dead {
				g.m.Parked(g.s.clock.now, p.Key, len(p.Items))
				g.m.Loaded(g.s.clock.now, p.Key, nil, int64(len(p.Items))) // nothing lies in a parked log
				g.step()
			}
		})
		return
	}
	synced := g.s.clock.rng.IntN(len(p.Items) + 1) // what a crash on the way leaves
	write := func(items []dispatchq.Item) {
		if _, used := g.vol.parked[p.Key]; !used {
			g.vol.parkedKeys = append(g.vol.parkedKeys, p.Key)
			g.vol.parked[p.Key] = nil
		}
		for _, it := range items {
			g.vol.parked[p.Key] = append(g.vol.parked[p.Key], g.vol.log[it.Pos.Segment])
		}
	}
	d := g.s.clock.between(0, 100*time.Millisecond)
	g.s.clock.after(d/2, func() {
		if !g.dead {
			write(p.Items[:synced])
		}
	})
	g.s.clock.after(d, func() {
		if g.dead {
			return
		}
		write(p.Items[synced:])
		for _, it := range p.Items {
			g.vol.log[it.Pos.Segment].done = true
		}
		g.m.Parked(g.s.clock.now, p.Key, len(p.Items))
		g.step()
	})
}

func (g *gateway) load(l dispatchq.Load) {
	g.s.clock.after(g.s.clock.between(0, 10*time.Millisecond), func() {
		if g.dead {
			return
		}
		var items []dispatchq.Item
		list := g.vol.parked[l.Key]
		from := g.loaded[l.Key]
		n := min(len(list)-from, 1+g.s.clock.rng.IntN(20))
		for _, r := range list[from : from+n] {
			items = append(items, dispatchq.Item{Pos: dispatchq.Pos{Segment: uint64(r.rec)}, WAL: r.wal, Seq: r.seq, Size: 100})
		}
		g.loaded[l.Key] += n
		g.m.Loaded(g.s.clock.now, l.Key, items, 0)
		g.step()
	})
}
