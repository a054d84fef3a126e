package sim

import (
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// state is what the metastore holds after one of its entries. The slices are
// never changed in place.
type state struct {
	lead      quorum.Leadership
	set       quorum.Set
	observers []string
	boots     [maxNodes]uint64
}

func (s *state) config() quorum.Config {
	return quorum.Config{Version: s.set.Version, Replicas: s.set.Replicas, Observers: s.observers}
}

// recorded is the replica that the set names on a node.
func (s *state) recorded(node string) (quorum.Replica, bool) {
	i := slices.IndexFunc(s.set.Replicas, func(r quorum.Replica) bool { return r.Node == node })
	if i < 0 {
		return quorum.Replica{}, false
	}
	return s.set.Replicas[i], true
}

// meta is the metastore: the states after each entry, in order. The controller
// reads the last one, nodes apply them late.
type meta struct {
	states    []state
	electedMS map[topic.Epoch]int64
}

func (m *meta) now() *state { return &m.states[len(m.states)-1] }

func (m *meta) propose(s state) { m.states = append(m.states, s) }

// register is the entry of a start: the node gives up what it leads, unless it
// holds the only copy.
func (w *world) register(n *node) {
	s := *w.meta.now()
	s.boots[n.index] = n.boot
	switch {
	case w.bug == RestartRaisesEpoch && n.ledBefore:
		s.lead = quorum.Leadership{Epoch: s.lead.Epoch + 1, Leader: n.name}
	case w.bug == WipedCounts && n.pretend.Node != "" && n.pretend != n.self():
		s.set.Replicas, s.set.Before = readmitted(s.set.Replicas, n.self()), nil
		s.set.Version++
		s.lead = quorum.Leadership{Epoch: s.lead.Epoch + 1}
	case w.bug == WipedLeads && s.lead.Leader == n.name,
		s.lead.Leader == n.name && len(s.set.Replicas) == 1:
		s.lead.Epoch++
	case s.lead.Leader == n.name:
		s.lead = quorum.Leadership{Epoch: s.lead.Epoch + 1}
	}
	w.meta.propose(s)
}

// noLeader is the first entry of an election.
func (w *world) noLeader() {
	s := *w.meta.now()
	s.lead = quorum.Leadership{Epoch: s.lead.Epoch + 1}
	w.meta.propose(s)
}

// elect is the last one: it compares epoch, no leader and version.
func (w *world) elect(epoch topic.Epoch, version uint64, leader string) bool {
	s := *w.meta.now()
	if s.lead.Epoch != epoch || s.lead.Leader != "" || s.set.Version != version {
		return false
	}
	s.lead.Leader = leader
	w.meta.propose(s)
	w.meta.electedMS[epoch] = w.now
	return true
}
