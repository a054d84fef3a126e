package decommission

import (
	"slices"
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// TestHeld: who waits for a decommission is told what the moves of that member wait for.
func TestHeld(t *testing.T) {
	row := func(name, from, to string, why metaapi.MoveBlocked) metaapi.MoveRow {
		return metaapi.MoveRow{Move: topic.Move{Ref: topic.Ref{Topic: name}, From: from, To: to}, Blocked: why}
	}
	got := Held("s1", []metaapi.MoveRow{
		row("pay", "s1", "s2", metaapi.BlockedTargetFull), row("pay", "s1", "s2", metaapi.BlockedTargetFull),
		row("orders", "s1", "s3", metaapi.BlockedTargetDead), row("news", "s1", "s3", ""),
		row("lost", "s1", "s3", metaapi.BlockedLeader),
		row("mail", "s9", "s3", metaapi.BlockedTargetDead), row("own", "s1", "s3", metaapi.BlockedSourceDead),
	})
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []struct{ code, topic, text string }{
		{metaapi.NoReceivers, "orders", "1 partitions of s1 are on their way to a node that is dead, such as s3"},
		{metaapi.NoReceivers, "pay", "2 partitions of s1 are on their way to a node whose disk is full, such as s2"},
		{metaapi.NodeStatusUnavailable, "lost", "1 partitions of s1 cannot move, such as lost/0"},
	} {
		if r := got[i]; r.Code != want.code || !slices.Equal(r.Topics, []string{want.topic}) || !strings.HasPrefix(r.Message, want.text) {
			t.Errorf("%+v", r)
		}
	}
}
