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

// A quarantined copy of a topic that lives waits for an operator, with since when and
// why; one of a topic that is gone goes with it, and what its node is removing is
// nobody's business. None is reclaimed from here.
func TestCopiesAreReported(t *testing.T) {
	quarantine := nodeapi.InventoryCopy{Kind: nodeapi.InventoryQuarantine, Name: "topics/orders/p00003.quarantine-0000000000000007", Partition: 3, Copy: 7, Bytes: 5, SinceMS: 1000, Reason: "it has more"}
	leaving := quarantine
	leaving.Kind, leaving.Bytes = nodeapi.InventorySuperseded, -1
	var s Summary
	for name, c := range map[string]struct {
		copy    nodeapi.InventoryCopy
		verdict metaapi.Verdict
		kind    nodeapi.InventoryKind
		decided bool
	}{
		"of a live topic": {quarantine, metaapi.VerdictLive, KindQuarantinedCopy, false},
		"of nobody knows": {quarantine, metaapi.VerdictUnknown, KindQuarantinedCopy, false},
		"of a gone topic": {quarantine, metaapi.VerdictGone, KindQuarantinedCopy, true},
		"being removed":   {leaving, metaapi.VerdictLive, KindSupersededCopy, true},
	} {
		e := newCopy("s1", &nodeapi.InventoryEntry{Topic: "orders", Incarnation: 9}, &c.copy, c.verdict)
		s.count(&e)
		if e.Kind != c.kind || e.Decided != c.decided || e.Action != ActionKeep || e.Name != c.copy.Name || (e.Bytes == nil) != (c.copy.Bytes < 0) {
			t.Errorf("%s: %+v", name, e)
		}
		if c.kind == KindQuarantinedCopy && e.Why != "set aside on 1970-01-01T00:00:01Z: it has more" {
			t.Errorf("%s: %s", name, e.Why)
		}
	}
	if s.Quarantined != 3 || s.Undecided != 2 || s.ReclaimableBytes != 0 {
		t.Errorf("%+v", s)
	}
}
