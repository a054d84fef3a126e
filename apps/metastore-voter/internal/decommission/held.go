package decommission

import (
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// Held says which moves away from a member wait for a destination that is dead or full, or
// for the leader of their partition. It keeps no decommission from being begun: a
// destination that is dead is given up after a while, one that is full by who aborts the
// move, and then the partition goes elsewhere. A leader may come back.
func Held(member string, rows []metaapi.MoveRow) []metaapi.Reason {
	var dead, full, mute []string // topics
	var unled topic.Ref
	to := map[metaapi.MoveBlocked]string{}
	for i := range rows {
		if rows[i].From != member {
			continue
		}
		switch row := &rows[i]; row.Blocked {
		case metaapi.BlockedTargetDead:
			dead, to[row.Blocked] = append(dead, row.Topic), row.To
		case metaapi.BlockedTargetFull:
			full, to[row.Blocked] = append(full, row.Topic), row.To
		case metaapi.BlockedLeader:
			mute, unled = append(mute, row.Topic), row.Ref
		case metaapi.BlockedSourceDead, metaapi.BlockedUnverifiable: // the member's own state, which Judge looks at
		}
	}
	var out []metaapi.Reason
	if n := len(dead); n > 0 {
		out = append(out, about(reason(metaapi.NoReceivers, "%d partitions of %s are on their way to a node that is dead, such as %s: they go elsewhere when it stays so", n, member, to[metaapi.BlockedTargetDead]), dead))
	}
	if n := len(full); n > 0 {
		out = append(out, about(reason(metaapi.NoReceivers, "%d partitions of %s are on their way to a node whose disk is full, such as %s: make room there, or abort the moves for them to go elsewhere", n, member, to[metaapi.BlockedTargetFull]), full))
	}
	if n := len(mute); n > 0 {
		out = append(out, about(reason(metaapi.NodeStatusUnavailable, "%d partitions of %s cannot move, such as %s: nobody leads them, or the leader does not answer; what is lost has to be brought back, or reset", n, member, unled), mute))
	}
	return out
}
