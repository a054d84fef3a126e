package gossip

import "sync/atomic"

// Suspects is the set of nodes that are probably dead. Build one with
// NewSuspects: it stays empty until a Gossip runs. Safe for concurrent use.
type Suspects struct {
	now atomic.Pointer[suspicion]
}

// suspicion is one state of the set, immutable.
type suspicion struct {
	ids     map[string]bool
	changed chan struct{} // closed when this is no longer the state
}

// NewSuspects returns an empty set.
func NewSuspects() *Suspects {
	s := &Suspects{}
	s.now.Store(&suspicion{changed: make(chan struct{})})
	return s
}

// Has tells whether a node is suspected, at the cost of an atomic load.
func (s *Suspects) Has(id string) bool { return s.now.Load().ids[id] }

// All returns the set; it must not be changed.
func (s *Suspects) All() map[string]bool { return s.now.Load().ids }

// Changed returns a channel that is closed at the next change. Take it before
// reading, so that no change falls between.
func (s *Suspects) Changed() <-chan struct{} { return s.now.Load().changed }

// set replaces the set, if it differs. One goroutine calls it.
func (s *Suspects) set(ids map[string]bool) {
	old := s.now.Load()
	same := len(old.ids) == len(ids)
	for id := range ids {
		same = same && old.ids[id]
	}
	if same {
		return
	}
	s.now.Store(&suspicion{ids: ids, changed: make(chan struct{})})
	close(old.changed)
}
