//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// gauge reads one series without labels; -1: it is not there.
func gauge(c *harness.Cluster, id, name string) float64 {
	m := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindStringSubmatch(c.Metrics(id))
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return -1
	}
	return v
}

// aroundTheDead kills a storage node and keeps it down, produces what is not
// pinned, and returns how long it took from the kill until all of it was consumed.
// Nothing must be marked dead yet then: that takes 30 s.
func aroundTheDead(t *testing.T, c *harness.Cluster) time.Duration {
	t.Helper()
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 6}); err != nil {
		t.Fatal(err)
	}
	c.Hold("storage-2")
	begin := time.Now()
	c.Kill("storage-2")
	const n = 60
	for i := range n {
		if _, err := cl.Produce(ctx, "orders", client.Message{Payload: []byte(fmt.Sprint(i))}, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < n {
		got, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 20, Wait: time.Second})
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages came within a minute; logs in %s", len(seen), n, c.Dir)
		}
		if err != nil {
			continue
		}
		var handles []string
		for _, d := range got.Deliveries {
			if seen[string(d.Payload)] {
				t.Errorf("%q came twice", d.Payload)
			}
			seen[string(d.Payload)] = true
			handles = append(handles, d.ReceiptHandle)
		}
		if len(handles) > 0 {
			if _, err := cl.AckMany(ctx, "orders", handles); err != nil {
				t.Fatal(err)
			}
		}
	}
	took := time.Since(begin)
	if dead := regexp.MustCompile(`narad_members\{role="storage-node",status="dead"\} 0`); !dead.MatchString(c.Metrics("voter-1")) {
		t.Errorf("the dead node was marked dead within %s: gossip decided, or the test shows nothing", took)
	}
	return took
}

// TestGossipLeadsAroundADeadNode: what is not pinned is consumed from the other
// nodes' partitions soon after the kill, before 3 s of refused tries are over.
func TestGossipLeadsAroundADeadNode(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1})
	for _, n := range c.Nodes() {
		if err := harness.Until(context.Background(), 20*time.Second, func() bool { return gauge(c, n.ID, "narad_gossip_members") == 5 }); err != nil {
			t.Fatalf("%s hears %v nodes", n.ID, gauge(c, n.ID, "narad_gossip_members"))
		}
	}
	took := aroundTheDead(t, c)
	t.Logf("everything was consumed %s after the kill", took)
	if took > 3*time.Second {
		t.Errorf("it took %s: no sooner than without gossip", took)
	}
	for _, id := range []string{"gateway-1", "voter-1", "storage-1"} {
		// Each hears of it by its own probes or from another one, some a second later.
		if err := harness.Until(context.Background(), 5*time.Second, func() bool { return gauge(c, id, "narad_gossip_suspected") == 1 }); err != nil {
			t.Errorf("%s suspects %v nodes", id, gauge(c, id, "narad_gossip_suspected"))
		}
		if !c.Ready(id) {
			t.Errorf("%s is not ready: readiness must not follow gossip", id)
		}
	}
	c.Free("storage-2")
	c.WaitReady("storage-2", 0)
	for _, id := range []string{"gateway-1", "voter-1", "storage-1"} {
		if err := harness.Until(context.Background(), 10*time.Second, func() bool { return gauge(c, id, "narad_gossip_suspected") == 0 }); err != nil {
			t.Errorf("%s still suspects a node that is back", id)
		}
	}
}

// TestWithoutGossip: slower, not wrong.
func TestWithoutGossip(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1, Args: []string{"--no-gossip"}})
	if got := gauge(c, "gateway-1", "narad_gossip_members"); got != -1 {
		t.Errorf("narad_gossip_members %v without gossip", got)
	}
	took := aroundTheDead(t, c)
	t.Logf("without gossip everything was consumed %s after the kill", took)
	if took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
