//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// newLeaderLimit is how long metadata writes may stop when the leader is cut off, on a
	// machine on which an election may have to be repeated; a quiet one takes 2 s.
	newLeaderLimit = 30 * time.Second
	// storageCut is above the 5 s of a heartbeat and below the 30 s of the dead.
	storageCut = 8 * time.Second
	// aroundLimit is how long it may take until what is not pinned flows around a silent
	// node: 2 s on a quiet machine, and before the 30 s of the dead on any.
	aroundLimit = 20 * time.Second
	// rpcBlocked is above the 30 s after which a silent member is dead, so that
	// passes are made in which the leader has heard nobody.
	rpcBlocked = 40 * time.Second
	// leaseTime is above every cut, so that no ack comes too late. What a consume had
	// leased when its answer was cut off comes again after it.
	leaseTime = 30 * time.Second
	// staggered is above the 5 s of a heartbeat: one member is silent before all others.
	staggered = 6 * time.Second
	// healLimit is how long a node may take to be one of the cluster again: above
	// the longest backoff between tries of a connection.
	healLimit = 30 * time.Second
)

// TestNetworkCuts cuts nodes of one cluster off from each other, in turn, under a
// steady load, and lets the ledger judge at the end. Packets vanish: nothing is
// refused and no connection is closed.
func TestNetworkCuts(t *testing.T) {
	t.Parallel()
	underLoad(t, 2, func(c *cuts) {
		t.Run("leader", func(t *testing.T) { c.leaderCutOff(t) })
		t.Run("follower", func(t *testing.T) { c.followerCutOff(t) })
		t.Run("majority", func(t *testing.T) { c.nobodyHasAMajority(t) })
		t.Run("storage", func(t *testing.T) { c.storageCutOff(t) })
		t.Run("gateway", func(t *testing.T) { c.gatewayCutOff(t) })
	})
}

// TestLeaderHearsNobody is a one-way cut: nothing reaches the leader's RPC port.
func TestLeaderHearsNobody(t *testing.T) {
	t.Parallel()
	underLoad(t, 3, func(c *cuts) { c.leaderHearsNobody(t) })
}

// underLoad starts a cluster and a steady load, runs the cuts, and judges: nobody
// died and the ledger is even.
func underLoad(t *testing.T, storageNodes int, run func(c *cuts)) {
	t.Helper()
	n := harness.StartNet(t, harness.Options{Voters: 3, StorageNodes: storageNodes, Gateways: 2})
	c := cuts{t: t, n: n, cl: netClient(t, n.URLs()...), ledger: harness.NewLedger()}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	c.ctx = ctx
	for _, name := range []string{"load", "early", "around", "pinned", "alone"} {
		create(ctx, t, c.cl, client.TopicSpec{Name: name, Partitions: 4, VisibilityTimeoutMS: leaseTime.Milliseconds()})
	}
	w := harness.Load{Client: c.cl, Topic: "load", Ledger: c.ledger}
	running := w.Start(ctx, t, 2, 40*time.Millisecond, 2)
	watching, stopWatching := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { c.nobodyDies(watching) })
	defer func() { // also when run gives up
		running.End()
		stopWatching()
		watch.Wait()
	}()

	run(&c)

	running.StopProducing()
	stopWatching()
	watch.Wait()
	running.Drain(ctx, t, leaseTime+healLimit)
	running.End()
	c.ledger.Judge(t, func(_, _ time.Time) bool { return false }) // no program died, and a lease that ran out had never been seen
}

// cuts is the cluster, its load and what has been seen.
type cuts struct {
	t      *testing.T
	n      *harness.Net
	cl     *client.Client
	ctx    context.Context
	ledger *harness.Ledger
}

func netClient(t *testing.T, urls ...string) *client.Client {
	t.Helper()
	cl, err := client.New(client.Config{URLs: urls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// nobodyDies looks every second, at both gateways, until ctx ends.
func (c *cuts) nobodyDies(ctx context.Context) {
	var each []*client.Client
	for _, u := range c.n.URLs() {
		each = append(each, netClient(c.t, u))
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, cl := range each {
			one, cancel := context.WithTimeout(ctx, 20*time.Second)
			got, err := cl.Members(one)
			cancel()
			if err != nil {
				if ctx.Err() == nil {
					c.t.Errorf("the members cannot be read: %v", err)
				}
				continue
			}
			for _, m := range got.Members {
				if m.Status == "dead" {
					c.t.Errorf("%s says that %s is dead; no cut was that long", got.AnsweredBy, m.ID)
					return
				}
			}
		}
	}
}

// write changes a topic's settings and tells how long it took until one try, of at
// most a second each, was acknowledged.
func (c *cuts) write(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	var last error
	if err := harness.Until(c.ctx, limit, func() bool {
		one, cancel := context.WithTimeout(c.ctx, time.Second)
		defer cancel()
		_, last = c.cl.UpdateTopic(one, "load", retention(int(time.Since(begin).Milliseconds())), "")
		return last == nil
	}); err != nil {
		t.Fatalf("no metadata write was acknowledged within %s: %v; logs in %s", limit, last, c.n.Dir)
	}
	return time.Since(begin)
}

var leading = regexp.MustCompile(`(?m)^narad_controller_leading 1$`)

// leader waits until exactly one voter says that it leads.
func (c *cuts) leader(t *testing.T) (id string) {
	t.Helper()
	if err := harness.Until(c.ctx, healLimit, func() bool {
		count := 0
		for _, v := range c.n.IDs(harness.Voter) {
			if leading.MatchString(c.n.Metrics(v)) {
				id = v
				count++
			}
		}
		return count == 1
	}); err != nil {
		t.Fatalf("not one leader within %s; logs in %s", healLimit, c.n.Dir)
	}
	return id
}

// series is one value of a node's metrics; empty when it does not answer.
func (c *cuts) series(id, name string) string {
	for line := range strings.Lines(c.n.Metrics(id)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// leaderCutOff: the leader alone on its side. The others elect one, writes go on
// through the gateways, the old one stops leading and follows after the heal.
func (c *cuts) leaderCutOff(t *testing.T) {
	old := c.leader(t)
	heal := c.n.Cut(old)
	defer heal()
	took := c.write(t, newLeaderLimit)
	for range 20 {
		c.write(t, newLeaderLimit)
	}
	t.Logf("%s was cut off; the first write was acknowledged after %s", old, took)
	if err := harness.Until(c.ctx, healLimit, func() bool { return c.leader(t) != old }); err != nil {
		t.Errorf("%s still leads, cut off from all", old)
	}
	if c.n.Ready(old) {
		t.Logf("%s is still ready", old)
	}
	heal()
	begin := time.Now()
	c.follows(t, old)
	t.Logf("%s followed again %s after the heal", old, time.Since(begin))
}

// storageCutOff: what is not pinned, and is not behind a batch whose outcome only the
// silent node knows, flows around it; the rest waits, and comes once after the heal.
func (c *cuts) storageCutOff(t *testing.T) {
	const cutOff, records = "storage-2", 30
	pin := c.ledBy(t, "pinned", cutOff)
	c.suspects(t, "0", healLimit) // the leader's cut is over
	heal := c.n.Cut(cutOff)
	defer heal()
	begin := time.Now()
	produceN(c.ctx, t, c.cl, "early", "early", records) // some may be on the way to the silent node: what is behind them waits, too
	for i := range records {
		if _, err := c.cl.Produce(c.ctx, "pinned", client.Message{Payload: fmt.Appendf(nil, "pinned-%d", i), Partition: pin}, client.ProduceOptions{}); err != nil {
			t.Errorf("produce to a partition that is cut off: %v, want 202", err)
		}
	}
	c.suspects(t, "1", aroundLimit)
	suspected := time.Since(begin)
	produceN(c.ctx, t, c.cl, "around", "late", records)
	got := map[string]int{}
	c.drainUntil(t, c.cl, "around", got, func() bool { return len(got) == records })
	around := time.Since(begin)
	t.Logf("both gateways suspected %s after %s; what was produced then was consumed %s later", cutOff, suspected, around-suspected)
	if around > aroundLimit {
		t.Errorf("what was produced around the silent node took %s", around)
	}
	if rest := storageCut - around; rest > 0 {
		<-time.After(rest)
	}
	if r, err := c.cl.Receive(c.ctx, "pinned", client.ReceiveOptions{Max: 10, Wait: client.NoWait}); len(r.Deliveries) > 0 {
		t.Errorf("a pinned message came from elsewhere: %+v", r.Deliveries)
	} else if err != nil {
		t.Logf("consume of what is pinned to a node that is cut off: %v", err)
	}
	heal()
	begin = time.Now()
	pinned := map[string]int{}
	c.drainUntil(t, c.cl, "pinned", pinned, func() bool { return len(pinned) == records })
	early := map[string]int{}
	c.drainUntil(t, c.cl, "early", early, func() bool { return len(early) == records })
	t.Logf("what is pinned, and all else, was consumed %s after the heal", time.Since(begin))
	checkOnce(t, pinned, "pinned", records)
	checkOnce(t, early, "early", records)
	checkOnce(t, got, "late", records)
}

// suspects waits until gossip tells both gateways that so many nodes are silent.
func (c *cuts) suspects(t *testing.T, want string, limit time.Duration) {
	t.Helper()
	for _, g := range c.n.IDs(harness.Gateway) {
		if err := harness.Until(c.ctx, limit, func() bool { return c.series(g, "narad_gossip_suspected") == want }); err != nil {
			t.Errorf("%s suspects %s nodes after %s, want %s", g, c.series(g, "narad_gossip_suspected"), limit, want)
		}
	}
}

// gatewayCutOff: a gateway that reaches nobody accepts, and delivers after the heal.
func (c *cuts) gatewayCutOff(t *testing.T) {
	const records = 30
	heal := c.n.Cut("gateway-2")
	defer heal()
	cl := netClient(t, c.n.URL("gateway-2"))
	// Before it has noticed, and after: every voter and storage node is silent then.
	produceN(c.ctx, t, cl, "alone", "early", records)
	<-time.After(4 * time.Second)
	produceN(c.ctx, t, cl, "alone", "late", records)
	other := netClient(t, c.n.URL("gateway-1"))
	if got, err := other.Receive(c.ctx, "alone", client.ReceiveOptions{Max: 10, Wait: client.NoWait}); err != nil || len(got.Deliveries) > 0 {
		t.Errorf("consume at the other gateway: %d deliveries, %v: the gateway was not cut off", len(got.Deliveries), err)
	}
	heal()
	begin := time.Now()
	got := map[string]int{}
	c.drainUntil(t, other, "alone", got, func() bool { return len(got) == 2*records })
	checkOnce(t, got, "early", records)
	checkOnce(t, got, "late", records)
	t.Logf("what the gateway had accepted was consumed %s after the heal", time.Since(begin))
}

// leaderHearsNobody: heartbeats cannot reach the leader's RPC port, for longer than
// a member may be silent, while Raft goes on. It marks nobody dead and keeps the lead. A
// machine that stands still makes elections of its own, not each time.
func (c *cuts) leaderHearsNobody(t *testing.T) {
	create(c.ctx, t, c.cl, client.TopicSpec{Name: copiesTopic, Partitions: copiesPartitions, ReplicationFactor: 3})
	onceInTime(t, "a blocked RPC port moves no lead", func() (kept bool, figures string) {
		allCopies(c.ctx, t, c.cl)
		return c.hearsNobody(t)
	})
}

// hearsNobody is one try, and tells whether the lead of the metastore and those of the
// partitions stayed.
func (c *cuts) hearsNobody(t *testing.T) (kept bool, figures string) {
	leader := c.leader(t)
	balanced, _ := c.elections(leader)
	late := c.n.Cut("gateway-2") // so that heartbeats do not all end at the same moment
	<-time.After(staggered)
	heal := c.n.CutPort(leader, harness.NetRPCPort)
	defer heal()
	late()
	end := time.After(rpcBlocked)
	led := c.copiesLed(t)
	_, elected := c.elections(leader)
	accepted := c.ledger.Accepted()
	refusing, commits := false, 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for blocked := true; blocked; {
		select {
		case <-tick.C:
			refusing = refusing || c.series(leader, "narad_dead_marking_refused") == "1"
			if err := c.commit("copied"); err == nil {
				commits++
			}
		case <-end:
			blocked = false
		}
	}
	if got := c.leader(t); got != leader {
		heal()
		c.write(t, healLimit)
		<-time.After(staggered) // the next try begins when all have been heard
		return false, fmt.Sprintf("%s leads instead of %s", got, leader)
	}
	if !refusing {
		t.Error("the leader never refused to mark members dead: this shows nothing")
	}
	if more := c.ledger.Accepted() - accepted; more < 100 {
		t.Errorf("%d messages were accepted meanwhile", more)
	}
	if err := harness.Until(c.ctx, healLimit, func() bool { n, _ := c.ledger.Missing(); return n <= 200 }); err != nil {
		n, example := c.ledger.Missing()
		t.Errorf("%d accepted messages wait, e.g. %q: records do not pass the leader", n, example)
	}
	if commits < 10 {
		t.Errorf("%d messages were committed meanwhile: partitions need no leader of the metastore", commits)
	}
	ledNow := c.copiesLed(t)
	_, now := c.elections(leader)
	heal()
	t.Logf("%d messages were committed meanwhile; a metadata write was acknowledged %s after the heal", commits, c.write(t, healLimit))
	if err := harness.Until(c.ctx, healLimit, func() bool { return c.series(leader, "narad_dead_marking_refused") == "0" }); err != nil {
		t.Errorf("%s still refuses %s after the heal", leader, healLimit)
	}
	<-time.After(staggered) // all have been heard once more; until then nobody may die
	if now != elected {
		return false, fmt.Sprintf("%d elections of partitions, there were %d: no leader was lost", now, elected)
	}
	// Leaderships that are evened out go elsewhere, also when nobody is lost.
	if now, _ := c.elections(leader); now == balanced && !maps.Equal(led, ledNow) {
		t.Errorf("partitions were led by %v and then by %v", led, ledNow)
	} else {
		t.Logf("%d leaderships were evened out", now-balanced)
	}
	return true, "all stayed"
}

// copiesLed tells who leads each partition of the topic with three copies, and under
// which epoch, as the gateway that is never cut off has it.
func (c *cuts) copiesLed(t *testing.T) map[uint32]string {
	t.Helper()
	cl := netClient(t, c.n.URL("gateway-1"))
	led := map[uint32]string{}
	if err := harness.Until(c.ctx, healLimit, func() bool {
		clear(led)
		got, err := cl.Topic(c.ctx, copiesTopic)
		if err != nil {
			return false
		}
		for _, p := range got.PartitionDetails {
			if p.Leader != nil && p.LeaderEpoch != nil {
				led[p.Index] = fmt.Sprintf("%s under %d", *p.Leader, *p.LeaderEpoch)
			}
		}
		return len(led) == copiesPartitions
	}); err != nil {
		t.Fatalf("not all partitions have a leader within %s: %v; logs in %s", healLimit, led, c.n.Dir)
	}
	return led
}

// elections counts those of partition leaders that a voter has run, by whether they only
// evened leaderships out.
func (c *cuts) elections(id string) (balanced, others int) {
	var text string
	if err := harness.Until(c.ctx, healLimit, func() bool { text = c.n.Metrics(id); return text != "" }); err != nil {
		c.t.Errorf("%s does not tell its elections within %s", id, healLimit)
	}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 || !strings.HasPrefix(fields[0], "narad_elections_total{") {
			continue
		}
		count, err := strconv.Atoi(fields[1])
		if err != nil {
			c.t.Errorf("the elections of %s: %q", id, line)
		}
		if strings.Contains(fields[0], `"balance"`) {
			balanced += count
		} else {
			others += count
		}
	}
	return balanced, others
}

// commit makes one committed produce to the topic with three copies.
func (c *cuts) commit(text string) error {
	one, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	_, err := c.cl.Produce(one, copiesTopic, client.Message{Payload: []byte(text)}, client.ProduceOptions{Committed: true})
	return err
}

// ledBy finds a partition of a topic that a node leads.
func (c *cuts) ledBy(t *testing.T, topic, node string) *uint32 {
	t.Helper()
	got, err := c.cl.Topic(c.ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range got.PartitionDetails {
		if p.Leader != nil && *p.Leader == node {
			return client.Pin(p.Index)
		}
	}
	t.Fatalf("%s leads no partition of %s: %+v", node, topic, got.PartitionDetails)
	return nil
}

// drainUntil receives and acks into got until enough says so, repeating what fails or
// is empty: what was accepted comes, one day.
func (c *cuts) drainUntil(t *testing.T, cl *client.Client, topic string, got map[string]int, enough func() bool) {
	t.Helper()
	if err := harness.Until(c.ctx, leaseTime+healLimit, func() bool {
		if enough() {
			return true
		}
		begin := time.Now()
		r, err := cl.Receive(c.ctx, topic, client.ReceiveOptions{Max: 100, Wait: time.Second})
		if took := time.Since(begin); took > 4*time.Second {
			t.Logf("a consume of %s that waits 1 s was answered after %s: %d deliveries, %v", topic, took, len(r.Deliveries), err)
		}
		if err != nil {
			return false
		}
		for _, d := range r.Deliveries {
			got[string(d.Payload)]++
			begin := time.Now()
			if err := cl.Ack(c.ctx, topic, d.ReceiptHandle); err != nil {
				t.Errorf("ack: %v", err)
			}
			if took := time.Since(begin); took > 4*time.Second {
				t.Logf("an ack of %s took %s", d.ID, took)
			}
		}
		return enough()
	}); err != nil {
		t.Fatalf("%d different messages of %s came within %s; logs in %s", len(got), topic, leaseTime+healLimit, c.n.Dir)
	}
}

func checkOnce(t *testing.T, got map[string]int, prefix string, n int) {
	t.Helper()
	for i := range n {
		if s := fmt.Sprintf("%s-%d", prefix, i); got[s] != 1 {
			t.Errorf("%s came %d times", s, got[s])
		}
	}
}
