package sweeper

import (
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
)

// Action is what a release that reclaims would do with an entry.
type Action string

// The actions.
const (
	ActionKeep    Action = "keep"
	ActionReclaim Action = "reclaim" // have the node confirm again, set it aside where it still serves, and remove it
)

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
