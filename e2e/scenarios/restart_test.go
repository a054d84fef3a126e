//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// connect makes a client of a cluster that is closed with the test.
func connect(t *testing.T, c *harness.Cluster) (*client.Client, context.Context) {
	t.Helper()
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	t.Cleanup(cancel)
	return cl, ctx
}

// create makes a topic that is not there yet. When the voters elect in the middle of it, as
// they do when the machine stands still for a moment, its outcome is unknown: it is repeated.
func create(ctx context.Context, t *testing.T, cl *client.Client, spec client.TopicSpec) client.Topic {
	t.Helper()
	made, _, err := cl.CreateTopicIfAbsent(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// drainPatience is how long nothing may come: a batch that left on a connection whose end
// the gateway had not read yet waits for that node, or until it is marked dead after 30 s.
const drainPatience = 75 * time.Second

// drain receives and acks until n messages came, and returns their payloads.
func drain(ctx context.Context, t *testing.T, cl *client.Client, topic string, n int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for total := 0; total < n; {
		var r client.Received
		var last error
		if err := harness.Until(ctx, drainPatience, func() bool {
			r, last = cl.Receive(ctx, topic, client.ReceiveOptions{Max: min(n-total, 100), Wait: 10 * time.Second})
			return len(r.Deliveries) > 0
		}); err != nil {
			t.Fatalf("nothing more came after %d of %d: %v", total, n, last)
		}
		for _, d := range r.Deliveries {
			got[string(d.Payload)]++
			total++
			if err := cl.Ack(ctx, topic, d.ReceiptHandle); err != nil {
				t.Fatal(err)
			}
		}
	}
	return got
}

func produceN(ctx context.Context, t *testing.T, cl *client.Client, topic, prefix string, n int) {
	t.Helper()
	for i := range n {
		if _, err := cl.Produce(ctx, topic, client.Message{Payload: fmt.Appendf(nil, "%s-%d", prefix, i)}, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryProcessRestarts: an ordered stop of everything keeps messages,
// leases' ends, positions and metadata exactly.
func TestEveryProcessRestarts(t *testing.T) {
	o := harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2}
	c := harness.Start(t, o)
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "keep", Partitions: 4})
	produceN(ctx, t, cl, "keep", "a", 200)
	first := drain(ctx, t, cl, "keep", 120)
	c.Restart(o)
	second := drain(ctx, t, cl, "keep", 80)
	for s := range second {
		if first[s] > 0 {
			t.Errorf("%s was settled before the restart and came again", s)
		}
	}
	if len(first)+len(second) != 200 {
		t.Errorf("%d and %d different messages, want 200 together", len(first), len(second))
	}
}

// TestAcceptWithoutLeaderOrOwner: a gateway that was ready once answers 202 with
// every voter and every storage node down, and delivers when they are back.
func TestAcceptWithoutLeaderOrOwner(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "alone"})
	down := []string{"voter-1", "storage-1"}
	pids := map[string]int{}
	for _, id := range down {
		pids[id] = c.Node(id).PID
		c.Hold(id)
		c.Kill(id)
	}
	produceN(ctx, t, cl, "alone", "m", 20)
	gateway := c.Node("gateway-1").PID
	c.Kill("gateway-1") // accepted messages survive this too
	for _, id := range down {
		c.Free(id)
	}
	for _, id := range down {
		c.WaitReady(id, pids[id])
	}
	c.WaitReady("gateway-1", gateway)
	if got := drain(ctx, t, cl, "alone", 20); len(got) != 20 {
		t.Errorf("%d different messages came back, want 20", len(got))
	}
}
