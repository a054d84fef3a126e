//go:build e2e

package scenarios

import (
	"fmt"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// TestRerouteAroundADeadStorageNode: while a node is down, what was not pinned to
// its partitions is delivered from others; what was pinned waits for it; nothing
// comes twice when it returns.
func TestRerouteAroundADeadStorageNode(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 4})
	var details client.TopicDetails
	down := uint32(99)
	if err := harness.Until(ctx, 20*time.Second, func() bool { // the gateway's replica may lag
		details, _ = cl.Topic(ctx, "orders")
		for _, p := range details.PartitionDetails {
			if p.Leader != nil && *p.Leader == "storage-1" {
				down = p.Index
			}
		}
		return down != 99
	}); err != nil {
		t.Fatalf("storage-1 leads nothing: %+v", details.PartitionDetails)
	}
	pid := c.Node("storage-1").PID
	c.Hold("storage-1")
	c.Kill("storage-1")
	for i := range 100 {
		m := client.Message{Payload: fmt.Appendf(nil, "free-%d", i), Key: fmt.Appendf(nil, "k%d", i)}
		if _, err := cl.Produce(ctx, "orders", m, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pinned := client.Message{Payload: []byte("pinned"), Partition: client.Pin(down)}
	if _, err := cl.Produce(ctx, "orders", pinned, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	got := drain(ctx, t, cl, "orders", 100)
	t.Logf("100 messages came around the dead node within %s", time.Since(begin))
	if len(got) != 100 || got["pinned"] != 0 {
		t.Errorf("%d different messages came, pinned %d times", len(got), got["pinned"])
	}
	c.Free("storage-1")
	c.WaitReady("storage-1", pid)
	if got := drain(ctx, t, cl, "orders", 1); got["pinned"] != 1 {
		t.Errorf("after its return the node delivers %v, want what was pinned to it", got)
	}
	if r, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 10, Wait: 2 * time.Second}); err != nil || len(r.Deliveries) != 0 {
		t.Errorf("something came again: %+v, %v", r.Deliveries, err)
	}
}
