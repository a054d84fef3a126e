package sweeper

import (
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// TestJudge: every kind of entry under every verdict.
func TestJudge(t *testing.T) {
	const (
		keep      = "keep"
		undecided = "keep, undecided"
		reclaim   = "reclaim"
	)
	kinds := []nodeapi.InventoryKind{
		nodeapi.InventoryServing, nodeapi.InventoryQuarantine, nodeapi.InventorySuperseded, nodeapi.InventoryStaging, nodeapi.InventoryForeign, "new",
	}
	for _, c := range []struct {
		name  string
		entry nodeapi.InventoryEntry
		v     metaapi.Verdict
		asked bool
		want  [6]string // in the order of kinds
	}{
		{"live", nodeapi.InventoryEntry{Incarnation: 1}, metaapi.VerdictLive, true, [6]string{keep, keep, undecided, keep, keep, undecided}},
		{"gone", nodeapi.InventoryEntry{Incarnation: 1}, metaapi.VerdictGone, true, [6]string{reclaim, reclaim, reclaim, reclaim, keep, undecided}},
		{"unknown", nodeapi.InventoryEntry{Incarnation: 1}, metaapi.VerdictUnknown, true, [6]string{undecided, undecided, undecided, undecided, keep, undecided}},
		{"not asked", nodeapi.InventoryEntry{Incarnation: 1}, metaapi.VerdictGone, false, [6]string{undecided, undecided, undecided, undecided, keep, undecided}},
		{"no word of ours", nodeapi.InventoryEntry{Incarnation: 1}, "", true, [6]string{undecided, undecided, undecided, undecided, keep, undecided}},
		{"unreadable", nodeapi.InventoryEntry{Incarnation: 1, Unreadable: true}, metaapi.VerdictGone, true, [6]string{undecided, undecided, undecided, undecided, keep, undecided}},
		{"no marker", nodeapi.InventoryEntry{}, metaapi.VerdictGone, true, [6]string{undecided, undecided, undecided, keep, keep, undecided}},
		{"no marker, data", nodeapi.InventoryEntry{Partitions: []int32{0}}, metaapi.VerdictGone, true, [6]string{undecided, undecided, undecided, undecided, keep, undecided}},
	} {
		for i, kind := range kinds {
			c.entry.Kind = kind
			d := judge(&c.entry, c.v, c.asked)
			got := string(d.action)
			if !d.decided {
				got += ", undecided"
			}
			if got != c.want[i] || d.why == "" || d.verdict == "" {
				t.Errorf("%s, %s: %+v, want %s", kind, c.name, d, c.want[i])
			}
			if d.action == ActionReclaim && (d.verdict != metaapi.VerdictGone || c.entry.Incarnation == topic.Incarnation(0)) {
				t.Errorf("%s, %s: reclaimed without a verdict", kind, c.name)
			}
		}
	}
}
