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

// gauge reads one series, whose name and labels are a regular expression; -1: it is not
// there, or the node does not answer.
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

// aroundTheDead kills a storage node and keeps it down, produces what is not pinned
// to a new topic, and returns when it was killed and how long it took until all of it
// was consumed. Nothing must be marked dead yet then: that takes 30 s.
func aroundTheDead(t *testing.T, c *harness.Cluster, topic string) (begin time.Time, took time.Duration) {
	t.Helper()
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	create(ctx, t, cl, client.TopicSpec{Name: topic, Partitions: 6})
	c.Hold("storage-2")
	begin = time.Now()
	c.Kill("storage-2")
	const n = 60
	for i := range n {
		if _, err := cl.Produce(ctx, topic, client.Message{Payload: []byte(fmt.Sprint(i))}, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for len(seen) < n {
		got, err := cl.Receive(ctx, topic, client.ReceiveOptions{Max: 20, Wait: time.Second})
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
			if _, err := cl.AckMany(ctx, topic, handles); err != nil {
				t.Fatal(err)
			}
		}
	}
	took = time.Since(begin)
	var dead float64
	if err := harness.Until(context.Background(), 10*time.Second, func() bool { // a busy voter may not answer at once
		dead = gauge(c, "voter-1", `narad_members\{role="storage-node",status="dead"\}`)
		return dead >= 0
	}); err != nil || dead > 0 {
		t.Errorf("%v nodes were marked dead within %s: gossip decided, or the test shows nothing; %v", dead, took, err)
	}
	return begin, took
}

const (
	// suspectedWithin is how long after its death a gateway avoids a node at the most.
	suspectedWithin = 2 * time.Second
	// consumedWithin is how long after the death everything has come from the other
	// nodes: sooner than 3 s of refused tries, after which a gateway without gossip gives up.
	consumedWithin = 3 * time.Second
)

// TestGossipLeadsAroundADeadNode: the gateway avoids a dead node within 2 s, and what
// is not pinned is consumed from the other nodes' partitions before 3 s of refused
// tries are over.
func TestGossipLeadsAroundADeadNode(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1})
	for _, n := range c.Nodes() {
		if err := harness.Until(context.Background(), 20*time.Second, func() bool { return gauge(c, n.ID, "narad_gossip_members") == 5 }); err != nil {
			t.Fatalf("%s hears %v nodes", n.ID, gauge(c, n.ID, "narad_gossip_members"))
		}
	}
	round := 0
	onceInTime(t, "a dead node is avoided within 2 s, everything consumed within 3 s", func() (bool, string) {
		round++
		pid := c.Node("storage-2").PID
		begin, took := aroundTheDead(t, c, fmt.Sprintf("orders-%d", round))
		for _, id := range []string{"gateway-1", "voter-1", "storage-1"} {
			// Each hears of it by its own probes or from another one, some a second later; how
			// soon the gateway has to is judged by its log.
			if err := harness.Until(context.Background(), 20*time.Second, func() bool { return gauge(c, id, "narad_gossip_suspected") == 1 }); err != nil {
				t.Errorf("%s suspects %v nodes", id, gauge(c, id, "narad_gossip_suspected"))
			}
			if err := harness.Until(context.Background(), 10*time.Second, func() bool { return c.Ready(id) }); err != nil {
				t.Errorf("%s is not ready: readiness must not follow gossip", id)
			}
		}
		suspected := suspectedAfter(t, c, "gateway-1", "storage-2", begin)
		c.Free("storage-2")
		c.WaitReady("storage-2", pid)
		for _, id := range []string{"gateway-1", "voter-1", "storage-1"} {
			if err := harness.Until(context.Background(), 30*time.Second, func() bool { return gauge(c, id, "narad_gossip_suspected") == 0 }); err != nil {
				t.Errorf("%s still suspects a node that is back", id)
			}
		}
		return suspected <= suspectedWithin && took <= consumedWithin, fmt.Sprintf("suspected after %s, all consumed after %s", suspected, took)
	})
}

// suspectedAfter reads from a node's log how long after a moment it first suspected another.
func suspectedAfter(t *testing.T, c *harness.Cluster, id, whom string, begin time.Time) time.Duration {
	t.Helper()
	line := regexp.MustCompile(`(?m)^time=(\S+) .*msg="gossip suspects a node" .*node=` + whom + `$`)
	for _, m := range line.FindAllStringSubmatch(nodeLog(t, c, id), -1) {
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			t.Fatal(err)
		}
		if at.After(begin) {
			return at.Sub(begin)
		}
	}
	t.Errorf("%s has not suspected %s", id, whom)
	return 0
}

// TestWithoutGossip: slower, not wrong.
func TestWithoutGossip(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 3, Gateways: 1, Args: []string{"--no-gossip"}})
	if got := gauge(c, "gateway-1", "narad_gossip_members"); got != -1 {
		t.Errorf("narad_gossip_members %v without gossip", got)
	}
	_, took := aroundTheDead(t, c, "orders")
	t.Logf("without gossip everything was consumed %s after the kill", took)
	if took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}
