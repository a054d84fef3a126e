package lives

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// confirmHeld asks about lives whose records are held, and discards what is gone.
func (r *dispatchRun) confirmHeld(ctx context.Context) {
	r.g.mu.Lock()
	defer r.g.mu.Unlock()
	if r.asking || r.g.w.cfg.bug != discardOnAbsence && !r.g.rep.current() {
		return
	}
	lives := r.m.Held(r.now(), metaapi.MaxQuestions)
	if len(lives) == 0 {
		return
	}
	ids := make([]topic.Incarnation, len(lives))
	for i, l := range lives {
		ids[i] = l.Incarnation
	}
	r.asking = true
	r.work.Go(func() {
		verdicts, err := r.g.w.confirm(r.g.rep, true)(ctx, ids)
		pause(ctx, time.Duration(r.g.w.cfg.fate(r.life, uint64(r.now()))%2000)*time.Millisecond)
		r.g.mu.Lock()
		defer r.g.mu.Unlock()
		r.asking = false
		for _, l := range lives {
			if err == nil && ctx.Err() == nil && verdicts[l.Incarnation] == metaapi.VerdictGone {
				r.discardLocked(ctx, l)
			}
		}
		if r.g.w.cfg.bug == discardByName && err == nil && ctx.Err() == nil {
			r.discardNamesLocked(ctx, lives, verdicts)
		}
	})
}

func (r *dispatchRun) discardLocked(ctx context.Context, l dispatchq.Life) {
	for _, d := range r.m.Discard(l) {
		for _, it := range d.Items {
			r.giveUpLocked(int(it.Pos.Segment))
		}
		if d.Parked {
			r.work.Go(func() { r.removeParked(ctx, d.Key) })
		}
	}
}

// removeParked removes a parked log, unless a kill comes first.
func (r *dispatchRun) removeParked(ctx context.Context, key dispatchq.Key) {
	pause(ctx, 20*time.Millisecond)
	if ctx.Err() != nil {
		return
	}
	r.g.mu.Lock()
	for _, i := range r.g.parked[key] {
		r.giveUpLocked(i)
	}
	r.g.parked[key], r.loaded[key] = nil, 0
	r.m.Removed(key)
	r.g.mu.Unlock()
	r.wake()
}

// giveUpLocked is the end of one record that will never be delivered.
func (r *dispatchRun) giveUpLocked(i int) {
	w, a := r.g.w, &r.g.log[i]
	if r.given[i] || a.done {
		w.violate("%s: record %s was discarded after it was done", r.g.id, a.rec)
	}
	a.done, r.given[i] = true, true
	if w.leader.live(a.key.Incarnation) {
		w.violate("%s: record %s of the live life %s was discarded", r.g.id, a.rec, a.key.Incarnation)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sum.discarded++
}

// leaveBehind has a gateway whose replica lags accept records for a life that has
// ended, and then, when it sees the next one, records for that.
func (w *world) leaveBehind(g *gateway, name string, s step) {
	w.create(name, s.c>>5) // if there is none
	g.rep.catchUp(1000)
	g.rep.hold(true)
	w.remove(name, s.c)
	w.create(name, s.c>>3)
	for _, m := range w.machines {
		m.rep.catchUp(1000)
	}
	for i := range 1 + s.c%3 {
		g.produce(name, s.c>>4+i)
	}
	w.settleDown(s)
	if s.a%2 == 0 {
		g.kill()
		g.start(int(s.c % 8))
	}
	g.rep.hold(false)
	g.rep.catchUp(1000)
	for i := range 1 + s.c%3 {
		g.produce(name, s.c>>4+i)
	}
}

// goOnBehindHeld looks, while nobody confirms anything to gateways, that what they hold
// of ended lives holds up nothing of those that live.
func (w *world) goOnBehindHeld() {
	w.noConfirms.Store(true)
	defer w.noConfirms.Store(false)
	for i, g := range w.gateways { // with names of their own: what the run made of the others is judged later
		w.leaveBehind(g, nameOf(w.cfg.names+i), step{a: 1, c: uint32(w.cfg.fate(uint64(i)))})
	}
	w.awaitPending(func(a accepted) bool { return w.leader.live(a.key.Incarnation) })
	for _, g := range w.gateways {
		held := 0
		for _, a := range g.pending() {
			if held++; w.leader.live(a.key.Incarnation) {
				w.violate("%s: record %s of the live life of %s waits behind what is held", g.id, a.rec, a.key.Topic)
			}
		}
		if held > 0 {
			w.sum.passed++
		}
	}
}

// discardNamesLocked is the mistake of a gateway that takes an end for that of the name.
func (r *dispatchRun) discardNamesLocked(ctx context.Context, lives []dispatchq.Life, verdicts map[topic.Incarnation]metaapi.Verdict) {
	r.over = map[string]bool{}
	for _, l := range lives {
		r.over[l.Topic] = verdicts[l.Incarnation] == metaapi.VerdictGone
	}
	r.m.ViewChanged()
	for _, a := range r.g.log {
		if r.over[a.key.Topic] && !a.done {
			r.discardLocked(ctx, dispatchq.Life{Topic: a.key.Topic, Incarnation: a.key.Incarnation})
		}
	}
	r.over = nil
	r.m.ViewChanged()
}

// heldLocked is for the mistake of a gateway that sends nothing of a life while it
// has records of another one that had the name.
func (r *dispatchRun) heldLocked(name string, id topic.Incarnation) bool {
	for _, a := range r.g.log {
		if a.key.Topic == name && a.key.Incarnation != id && !a.done {
			return true
		}
	}
	return false
}
