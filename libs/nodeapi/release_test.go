package nodeapi

import (
	"log/slog"
	"testing"

	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
)

// A node of the first release is asked without the field that it does not know, and
// answers as it always did; one of this release gets it.
func TestAnOlderNodeIsAskedWithoutTheField(t *testing.T) {
	for _, c := range []struct {
		release string
		copies  bool
	}{{release.First, false}, {release.Name, true}} {
		f := &fake{}
		s := rpc.NewServer(rpc.ServerConfig{
			NodeID: "s1", ClusterID: func() string { return "c" }, Log: slog.New(slog.DiscardHandler), Release: c.release,
		})
		Serve(s, f)
		client := rpc.NewClient(rpc.ClientConfig{ClusterID: func() string { return "c" }})
		defer client.Close()
		if _, err := NewClient(client.Peer("s1", testkit.Serve(t, s))).Inventory(t.Context(), inventoryRequest); err != nil {
			t.Fatal(err)
		}
		got, ok := f.got.(*InventoryRequest)
		if !ok || got.Copies != c.copies || got.After != inventoryRequest.After || got.Limit != inventoryRequest.Limit {
			t.Errorf("release %s got %+v", c.release, f.got)
		}
	}
}
