package lives

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
)

// accepted is one record in a gateway's WAL.
type accepted struct {
	key    dispatchq.Key
	wal    topic.ID64
	seq    uint64
	rec    *rec
	parked bool // and so done for the WAL
	done   bool // committed or discarded
}

// volume is what a gateway's disk holds.
type volume struct {
	log        []accepted
	checkpoint int                     // no start reads below it
	parked     map[dispatchq.Key][]int // indices of log, oldest first
	queues     []dispatchq.Key         // of parked, in order of first use
}

func (v *volume) clone() volume {
	c := volume{log: slices.Clone(v.log), checkpoint: v.checkpoint, parked: maps.Clone(v.parked), queues: slices.Clone(v.queues)}
	for k, list := range c.parked {
		c.parked[k] = slices.Clone(list)
	}
	return c
}

// dispatch is the gateways' settings: in some runs what is stuck for a while is parked.
func (c config) dispatch() dispatchq.Config {
	d := dispatchq.DefaultConfig()
	d.ParkAfter = 1000 * time.Hour
	if c.parks {
		d.ParkAfter, d.ReparkAfter, d.LoadItems = 2*time.Second, time.Second, 3
	}
	return d
}

// recoverLocked reads the parked logs, and the WAL from a checkpoint that may be older
// than what was done.
func (r *dispatchRun) recoverLocked(back int) {
	g := r.g
	for _, k := range g.queues {
		last := map[topic.ID64]uint64{}
		for _, i := range g.parked[k] {
			last[g.log[i].wal] = max(last[g.log[i].wal], g.log[i].seq)
		}
		if n := len(g.parked[k]); n > 0 {
			r.m.AddParked(r.now(), k, int64(n), last)
		}
	}
	from := slices.IndexFunc(g.log, func(a accepted) bool { return !a.done && !a.parked })
	if from < 0 {
		from = len(g.log)
	}
	for i := max(g.checkpoint, from-back); i < len(g.log); i++ {
		g.log[i].done, g.log[i].parked = false, false
		r.addLocked(i)
	}
}

func (r *dispatchRun) addLocked(i int) {
	a := &r.g.log[i]
	if r.m.Add(r.now(), a.key, a.item(i)) {
		return
	}
	a.parked = true
	a.done = !slices.Contains(r.g.parked[a.key], i) // it was committed from there
}

func (a *accepted) item(i int) dispatchq.Item {
	return dispatchq.Item{Pos: dispatchq.Pos{Segment: uint64(i)}, WAL: a.wal, Seq: a.seq, Size: 100}
}

// doneLocked takes a committed record off the WAL or off its parked log.
func (r *dispatchRun) doneLocked(it dispatchq.Item) {
	g, i := r.g, int(it.Pos.Segment)
	g.log[i].done = true
	g.w.mu.Lock()
	stored := g.log[i].rec.stored
	g.w.mu.Unlock()
	if !stored {
		g.w.violate("%s: record %s was dropped; its life lives: %t", g.id, g.log[i].rec, g.w.leader.live(g.log[i].key.Incarnation))
	}
	if !it.Parked {
		return
	}
	key := g.log[i].key
	if list := g.parked[key]; len(list) == 0 || list[0] != i {
		g.w.violate("%s: record %s was committed out of the order of its parked log", g.id, g.log[i].rec)
		return
	}
	g.parked[key] = g.parked[key][1:]
	r.loaded[key]--
}

// park appends to a parked log; a kill may come half-way.
func (r *dispatchRun) park(ctx context.Context, p dispatchq.Park) {
	g := r.g
	fate := g.w.cfg.fate(r.life, uint64(r.now()), uint64(p.Key.Incarnation))
	half := int(fate % uint64(len(p.Items)+1))
	write := func(items []dispatchq.Item) {
		if _, used := g.parked[p.Key]; !used {
			g.queues = append(g.queues, p.Key)
		}
		for _, it := range items {
			g.parked[p.Key] = append(g.parked[p.Key], int(it.Pos.Segment))
		}
	}
	g.mu.Lock()
	write(p.Items[:half])
	g.mu.Unlock()
	pause(ctx, time.Duration(fate>>8%100)*time.Millisecond)
	if ctx.Err() != nil {
		return
	}
	g.mu.Lock()
	write(p.Items[half:])
	for _, it := range p.Items {
		g.log[it.Pos.Segment].parked = true
	}
	r.m.Parked(r.now(), p.Key, len(p.Items))
	g.mu.Unlock()
	r.wake()
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.sum.parked += len(p.Items)
}

func (r *dispatchRun) load(ctx context.Context, l dispatchq.Load) {
	pause(ctx, 5*time.Millisecond)
	if ctx.Err() != nil {
		return
	}
	g := r.g
	g.mu.Lock()
	list := g.parked[l.Key][r.loaded[l.Key]:]
	list = list[:min(len(list), l.Most)]
	items := make([]dispatchq.Item, 0, len(list))
	for _, i := range list {
		items = append(items, g.log[i].item(i))
	}
	r.loaded[l.Key] += len(items)
	r.m.Loaded(r.now(), l.Key, items, 0)
	g.mu.Unlock()
	r.wake()
}

// copyVolume keeps what lies there now, for a restore.
func (g *gateway) copyVolume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.clone()
	g.copied = &c
}

// restoreVolume puts the copy in place, under a process that is down. Records that
// were accepted after it are lost with the volume, as far as they were not committed;
// what was done since comes again.
func (g *gateway) restoreVolume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	lost := g.log[len(g.copied.log):]
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	for i := range lost {
		lost[i].rec.lost = true
	}
	g.volume = g.copied.clone()
	g.w.sum.volumes++
}

// pending lists what is accepted and neither committed nor discarded.
func (g *gateway) pending() []accepted {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(g.log), func(a accepted) bool { return a.done })
}

// outgrow forgets that a start may read again what is done, and drops the copy.
func (g *gateway) outgrow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.copied = nil
	for g.checkpoint < len(g.log) && g.log[g.checkpoint].done {
		g.checkpoint++
	}
}
