package lives

import (
	"math/rand/v2"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// power starts and ends storage nodes.
func (w *world) power(m *machine, s step) {
	defer w.setProc(m)
	rng := rand.New(rand.NewPCG(w.cfg.seed, uint64(s.a)<<32|uint64(s.c)))
	switch {
	case s.kind == start && m.proc == nil:
		w.restart(m, s)
	case m.proc == nil, s.kind == start:
	case s.kind == kill:
		w.sum.kills++
		m.kill(s.a%2 == 0, rng)
	case s.kind == stop:
		m.stop()
	case s.kind == armKill:
		if s.a%2 == 0 {
			rng = nil
		}
		m.proc.disk.arm(1+int(s.c%12), rng)
	}
}

// restart brings a node back, half of the time with an old snapshot of the metastore.
func (w *world) restart(m *machine, s step) {
	m.rep.begin(0, false)
	if s.a%2 == 0 {
		w.goBack(m.rep, s)
	}
	m.start()
}

// goBack restores an old snapshot of a replica, of a process that is down.
func (w *world) goBack(r *replica, s step) {
	w.sum.restores++
	n := w.leader.applied()
	r.restore(n - int(s.c>>8)%min(n, 12))
	r.hold(s.a%4 == 0)
	r.begin(0, w.cfg.deceived)
}

// outage is the figure of the lifecycle page: a node is down while a name is deleted
// and created again, and comes back; a sweep is under way then.
func (w *world) outage(m *machine, name string, s step) {
	if m.proc != nil {
		w.sum.kills++
		m.kill(s.a%2 == 0, nil)
		w.setProc(m)
	}
	w.remove(name, s.c)
	w.create(name, s.c>>3)
	w.restart(m, s)
	w.setProc(m)
	if s.b%4 > 0 {
		w.sweep(true)
	}
}

func (w *world) replicas() []*replica {
	var out []*replica
	for _, m := range w.machines {
		out = append(out, m.rep)
	}
	for _, g := range w.gateways {
		out = append(out, g.rep)
	}
	return out
}

func (w *world) hold(s step) {
	all := w.replicas()
	r := all[int(s.a)%len(all)]
	if s.b%2 == 0 {
		r = w.gateways[int(s.a)%len(w.gateways)].rep
	}
	switch s.kind {
	case holdBack:
		r.hold(true)
	case install:
		r.install()
	default:
		for _, r := range all {
			r.hold(false)
			if s.b%2 == 0 {
				r.catchUp(1 + int(s.c%3)) // a part, before the rest
			}
		}
	}
}

// tell brings a purge late, or one that nobody sent.
func (w *world) tell(m *machine, name string, s step) {
	if m.proc == nil {
		return
	}
	if s.kind == purge {
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.ended); n > 0 {
			l := w.ended[n-1-int(s.a)%min(n, 3)]
			m.proc.role.Purge(l.name, l.id)
		}
		return
	}
	id := topic.Incarnation(s.c)
	if t := w.leader.topic(name); t != nil && s.c%4 != 0 {
		id = t.Incarnation
	}
	m.proc.role.Purge(name, id)
}

// hour lets every replica catch up and ends grow old: no replica lags for an hour.
func (w *world) hour() {
	for _, r := range w.replicas() {
		r.hold(false)
		r.catchUp(1000)
	}
	w.pass(61 * time.Minute)
	for _, g := range w.gateways { // a real one is synced within 250 ms, so nothing of a forgotten life is read again; a copy that old is not restored
		g.outgrow()
	}
}
