package dispatch

import (
	"errors"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// world shows the metadata view to the machine. It is used by the loop only.
type world struct {
	view metastate.View
	now  map[lifeKey]*cached // asked since the last change
	then map[lifeKey]*cached // asked before it
}

type lifeKey struct {
	name string
	id   topic.Incarnation
}

// cached is a route and what it was made from: the values of a view are
// immutable, so the same pointers mean the same route.
type cached struct {
	topic   *topic.Topic
	parts   *metastate.Partitions
	members *metastate.MemberTable
	route   *dispatchq.Route
}

var (
	routeUnavailable = &dispatchq.Route{State: dispatchq.Unavailable}
	routeGone        = &dispatchq.Route{State: dispatchq.Gone}
)

func newWorld(view metastate.View) *world {
	return &world{view: view, now: map[lifeKey]*cached{}, then: map[lifeKey]*cached{}}
}

// changed is called when the view may have changed; lives that the machine no
// longer asks about are forgotten at the second call.
func (w *world) changed() { w.then, w.now = w.now, map[lifeKey]*cached{} }

// Route implements dispatchq.World.
func (w *world) Route(name string, id topic.Incarnation) *dispatchq.Route {
	if !w.view.Latched() {
		return routeUnavailable
	}
	parts, err := w.view.Assignments(name)
	switch {
	case errors.Is(err, metastate.ErrNoTopic):
		return routeGone
	case err != nil:
		return routeUnavailable
	case parts.Incarnation != id:
		return routeGone
	}
	t, err := w.view.Topic(name)
	if err != nil || t.Incarnation != id {
		return routeUnavailable // between two reads: the change that follows is told
	}
	key := lifeKey{name, id}
	if c := w.now[key]; c != nil {
		return c.route
	}
	members := w.view.Members()
	c := w.then[key]
	if c == nil || c.topic != t || c.parts != parts || c.members != members {
		c = &cached{topic: t, parts: parts, members: members, route: makeRoute(t, parts, members)}
	}
	w.now[key] = c
	return c.route
}

func makeRoute(t *topic.Topic, parts *metastate.Partitions, members *metastate.MemberTable) *dispatchq.Route {
	r := &dispatchq.Route{
		State: dispatchq.Live, Reroute: t.Reroute && t.ReplicationFactor == 1,
		Places: make([]dispatchq.Place, len(parts.List)),
	}
	for i := range parts.List {
		a := &parts.List[i]
		m := members.ByID[a.Leader]
		p := dispatchq.Place{
			Leader: a.Leader, Epoch: a.LeaderEpoch, Alive: m != nil && m.Status == topic.StatusAlive, Elects: elects(a, members),
		}
		if rep, ok := a.ReplicaOn(a.Leader); ok {
			p.DiskID = rep.DiskID
		}
		if m == nil {
			p.Leader = "" // nobody to send to
		}
		r.Places[i] = p
	}
	return r
}

// elects tells whether a partition without a leader gets one soon: it has several
// copies, and all their nodes live.
func elects(a *topic.Assignment, members *metastate.MemberTable) bool {
	for _, r := range a.Replicas {
		if m := members.ByID[r.Node]; m == nil || m.Status != topic.StatusAlive || m.DiskID != r.DiskID {
			return false
		}
	}
	return len(a.Replicas) > 1
}
