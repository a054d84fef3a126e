package sweeper

import (
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
)

// Action is what is to be done with an entry.
type Action string

// The actions.
const (
	ActionKeep    Action = "keep"
	ActionReclaim Action = "reclaim" // have the node confirm again, set it aside where it still serves, and remove it
)

// A pass that would take more than largePass directories of a node and more than a
// largeShare-th of what it has takes none: that much is rather a metastore that was
// set back than topics that were deleted, and an operator has to look. A node has the
// same brake for one request; this one is for the pass, which may need several.
const (
	largePass  = 100
	largeShare = 10
)

// tooMany is that brake.
func tooMany(take, have int) bool { return take > largePass && take*largeShare > have }

// decision is what judge says of one entry.
type decision struct {
	verdict metaapi.Verdict
	action  Action
	decided bool // false: an operator has to look, or the pass has to be repeated
	why     string
}

// judge is the one place that decides about an entry, by its marker and the
// leader's verdict on it; asked tells whether the leader gave one. Only an
// incarnation whose end the metastore remembers is ever reclaimed.
func judge(e *nodeapi.InventoryEntry, v metaapi.Verdict, asked bool) decision {
	keep := func(decided bool, why string) decision {
		return decision{verdict: metaapi.VerdictUnknown, action: ActionKeep, decided: decided, why: why}
	}
	switch {
	case e.Kind == nodeapi.InventoryForeign:
		return keep(true, "no name of Narad's; never touched")
	case !known(e.Kind):
		return keep(false, "a kind that this release does not know; run the release of the storage nodes")
	case e.Unreadable:
		return keep(false, "the node cannot read it; see its log")
	case e.Incarnation == 0 && e.Kind == nodeapi.InventoryStaging && len(e.Partitions) == 0:
		return keep(true, "not finished; the node clears it when it starts")
	case e.Incarnation == 0:
		return keep(false, "no valid marker; an operator has to say whose it is")
	case !asked:
		return keep(false, "the metastore leader did not answer; run again")
	}
	switch v {
	case metaapi.VerdictGone:
		return decision{verdict: v, action: ActionReclaim, decided: true, why: "the metastore remembers the end of this incarnation"}
	case metaapi.VerdictLive:
		d := decision{verdict: v, action: ActionKeep, decided: true}
		d.decided, d.why = live(e.Kind)
		return d
	case metaapi.VerdictUnknown:
	}
	return keep(false, "the metastore knows neither its life nor its end; an operator has to decide")
}

func known(kind nodeapi.InventoryKind) bool {
	switch kind {
	case nodeapi.InventoryServing, nodeapi.InventoryQuarantine, nodeapi.InventorySuperseded, nodeapi.InventoryStaging:
		return true
	case nodeapi.InventoryForeign:
	}
	return false
}

// live says why an entry of a live incarnation is kept.
func live(kind nodeapi.InventoryKind) (decided bool, why string) {
	switch kind {
	case nodeapi.InventoryQuarantine:
		return true, "the topic lives; opening it moves this back"
	case nodeapi.InventoryStaging:
		return true, "the topic lives; this is being made, or cleared when the node starts"
	case nodeapi.InventorySuperseded:
		return false, "a replaced copy of a live topic; this release cannot tell copies apart"
	case nodeapi.InventoryServing, nodeapi.InventoryForeign:
	}
	return true, "the topic lives"
}

// judgeAccepted decides about records of one life that a gateway still has; shown is
// false for those of a topic that lives. A gateway discards what is gone by itself,
// as soon as its own replica shows the end and the leader confirms it.
func judgeAccepted(v metaapi.Verdict, asked bool) (d decision, shown bool) {
	d = decision{verdict: metaapi.VerdictUnknown, action: ActionKeep}
	switch {
	case !asked:
		d.why = "the metastore leader did not answer; run again"
	case v == metaapi.VerdictLive:
		return d, false
	case v == metaapi.VerdictGone:
		d.verdict, d.decided, d.why = v, true, "accepted records of a deleted topic; the gateway discards them within seconds"
	default:
		d.why = "accepted records of a topic that the metastore neither knows nor remembers; an operator has to decide"
	}
	return d, true
}
