package sim

import (
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
)

// view is the gateway's metadata replica: right, but late.
type view struct {
	s       *Sim
	latched bool
	alive   map[string]bool
	epoch   map[string]topic.Epoch
	route   *dispatchq.Route
	suspect map[string]bool // what gossip says: right or wrong, at any time
}

var unlatched = &dispatchq.Route{State: dispatchq.Unavailable}

func newView(s *Sim) *view {
	v := &view{s: s, alive: map[string]bool{}, epoch: map[string]topic.Epoch{}, suspect: map[string]bool{}}
	for _, id := range s.names {
		v.alive[id], v.epoch[id] = true, 1
	}
	v.rebuild()
	return v
}

// Route implements dispatchq.World.
func (v *view) Route(string, topic.Incarnation) *dispatchq.Route {
	if !v.latched {
		return unlatched
	}
	return v.route
}

// lives tells whether the metastore, as far as this view knows it, calls a
// partition's leader alive.
func (v *view) lives(partition int32) bool { return v.alive[v.route.Places[partition].Leader] }

func (v *view) rebuild() {
	r := &dispatchq.Route{State: dispatchq.Live, Reroute: true}
	for p := range v.s.cfg.Partitions {
		id := v.s.names[int(p)%len(v.s.names)]
		r.Places = append(r.Places, dispatchq.Place{Leader: id, Alive: v.alive[id] && !v.takenForDead(id), Epoch: v.epoch[id]})
	}
	v.route = r
}

func (v *view) change() {
	v.rebuild()
	if g := v.s.gw; g != nil && !g.dead {
		g.m.ViewChanged()
		g.step()
	}
}

// lost shows a crashed node as dead, if it stays away for long enough.
func (v *view) lost(n *node) {
	epoch := n.epoch
	v.s.clock.after(v.s.clock.between(5*time.Second, 35*time.Second), func() {
		if !n.up && n.epoch == epoch {
			v.alive[n.id] = false
			v.change()
		}
	})
}

// seen shows a started node, with its new epoch.
func (v *view) seen(n *node) {
	v.s.clock.after(v.s.clock.between(0, 2*time.Second), func() {
		if n.up {
			v.alive[n.id], v.epoch[n.id] = true, n.epoch
			v.change()
		}
	})
}

// gossip says of a node that it is probably dead, or is not any more.
func (v *view) gossip(id string, suspected bool) {
	v.suspect[id] = suspected
	if g := v.s.gw; g != nil && !g.dead {
		g.m.Suspect(v.s.clock.now, id, suspected)
		g.step()
	}
	if v.s.cfg.Bug == SuspicionTakenForDeath {
		v.change()
	}
}

// takenForDead is the planted bug.
func (v *view) takenForDead(id string) bool {
	return v.s.cfg.Bug == SuspicionTakenForDeath && v.suspect[id]
}
