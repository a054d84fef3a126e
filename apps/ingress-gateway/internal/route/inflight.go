package route

import "time"

// gather is how long the calls under way to a node may take before another one is
// begun beside them. A call that carries what came up during the one before costs
// as much as one that carries a single thing: at full load one at a time makes a
// third of the calls. Only a slow one, with a large answer or a slow disk behind
// it, is overtaken.
const gather = 3 * time.Millisecond

// enough is how many things are worth a call of their own at once: what a call
// costs is little for each of them, and waiting longer would only cost time.
const enough = 8

// inFlight is the calls of one kind under way to one node; its node's mutex guards it.
type inFlight struct {
	n     int
	last  time.Time // when the youngest began
	armed bool      // more will be called
}

// begin counts a call for what waits, if it may begin now. Otherwise that goes
// with the next one: of a call that returns, or (soon) of more at the latest, which
// is called when the ones under way turn out to be slow.
func (f *inFlight) begin(limit, waiting int, more func()) (now, soon bool) {
	if f.n >= limit {
		return false, false
	}
	at := time.Now()
	if f.n > 0 && waiting < enough && at.Sub(f.last) < gather {
		if !f.armed {
			f.armed = true
			time.AfterFunc(f.last.Add(gather).Sub(at), more)
		}
		return false, true
	}
	f.n++
	f.last = at
	return true, true
}
