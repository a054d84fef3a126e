//go:build e2e

package scenarios

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// killFor is how long moves are interrupted.
	killFor = 10 * time.Second
	// killRate is messages a second meanwhile.
	killRate = 500
)

// TestMovesInterrupted: source, destination and controller are killed at random
// moments of moves; one topic is deleted and created anew in the middle of one; a
// partition moves away and back; the topic grows; a storage node is added. Nothing is
// lost, everything comes to rest, and no copy is left where none belongs.
func TestMovesInterrupted(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 4, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	var kills struct {
		sync.Mutex
		at []time.Time
	}
	var ends []func()
	for name, factor := range map[string]int{"lone": 1, "safe": 3} {
		if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: 1, ReplicationFactor: factor, VisibilityTimeoutMS: 60_000}); err != nil {
			t.Fatal(err)
		}
		f := newFlow(cl, name)
		ends = append(ends, f.start(ctx, t, killRate, func(time.Time, time.Time) bool { return true })) // moves and kills all the time
	}
	n := 0
	for until := time.Now().Add(killFor); time.Now().Before(until); n++ {
		name := []string{"lone", "safe"}[n%2]
		var have []string
		var from string
		if err := harness.Until(ctx, moveLimit, func() bool { have, from = replicasOf(ctx, cl, name, 0); return from != "" }); err != nil {
			t.Fatalf("%s has no leader; logs in %s", name, c.Dir)
		}
		to := otherNode(c, have)
		if _, err := cl.StartMove(ctx, name, 0, from, to); err != nil {
			t.Logf("start of a move of %s from %s to %s: %v", name, from, to, err)
			continue
		}
		<-time.After(time.Duration(random.IntN(700)) * time.Millisecond)
		victim := []string{from, to, leadingVoter(ctx, cl)}[random.IntN(3)]
		if victim == "" {
			continue
		}
		kills.Lock()
		kills.at = append(kills.at, time.Now())
		kills.Unlock()
		old := c.Node(victim).PID
		c.Kill(victim)
		c.WaitReady(victim, old)
	}
	atRest(ctx, t, c, cl, 2*time.Minute)
	t.Logf("%d moves, %d kills", n, len(kills.at))

	recreateInTheMiddle(ctx, t, c, cl)
	partitions := 4
	if _, err := cl.UpdateTopic(ctx, "lone", client.TopicChange{Partitions: &partitions}, ""); err != nil {
		t.Errorf("growth: %v", err)
	}
	for _, end := range ends {
		end()
	}
	if d, err := cl.Topic(ctx, "lone"); err != nil || len(d.PartitionDetails) != 4 {
		t.Errorf("after the growth: %d partitions, %v", len(d.PartitionDetails), err)
	}
	scaledOut(ctx, t, c)
}

func leadingVoter(ctx context.Context, cl *client.Client) string {
	q, err := cl.Quorum(ctx)
	if err != nil || q.LeaderID == nil {
		return ""
	}
	return *q.LeaderID
}

// recreateInTheMiddle deletes a topic that moves and creates it again: the new one
// has nothing of the old one and moves away and back.
func recreateInTheMiddle(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client) {
	t.Helper()
	spec := client.TopicSpec{Name: "again", Partitions: 1}
	if _, err := cl.CreateTopic(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.Produce(ctx, "again", client.Message{Payload: []byte("old")}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	var from string
	_ = harness.Until(ctx, moveLimit, func() bool { _, from = replicasOf(ctx, cl, "again", 0); return from != "" })
	if _, err := cl.StartMove(ctx, "again", 0, from, otherNode(c, []string{from})); err != nil {
		t.Fatal(err)
	}
	if err := cl.DeleteTopic(ctx, "again", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.CreateTopic(ctx, spec); err != nil {
		t.Fatal(err)
	}
	atRest(ctx, t, c, cl, moveLimit)
	if _, err := cl.Produce(ctx, "again", client.Message{Payload: []byte("new")}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	first, there, _, _ := moveLeader(ctx, t, c, cl, "again")
	if _, err := cl.StartMove(ctx, "again", 0, there, first); err != nil {
		t.Fatal(err)
	}
	atRest(ctx, t, c, cl, moveLimit)
	if _, leader := replicasOf(ctx, cl, "again", 0); leader != first {
		t.Errorf("moved away and back it is led by %q, not %s", leader, first)
	}
	got, err := cl.Receive(ctx, "again", client.ReceiveOptions{Max: 10, Wait: 10 * time.Second})
	if err != nil || len(got.Deliveries) != 1 || string(got.Deliveries[0].Payload) != "new" {
		t.Errorf("of the new life came %+v, %v", got, err)
	}
}

// scaledOut starts the cluster with one storage node more, which gets its share, and
// waits until no node has a copy that it does not hold.
func scaledOut(ctx context.Context, t *testing.T, c *harness.Cluster) {
	t.Helper()
	c.Restart(harness.Options{Voters: 3, StorageNodes: 5, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := harness.Until(ctx, 2*time.Minute, func() bool {
		m, err := cl.Member(ctx, "storage-5")
		return err == nil && m.Replicas != nil && *m.Replicas > 0
	}); err != nil {
		t.Errorf("the new storage node got nothing; logs in %s", c.Dir)
	}
	atRest(ctx, t, c, cl, time.Minute)
	for _, id := range c.IDs(harness.Storage) { // the sweep at a start comes sooner than the next one
		old := c.Node(id).PID
		c.Kill(id)
		c.WaitReady(id, old)
	}
	var left []string
	if err := harness.Until(ctx, 90*time.Second, func() bool { left = strayCopies(ctx, t, c, cl); return len(left) == 0 }); err != nil {
		t.Errorf("copies that nobody holds: %v; in %s", left, c.Dir)
	}
}

// strayCopies lists directories of partitions on nodes that have no replica of them.
func strayCopies(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client) (out []string) {
	t.Helper()
	for _, name := range []string{"safe", "again"} { // nothing is written to them: only the leaders' epochs prove anything
		nodes, leader := replicasOf(ctx, cl, name, 0)
		if leader == "" {
			return []string{name + " has no leader"}
		}
		dirs, err := filepath.Glob(filepath.Join(c.Dir, "storage-*", "topics", name, "p00000*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dirs {
			node := strings.Split(strings.TrimPrefix(d, c.Dir+"/"), "/")[0]
			if !slices.Contains(nodes, node) {
				out = append(out, d)
			}
		}
		if name == "again" { // a lone copy that restarts proves itself with its next record
			if _, err := cl.Produce(ctx, name, client.Message{Payload: []byte("x")}, client.ProduceOptions{}); err != nil {
				t.Logf("produce: %v", err)
			}
		}
	}
	return out
}
