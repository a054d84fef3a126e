package metastate

import (
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// newestOfFirst is the newest type of the first release: what everybody applies
// who reports nothing.
const newestOfFirst = TypeDeleteTopic

// OfFirstRelease tells whether every release applies a type: it may be proposed
// without asking anybody.
func OfFirstRelease(t Type) bool { return t <= newestOfFirst }

// reported is the newest type that somebody applies by its own word; 0 is none:
// a release that does not know the field, or a request from which it was dropped.
func reported(newest uint8) Type { return max(Type(newest), newestOfFirst) }

// Lacking names, by id, who keeps a type from being proposed: each Raft server
// and each member of record, dead ones included, that does not report it. Such
// a node would meet the entry on its log sooner or later and stop. A server
// without a record has reported nothing. self is the proposer, which knows
// itself whatever its record says. None: the type may be proposed.
func Lacking(t Type, self string, servers []string, members map[string]*topic.Member) []string {
	var ids []string
	if newEntry(t) == nil {
		ids = append(ids, self)
	}
	if OfFirstRelease(t) {
		return ids
	}
	for id, m := range members {
		if id != self && t > reported(m.NewestEntryType) {
			ids = append(ids, id)
		}
	}
	for _, id := range servers {
		if id != self && members[id] == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// OlderThanAll tells whether a joiner, by the newest type that it reports, is
// older than the cluster: it applies less than every member of record does, so
// that nothing would keep the leader from proposing what it cannot apply; or
// less than what was applied already. newest is NewestApplied.
func OlderThanAll(joiner uint8, newest Type, members map[string]*topic.Member) bool {
	has := reported(joiner)
	if has < newest {
		return true
	}
	for _, m := range members {
		if has >= reported(m.NewestEntryType) {
			return false
		}
	}
	return len(members) > 0
}
