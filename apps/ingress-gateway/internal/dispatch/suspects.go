package dispatch

import "time"

// Suspects is the nodes that are probably dead, as gossip has it: hearsay.
type Suspects interface {
	// All returns the set; nobody changes it.
	All() map[string]bool
	// Changed returns a channel that is closed at the next change. Taken before All.
	Changed() <-chan struct{}
}

// suspicions tells the machine what changed among the suspects. The loop's.
type suspicions struct {
	from    Suspects // nil: nobody is ever suspected
	known   map[string]bool
	changed <-chan struct{}
}

// tell brings the machine up to date.
func (s *suspicions) tell(now time.Duration, suspect func(now time.Duration, id string, suspected bool)) {
	if s.from == nil {
		return
	}
	s.changed = s.from.Changed()
	all := s.from.All()
	for id := range all {
		if !s.known[id] {
			suspect(now, id, true)
		}
	}
	for id := range s.known {
		if !all[id] {
			suspect(now, id, false)
		}
	}
	s.known = all
}
