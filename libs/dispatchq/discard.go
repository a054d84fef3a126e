package dispatchq

import (
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// Life names one life of a topic.
type Life struct {
	Topic       string
	Incarnation topic.Incarnation
}

// Discarded is the records of one queue that were given up.
type Discarded struct {
	Key    Key
	Items  []Item // that lie in the WAL
	Window []Item // of the parked log, as far as they were loaded
	Parked bool   // there is a parked log: all of it goes, and then Removed is called
}

// Held lists at most `most` lives whose records are held because the view does not
// show them any more, and which have not been listed for Config.ConfirmAgain. That
// the view lacks a life is no proof of its end: the shell asks the metastore leader
// about each and calls Discard for those alone that are confirmed gone.
func (m *Machine) Held(now time.Duration, most int) []Life {
	var out []Life
	for _, l := range m.all.list {
		if len(out) == most {
			break
		}
		if l.route.State != Gone || l.key.id == 0 || l.askAt > now || !l.holds() {
			continue
		}
		l.askAt = now + m.cfg.ConfirmAgain
		out = append(out, Life{l.key.name, l.key.id})
	}
	return out
}

func (l *life) holds() bool {
	for _, q := range l.all.list {
		if q.len() > 0 || q.unloaded > 0 {
			return true
		}
	}
	return false
}

// Discard gives up the records of a life whose end the metastore leader has just
// confirmed. It takes nothing while the view shows the life. A queue that is used
// at this moment (a batch of it in flight, its parked log written or read) is left
// for the next confirmation, and so is what is read later: an answer serves once.
func (m *Machine) Discard(of Life) []Discarded {
	l := m.lives[lifeKey{of.Topic, of.Incarnation}]
	if l == nil || l.route.State != Gone {
		return nil
	}
	var out []Discarded
	for _, q := range l.all.list {
		if q.flight != nil || q.parking > 0 || q.loading || q.len() == 0 && q.unloaded == 0 {
			continue
		}
		d := Discarded{
			Key: q.key, Parked: q.backlog(),
			Items:  append([]Item(nil), q.items.first(q.items.len())...),
			Window: append([]Item(nil), q.front.first(q.front.len())...),
		}
		m.known -= q.len()
		q.items.pop(q.items.len())
		q.front.pop(q.front.len())
		q.unloaded, q.bound, q.stuckSince = 0, nil, 0
		q.loading = d.Parked // the shell is at its log until Removed
		m.countParked(q)
		m.kick(q) // an empty queue is forgotten
		out = append(out, d)
	}
	return out
}

// Removed reports that the parked log of a discarded queue is not used any more.
func (m *Machine) Removed(key Key) {
	q := m.queue(key)
	q.loading = false
	m.kick(q)
}
