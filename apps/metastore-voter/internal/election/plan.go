package election

import (
	"slices"
	"strings"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// members is the member table by id.
type members map[string]*topic.Member

// usable tells whether a replica's node is alive with the disk on which the
// metastore knows the copy.
func (m members) usable(r topic.Replica) bool {
	rec := m[r.Node]
	return rec != nil && rec.Status == topic.StatusAlive && rec.DiskID == r.DiskID
}

// electable tells whether an election can succeed now: a majority of the replica
// set is usable. Others are not tried, so that they cost nothing while they wait.
func electable(a *topic.Assignment, m members) bool {
	n := 0
	for _, r := range a.Replicas {
		if m.usable(r) && r.CopyID != 0 {
			n++
		}
	}
	return n >= len(a.Replicas)/2+1
}

// successor chooses who is to lead instead of the current leader: a usable
// replica with a recorded copy whose node is not draining, the first of the set
// when it can, else the one that leads least. led counts leaderships by node; it
// is told of the choice. "" when there is none.
func successor(a *topic.Assignment, m members, led map[string]int) string {
	best := ""
	for i, r := range a.Replicas {
		if r.Node == a.Leader || !m.usable(r) || r.CopyID == 0 || m[r.Node].Draining {
			continue
		}
		if i == 0 {
			best = r.Node
			break
		}
		if best == "" || led[r.Node] < led[best] {
			best = r.Node
		}
	}
	if best != "" {
		led[best]++
	}
	return best
}

// moving tells whether a copy of the partition is on its way to another node: the move
// has a say in who leads it, and balance has none.
func moving(a *topic.Assignment, factor int) bool {
	return len(a.Observers) > 0 || len(a.Replicas) > factor
}

const (
	// maxEarly and earlyWithin bound elections that hints start: a node that
	// flaps must not make its partitions change their leader without end.
	maxEarly    = 3
	earlyWithin = 30 * time.Second
	// maxEarlyKept bounds the partitions that are remembered for it.
	maxEarlyKept = 1 << 16
)

// early remembers when hints started elections.
type early map[topic.Ref][]time.Duration

// allow tells whether a hint may start another election of the partition now,
// and notes it.
func (e early) allow(ref topic.Ref, now time.Duration) bool {
	recent := slices.DeleteFunc(e[ref], func(at time.Duration) bool { return now-at >= earlyWithin })
	if len(recent) >= maxEarly {
		e[ref] = recent
		return false
	}
	if len(e) >= maxEarlyKept {
		clear(e)
	}
	e[ref] = append(recent, now)
	return true
}

// byRef orders partitions, so that a pass is the same for the same state.
func byRef(a, b *topic.Assignment) int {
	if c := strings.Compare(a.Topic, b.Topic); c != 0 {
		return c
	}
	return int(a.Partition) - int(b.Partition)
}
