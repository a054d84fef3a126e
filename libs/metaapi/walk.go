package metaapi

import "github.com/narad-mq/narad/libs/metaapi/lifecycle"

// maxWalk bounds the nodes asked in one walk: peers, remembered ones and hints
// together are fewer in any cluster that is configured sensibly.
const maxWalk = 64

// Walk decides whom to ask next while somebody looks for the leader: the
// candidates in order, each once, and a hint before all others. It does no I/O
// and holds for one attempt. TestWalk shows its rules.
type Walk struct {
	queue []string
	asked map[string]bool
	hints int
}

// NewWalk starts an attempt; empty candidates are skipped.
func NewWalk(candidates ...string) *Walk {
	return &Walk{queue: candidates, asked: map[string]bool{}}
}

// Next gives the address to ask, or "" when the attempt is over.
func (w *Walk) Next() string {
	for len(w.queue) > 0 && len(w.asked) < maxWalk {
		addr := w.queue[0]
		w.queue = w.queue[1:]
		if addr != "" && !w.asked[addr] {
			w.asked[addr] = true
			return addr
		}
	}
	return ""
}

// Hint takes the leader address that an answer named ("": none) and tells
// whether it will be asked next: when it can be dialled, was not asked yet and
// no more than lifecycle.MaxHints were followed.
func (w *Walk) Hint(addr string) bool {
	if !ValidHint(addr) || w.asked[addr] || w.hints == lifecycle.MaxHints {
		return false
	}
	w.hints++
	w.queue = append([]string{addr}, w.queue...)
	return true
}

// Memory keeps leader addresses for later walks, the most recent first. The
// zero value is empty. It is a value: Remember returns the next one.
type Memory []string

// Remember puts addr in front; what cannot be dialled is not kept.
func (m Memory) Remember(addr string) Memory {
	if !ValidHint(addr) {
		return m
	}
	next := Memory{addr}
	for _, old := range m {
		if old != addr && len(next) < lifecycle.MaxRemembered {
			next = append(next, old)
		}
	}
	return next
}
