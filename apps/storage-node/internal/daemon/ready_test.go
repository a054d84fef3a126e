package daemon

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/topic"
)

// TestAnUnlatchedNodeIsNotReady: a node that has just started, and knows no partition
// yet, says that its copies are catching up beside what its member says.
func TestAnUnlatchedNodeIsNotReady(t *testing.T) {
	d, err := New(Config{Member: member.Config{
		NodeID: "s1", Role: topic.RoleStorage, DataDir: t.TempDir(), RPCBind: "127.0.0.1:0", RaftBind: "127.0.0.1:0",
		Advertise: "127.0.0.1", Join: []string{"127.0.0.1:1"}, Release: "r",
	}}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	reasons, degraded := d.Source(false).Ready()
	var codes []string
	for _, r := range reasons {
		codes = append(codes, r.Code)
	}
	want := []string{ops.ReasonStarting, ops.ReasonNotAdmitted, ops.ReasonNotCaughtUp, ops.ReasonReplicasCatchingUp}
	if !slices.Equal(codes, want) || len(degraded) != 0 {
		t.Errorf("not ready for %v, degraded %v; want %v", codes, degraded, want)
	}
}
