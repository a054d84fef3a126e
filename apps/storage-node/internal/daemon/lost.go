package daemon

import (
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// lostNotes remembers since when lone copies are missed. It belongs to the loop that
// sends heartbeats.
type lostNotes struct{ since map[topic.Ref]int64 }

// tell is what a heartbeat says of the lone copies that are missed now, in order.
func (l *lostNotes) tell(missed []topic.Ref, now time.Time) *metaapi.LostCopies {
	out := &metaapi.LostCopies{Count: len(missed)}
	since := make(map[topic.Ref]int64, len(missed))
	for _, ref := range missed {
		at, ok := l.since[ref]
		if !ok {
			at = now.UnixMilli()
		}
		since[ref] = at
		if len(out.Named) < metaapi.MaxLostNamed {
			out.Named = append(out.Named, metaapi.LostCopy{Ref: ref, SinceMS: at})
		}
	}
	l.since = since
	return out
}
