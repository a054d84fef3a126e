//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	fanoutParent     = "events"
	fanoutPartitions = 3
	fanoutDelay      = 5 * time.Second
	fanoutVisibility = 10 * time.Second
	// fanoutKills is how long nodes are killed one by one under load.
	fanoutKills = 15 * time.Second
	// fanoutRounds is how often each two of three nodes are killed at once.
	fanoutRounds = 3
	// fanoutStamps is how far the stamps of two partitions may be apart: each counts
	// whole milliseconds from where it began.
	fanoutStamps = 5 * time.Millisecond
	// fanoutSlack is how much later than its visibility and its delay a message may come
	// once nothing fails any more: the time in which every node is back and elected.
	fanoutSlack = 40 * time.Second
	// fanoutBefore is of load before the first fault, and after the last one: so much
	// that every cursor has moved, and that something waits for its delay.
	fanoutBefore = 2 * time.Second
)

// fanoutDelays are the children, by name.
var fanoutDelays = map[string]time.Duration{"plain": 0, "later": fanoutDelay}

// TestChildrenUnderKills: storage nodes and voters are killed one by one, in random
// order: leaders of parents, their followers, leaders of children, the leader of the
// metastore.
func TestChildrenUnderKills(t *testing.T) {
	t.Parallel()
	childrenUnder(t, func(_ context.Context, c *harness.Cluster, _ *client.Client, random *rand.Rand) {
		killInTurn(t, c, random, []string{harness.Storage, harness.Voter}, fanoutKills)
	})
}

// TestChildrenWithoutAMajority: two of three voters, two of three storage nodes, and
// both, are killed at once, three times each. Nothing is committed until one is back.
func TestChildrenWithoutAMajority(t *testing.T) {
	t.Parallel()
	childrenUnder(t, func(_ context.Context, c *harness.Cluster, _ *client.Client, random *rand.Rand) {
		for range fanoutRounds {
			for _, roles := range [][]string{{harness.Voter}, {harness.Storage}, {harness.Voter, harness.Storage}} {
				was := map[string]int{}
				for _, role := range roles {
					ids := c.IDs(role)
					random.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
					for _, id := range ids[:2] {
						was[id] = c.Node(id).PID
					}
				}
				for id := range was {
					c.Hold(id) // so that they are down at the same time
					c.Kill(id)
				}
				for id := range was {
					c.Free(id)
				}
				for id, pid := range was {
					c.WaitReady(id, pid)
				}
			}
		}
	})
}

// TestChildrenUnderARollingRestart: every node is stopped in order and started again,
// one by one. One storage node's directory is copied while it is down, and later, when
// children have got much more, it is killed and comes back with that old copy.
func TestChildrenUnderARollingRestart(t *testing.T) {
	t.Parallel()
	childrenUnder(t, func(ctx context.Context, c *harness.Cluster, cl *client.Client, _ *rand.Rand) {
		const old = "storage-1" // the first one, so that most happens after the copy
		dir, saved := filepath.Join(c.Dir, old), filepath.Join(c.Dir, "saved")
		for _, id := range slices.Concat(c.IDs(harness.Storage), c.IDs(harness.Voter), c.IDs(harness.Gateway)) {
			pid := c.Node(id).PID
			c.Hold(id)
			c.Terminate(id)
			if id == old {
				if err := os.CopyFS(saved, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
			}
			c.Free(id)
			c.WaitReady(id, pid)
		}
		waitInSync(ctx, t, cl, fanoutParent, "plain", "later")

		pid := c.Node(old).PID
		c.Hold(old)
		c.Kill(old)
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(saved, dir); err != nil {
			t.Fatal(err)
		}
		c.Free(old)
		c.WaitReady(old, pid)
		waitInSync(ctx, t, cl, fanoutParent, "plain", "later")
		// It leads again, from what it has now.
		for _, id := range c.IDs(harness.Storage) {
			if id != old {
				pid := c.Node(id).PID
				c.Kill(id)
				c.WaitReady(id, pid)
			}
		}
	})
}

// childrenUnder lets faults happen under 300 messages a second to a parent with a
// plain child and a delay child, all of them consumed. Every message that was accepted
// comes in all three, in the children once and never early, soon after the last fault.
// All have three copies, so that nothing is rebalanced meanwhile: what is killed in the
// middle of a move is the business of the scenarios of moves.
func childrenUnder(t *testing.T, faults func(ctx context.Context, c *harness.Cluster, cl *client.Client, random *rand.Rand)) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	createFamily(ctx, t, cl)

	parent := harness.Load{Client: cl, Topic: fanoutParent, Ledger: harness.NewLedger(), Max: 100}
	running := parent.Start(ctx, t, 6, 65*time.Millisecond, 1) // 3.25 messages each 65 ms: about 300 a second
	defer running.End()
	children := map[string]*harness.Ledger{}
	for name := range fanoutDelays {
		children[name] = harness.NewLedger()
		child := harness.Load{Client: cl, Topic: name, Ledger: children[name], Max: 100}.Start(ctx, t, 0, time.Second, 1)
		defer child.End()
	}
	<-time.After(fanoutBefore)
	faults(ctx, c, cl, rand.New(rand.NewPCG(seed, 0)))
	last := time.Now()
	<-time.After(fanoutBefore)
	running.StopProducing()

	running.Drain(ctx, t, time.Until(last.Add(fanoutVisibility+fanoutSlack)))
	for name, l := range children {
		l.Owe(parent.Ledger)
		limit := time.Until(last.Add(fanoutVisibility + fanoutSlack + fanoutDelays[name]))
		if harness.Until(ctx, limit, func() bool { n, _ := l.Missing(); return n == 0 && behindOf(ctx, cl, name) == "" }) != nil {
			n, example := l.Missing()
			t.Errorf("%s: %d messages are overdue %v after the last fault, e.g. %q; %s; data in %s", name, n, time.Since(last), example, behindOf(ctx, cl, name), c.Dir)
		}
	}
	t.Logf("all had come %v after the last fault", time.Since(last))
	had := contentsOf(ctx, t, cl, fanoutParent)
	always := func(time.Time, time.Time) bool { return true } // leases end with each fault
	parent.Ledger.Judge(t, always)
	for name, l := range children {
		l.Judge(t, always)
		if n, example := l.Early(parent.Ledger, fanoutDelays[name]-fanoutStamps); n > 0 {
			t.Errorf("%s: %d messages were delivered early, e.g. %q", name, n, example)
		}
		compareChild(t, name, had, contentsOf(ctx, t, cl, name), fanoutDelays[name])
	}
}

func createFamily(ctx context.Context, t *testing.T, cl *client.Client) {
	t.Helper()
	no, delay := false, fanoutDelay.Milliseconds()
	for i, spec := range []client.TopicSpec{
		{Name: fanoutParent, Partitions: fanoutPartitions, Reroute: &no},
		{Name: "plain", Parent: fanoutParent},
		{Name: "later", Parent: fanoutParent, DelayMS: &delay},
	} {
		spec.ReplicationFactor, spec.VisibilityTimeoutMS = 3, fanoutVisibility.Milliseconds()
		// The parent's first leaders are elected a moment after it was created.
		err := harness.Until(ctx, 20*time.Second, func() bool {
			_, _, err := cl.CreateTopicIfAbsent(ctx, spec)
			return err == nil
		})
		if err != nil {
			t.Fatalf("create topic %d: %v", i, err)
		}
	}
}

// waitInSync waits until all copies of topics have everything.
func waitInSync(ctx context.Context, t *testing.T, cl *client.Client, names ...string) {
	t.Helper()
	for _, name := range names {
		var last client.TopicDetails
		if harness.Until(ctx, recovered, func() bool {
			var err error
			last, err = cl.Topic(ctx, name)
			return err == nil && inSync(last)
		}) != nil {
			t.Fatalf("not all copies of %s are in sync after %s: %+v", name, recovered, last.PartitionDetails)
		}
	}
}

// inSync tells whether every partition has a leader and all its copies in sync.
func inSync(d client.TopicDetails) bool {
	return len(d.PartitionDetails) > 0 && !slices.ContainsFunc(d.PartitionDetails, func(p client.PartitionDetails) bool {
		return p.Leader == nil || len(p.Replicas) != d.ReplicationFactor ||
			slices.ContainsFunc(p.Replicas, func(r client.Replica) bool { return r.InSync == nil || !*r.InSync })
	})
}

// everything replays all partitions of a topic.
func everything(ctx context.Context, cl *client.Client, name string) iter.Seq2[client.Record, error] {
	return func(yield func(client.Record, error) bool) {
		for p := range fanoutPartitions {
			for r, err := range cl.Replay(ctx, name, client.ReplayOptions{Partition: uint32(p), Confirmed: true}) {
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// behindOf tells how a child is behind; "" when it is not.
func behindOf(ctx context.Context, cl *client.Client, child string) string {
	list, err := cl.Children(ctx, fanoutParent)
	if err != nil {
		return err.Error()
	}
	var behind []string
	for _, ch := range list {
		if ch.Child == child && (ch.Partial || ch.LagMessages > 0 || ch.DroppedMessages > 0) {
			behind = append(behind, fmt.Sprintf("%+v", ch))
		}
	}
	return strings.Join(behind, "; ")
}

// contentsOf is when each message was committed in a topic, by payload.
func contentsOf(ctx context.Context, t *testing.T, cl *client.Client, name string) map[string][]time.Time {
	t.Helper()
	out := map[string][]time.Time{}
	for r, err := range everything(ctx, cl, name) {
		if err != nil {
			t.Fatal(err)
		}
		out[string(r.Payload)] = append(out[string(r.Payload)], r.CommittedAt)
	}
	return out
}

// compareChild holds a child against its parent: every message once, none early.
func compareChild(t *testing.T, name string, parent, child map[string][]time.Time, delay time.Duration) {
	t.Helper()
	lost, more, early := 0, 0, 0
	var late []time.Duration
	for text, at := range parent {
		got := child[text]
		switch {
		case len(got) < len(at):
			lost++
		case len(got) > len(at):
			more++
		}
		if len(got) == 0 {
			continue
		}
		late = append(late, got[0].Sub(at[0])-delay)
		if late[len(late)-1] < -fanoutStamps {
			early++
		}
	}
	for text := range child {
		if parent[text] == nil {
			t.Errorf("%s has %q, which its parent does not have", name, text)
		}
	}
	slices.Sort(late)
	if len(late) == 0 {
		t.Fatalf("%s has nothing", name)
	}
	t.Logf("%s: %d messages, %d lost, %d more than once, %d early; later than its delay by %s (median), %s (worst)",
		name, len(child), lost, more, early, late[len(late)/2], late[len(late)-1])
	if lost+more+early > 0 {
		t.Errorf("%s: %d lost, %d more than once, %d early", name, lost, more, early)
	}
}
