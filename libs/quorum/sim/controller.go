package sim

import (
	"errors"
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// controller is what the Raft leader remembers; another one remembers nothing.
type controller struct {
	epoch   topic.Epoch // of the election under way; 0: none
	version uint64
	wanted  quorum.Replica
	answers []quorum.FenceAnswer
	vouch   quorum.Vouch
	stuck   bool // only a damaged copy is known to have everything
}

// served tells whether the leader of the metastore leads.
func (w *world) served() bool {
	s := w.meta.now()
	n := w.node(s.lead.Leader)
	return n != nil && n.up && n.lead != nil && n.lead.Epoch() == s.lead.Epoch
}

// startElection begins an election when nobody leads.
func (w *world) startElection() bool {
	l := w.node(w.meta.now().lead.Leader)
	switch {
	case w.served():
		return false
	case l != nil && !l.up:
		if !w.draw.one(4) {
			return false
		}
	case (l != nil || w.electing()) && !w.draw.one(40):
		return false // the election, or the elected, gets some time
	}
	w.begin(quorum.Replica{})
	return true
}

// electing tells whether the controller has begun an election that may still end.
func (w *world) electing() bool {
	c, s := &w.control, w.meta.now()
	return c.epoch != 0 && s.lead.Epoch == c.epoch && s.lead.Leader == "" && s.set.Version == c.version
}

// hurryElection begins one although the leader leads.
func (w *world) hurryElection() bool {
	if !w.served() && !w.draw.one(10) {
		return false
	}
	w.begin(quorum.Replica{})
	return true
}

func (w *world) begin(wanted quorum.Replica) {
	if s := w.meta.now(); s.lead.Leader != "" || s.lead.Epoch == 0 || w.draw.one(2) {
		w.noLeader()
	}
	s := w.meta.now()
	w.control = controller{epoch: s.lead.Epoch, version: s.set.Version, wanted: wanted, vouch: w.control.vouch}
	if w.tracing {
		w.note("controller begins the election of epoch %d, version %d", s.lead.Epoch, s.set.Version)
	}
}

// sendFences asks replicas that have not answered for the promise.
func (w *world) sendFences() bool {
	s := w.meta.now()
	if !w.electing() {
		return false
	}
	sent := false
	for _, r := range s.set.Replicas {
		answered := slices.ContainsFunc(w.control.answers, func(a quorum.FenceAnswer) bool {
			return a.Replica == r && a.Epoch == w.control.epoch
		})
		if !answered && !w.draw.one(3) {
			w.send(message{kind: fenceAsked, to: r.Node, epoch: w.control.epoch})
			sent = true
		}
	}
	return sent
}

// choose ends an election when a majority has answered.
func (w *world) choose() bool {
	c, s := &w.control, w.meta.now()
	if !w.electing() {
		return false
	}
	set := s.set.Replicas
	if w.bug == ElectWithoutMajority {
		set = slices.DeleteFunc(slices.Clone(set), func(r quorum.Replica) bool {
			return !slices.ContainsFunc(c.answers, func(a quorum.FenceAnswer) bool { return a.Replica == r })
		})
		if len(set) == 0 {
			return false
		}
	}
	answers := c.answers
	if w.bug == DamagedEndIgnored {
		answers = endsIgnored(answers)
	}
	out, err := quorum.Elect(c.epoch, answers, set, c.wanted)
	c.stuck = errors.Is(err, quorum.ErrOnlyDamaged)
	if err != nil {
		return false
	}
	w.elect(c.epoch, c.version, out.Leader.Node)
	if w.tracing {
		w.note("controller elects %s for epoch %d", out.Leader, c.epoch)
	}
	return true
}

// forget is another controller.
func (w *world) forget() bool {
	w.control = controller{}
	return true
}

// askVouch asks the leader about changes.
func (w *world) askVouch() bool {
	leader := w.meta.now().lead.Leader
	if leader == "" {
		return false
	}
	w.send(message{kind: vouchAsked, to: leader})
	return true
}

// handOver stops the leader's appends until some replica has everything, and has
// that one elected.
func (w *world) handOver() bool {
	n := w.node(w.meta.now().lead.Leader)
	if n == nil || n.lead == nil {
		return false
	}
	for _, r := range w.meta.now().set.Replicas {
		if n.paused && r != n.self() && n.lead.HasAll(r) {
			w.begin(r)
			return true
		}
	}
	n.paused = !n.paused
	return true
}

// observe makes a node an observer, or no longer one.
func (w *world) observe() bool {
	s := *w.meta.now()
	name := w.nodes[w.draw.n(len(w.nodes))].name
	if i := slices.Index(s.observers, name); i >= 0 {
		s.observers = slices.Delete(slices.Clone(s.observers), i, i+1)
	} else if _, ok := s.recorded(name); !ok {
		s.observers = append(slices.Clone(s.observers), name)
	} else {
		return false
	}
	s.set.Version++ // the same replicas: the last change may still be taken back
	w.meta.propose(s)
	return true
}

// change tries a change of the replica set.
func (w *world) change() bool {
	s, v := w.meta.now(), w.control.vouch
	set := s.set.Replicas
	var to []quorum.Replica
	switch k := w.draw.n(6); {
	case k == 0 && s.set.Before != nil:
		to = s.set.Before
	case k <= 3 && len(v.Readmissible) > 0:
		to = readmitted(set, v.Readmissible[w.draw.n(len(v.Readmissible))])
	case k == 4 && len(set) > 1:
		i := w.draw.n(len(set))
		to = slices.Delete(slices.Clone(set), i, i+1)
	case len(v.Near) > 0 && len(set) < 5:
		to = append(slices.Clone(set), v.Near[w.draw.n(len(v.Near))])
	}
	if to == nil || !w.survives(to, nil) {
		return false
	}
	return w.changeTo(to)
}

func (w *world) changeTo(to []quorum.Replica) bool {
	s := *w.meta.now()
	set, err := quorum.NextSet(s.set, s.lead, to, w.control.vouch)
	if err != nil {
		return false
	}
	w.added(&s.set, to)
	if w.bug == TwoChangesAtOnce {
		set.Replicas = w.another(set.Replicas)
	}
	s.set = set
	w.meta.propose(s)
	w.stats.Changes++
	if w.tracing {
		w.note("controller changes the replicas to version %d: %v", set.Version, set.Replicas)
	}
	return true
}

// added checks that a node gets a replica more only by the word of a leader of that set
// that it is near and that the last change is settled.
func (w *world) added(now *quorum.Set, to []quorum.Replica) {
	v := &w.control.vouch
	for _, r := range to {
		known := slices.ContainsFunc(now.Replicas, func(o quorum.Replica) bool { return o.Node == r.Node })
		if !known && (!v.Settled || v.Version != now.Version || !slices.Contains(v.Near, r)) {
			fail("%s becomes a replica of version %d without a word: %+v", r, now.Version+1, *v)
		}
	}
}

func readmitted(set []quorum.Replica, r quorum.Replica) []quorum.Replica {
	to := slices.Clone(set)
	for i := range to {
		if to[i].Node == r.Node {
			to[i] = r
		}
	}
	return to
}

// another is the mistake of a second change in the same entry.
func (w *world) another(to []quorum.Replica) []quorum.Replica {
	for _, r := range w.control.vouch.Near {
		if !slices.ContainsFunc(to, func(t quorum.Replica) bool { return t.Node == r.Node }) {
			return append(slices.Clone(to), r)
		}
	}
	for i, r := range to {
		if r.Node != w.meta.now().lead.Leader && len(to) > 1 {
			return slices.Delete(slices.Clone(to), i, i+1)
		}
	}
	return to
}

// mend is the controller without faults.
func (w *world) mend() {
	s := w.meta.now()
	switch {
	case w.control.stuck && w.outlives(&s.set, nil), !w.alive(s.set.Replicas) && earlier(&s.set) != nil:
		w.control.stuck = false
		w.changeTo(earlier(&s.set))
		return
	case w.control.stuck && len(s.set.Replicas) == 2: // an operator has the file mended
		w.control = controller{}
		for _, r := range s.set.Replicas {
			w.node(r.Node).disk.damaged = false
		}
		return
	case !w.served():
		if !w.electing() {
			w.begin(quorum.Replica{})
		}
		w.sendFences()
		w.choose()
		return
	}
	w.askVouch()
	w.readmit()
}

// readmit re-admits what the leader last vouched for.
func (w *world) readmit() {
	for _, r := range w.control.vouch.Readmissible {
		w.changeTo(readmitted(w.meta.now().set.Replicas, r))
	}
}
