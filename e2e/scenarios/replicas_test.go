//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	copiesTopic      = "copies"
	copiesPartitions = 6
	// recovered is how long a partition may take to have all its copies again, on a
	// machine that does much else. A node that comes back under its old id with another
	// disk is let in when its old self is dead, after 30 s.
	recovered = 2 * time.Minute
	// elected is how long a partition whose leader is cut off may commit nothing: 3 s
	// until the leader falls silent, and an election.
	elected = 25 * time.Second
	// paused is long enough for elections, and shorter than the death of a member.
	paused = 20 * time.Second
)

// withCopies runs a test under a steady load on a topic with three copies, and lets
// the ledger judge: nothing is lost, what comes twice had been leased when its leader
// changed, and whatever was delivered or committed, by whichever leader, is in the log in
// the end, where it was said to be and as it was.
func withCopies(ctx context.Context, t *testing.T, cl *client.Client, run func(w harness.Load)) {
	t.Helper()
	create(ctx, t, cl, client.TopicSpec{Name: copiesTopic, Partitions: copiesPartitions, ReplicationFactor: 3, VisibilityTimeoutMS: leaseTime.Milliseconds()})
	allCopies(ctx, t, cl)
	w := harness.Load{Client: cl, Topic: copiesTopic, Ledger: harness.NewLedger()}
	running := w.Start(ctx, t, 2, 40*time.Millisecond, 2)
	defer running.End() // also when run gives up
	run(w)
	running.Drain(ctx, t, leaseTime+healLimit)
	running.End()
	w.Ledger.Judge(t, func(_, _ time.Time) bool { return true })
	w.Ledger.Stored(ctx, t, cl, copiesTopic)
}

// allCopies waits until every partition has a leader and three copies in sync.
func allCopies(ctx context.Context, t *testing.T, cl *client.Client) {
	t.Helper()
	begin := time.Now()
	var last client.TopicDetails
	if err := harness.Until(ctx, recovered, func() bool {
		var err error
		last, err = cl.Topic(ctx, copiesTopic)
		if err != nil || len(last.PartitionDetails) != copiesPartitions {
			return false
		}
		for _, p := range last.PartitionDetails {
			in := 0
			for _, r := range p.Replicas {
				if r.InSync != nil && *r.InSync {
					in++
				}
			}
			if p.Leader == nil || in != 3 {
				return false
			}
		}
		return true
	}); err != nil {
		t.Fatalf("not all copies are in sync after %s: %+v", recovered, last.PartitionDetails)
	}
	t.Logf("all copies were in sync after %s", time.Since(begin))
}

// copyLeader is who leads a partition now, and under which epoch.
func copyLeader(ctx context.Context, t *testing.T, cl *client.Client, p uint32) (id string, epoch uint64) {
	t.Helper()
	return awaitCopyLeader(ctx, t, cl, p, func(string, uint64) bool { return true })
}

// awaitReplaced waits until another one leads under a later epoch: a commit through one
// gateway shows nothing of what the other one has heard of yet.
func awaitReplaced(ctx context.Context, t *testing.T, cl *client.Client, p uint32, old string, before uint64) {
	t.Helper()
	awaitCopyLeader(ctx, t, cl, p, func(id string, epoch uint64) bool { return id != old && epoch > before })
}

// awaitCopyLeader waits until a partition has a leader that is one of those wanted.
func awaitCopyLeader(ctx context.Context, t *testing.T, cl *client.Client, p uint32, wanted func(id string, epoch uint64) bool) (id string, epoch uint64) {
	t.Helper()
	if err := harness.Until(ctx, healLimit, func() bool {
		got, err := cl.Topic(ctx, copiesTopic)
		if err != nil {
			return false
		}
		for _, d := range got.PartitionDetails {
			if d.Index == p && d.Leader != nil && d.LeaderEpoch != nil {
				id, epoch = *d.Leader, *d.LeaderEpoch
				return wanted(id, epoch)
			}
		}
		return false
	}); err != nil {
		t.Fatalf("partition %d: %q leads under epoch %d after %s, which is not what was to come", p, id, epoch, healLimit)
	}
	return id, epoch
}

// commits produces committed messages to a partition until one succeeds, and tells
// how long that took.
func commits(ctx context.Context, t *testing.T, w harness.Load, p uint32, limit time.Duration) time.Duration {
	t.Helper()
	begin := time.Now()
	var last error
	if err := harness.Until(ctx, limit, func() bool {
		one, cancel := context.WithTimeout(ctx, 4*time.Second)
		defer cancel()
		text := fmt.Sprintf("probe-%d", time.Now().UnixNano())
		w.Ledger.Sending(text)
		last = commitOne(one, w, text, p, 3*time.Second)
		return last == nil
	}); err != nil {
		t.Fatalf("nothing was committed to partition %d within %s: %v", p, limit, last)
	}
	return time.Since(begin)
}

// commitOne makes one committed produce to a partition; the ledger has what came of it,
// and where a leader says that it lies.
func commitOne(ctx context.Context, w harness.Load, text string, p uint32, limit time.Duration) error {
	w.Ledger.Sending(text)
	r, err := w.Client.Produce(ctx, copiesTopic, client.Message{Payload: []byte(text), Partition: client.Pin(p)}, client.ProduceOptions{Committed: true, Timeout: limit})
	w.Ledger.Produced(err, text)
	if err == nil {
		w.Ledger.Committed(r, text)
	}
	return err
}

// commitsOn goes on committing to a partition, whoever leads it and whatever becomes of
// it, until the function that it returns is called: what one leader answers while it is
// cut off or replaced is held against what is stored in the end.
func commitsOn(ctx context.Context, w harness.Load, p uint32) (end func()) {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			harness.Every(ctx, 20*time.Millisecond, func(n int) {
				one, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_ = commitOne(one, w, fmt.Sprintf("on-%d-%d-%d", time.Now().UnixNano(), i, n), p, time.Second)
			})
		})
	}
	return func() { stop(); all.Wait() }
}

// TestReplicaLosesItsDisk: a node loses the directory of its topics while it is down,
// another one its whole disk; each is let in again, gets everything again, and counts.
// Then a leader is paused for longer than anybody waits, and goes on.
func TestReplicaLosesItsDisk(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	cl, ctx := connect(t, c)
	withCopies(ctx, t, cl, func(w harness.Load) {
		for id, lost := range map[string]string{"storage-1": "topics", "storage-2": ""} {
			pid := c.Node(id).PID
			c.Hold(id)
			c.Kill(id)
			if err := os.RemoveAll(filepath.Join(c.Dir, id, lost)); err != nil {
				t.Fatal(err)
			}
			c.Free(id)
			begin := time.Now()
			c.WaitReady(id, pid)
			t.Logf("%s was ready again %s after it had lost %q", id, time.Since(begin), filepath.Join(id, lost))
			allCopies(ctx, t, cl)
		}
		pausedLeader(ctx, t, c, w)
	})
}

// pausedLeader stops a leader's process without ending it: another one is elected;
// the old one, when it goes on, finds out before it commits or serves anything.
func pausedLeader(ctx context.Context, t *testing.T, c *harness.Cluster, w harness.Load) {
	t.Helper()
	old, epoch := copyLeader(ctx, t, w.Client, 0)
	goOn := c.Freeze(old)
	defer goOn()
	defer commitsOn(ctx, w, 0)() // also to the old one, when it goes on
	rest := time.After(paused)
	t.Logf("a commit succeeded %s after the leader was paused", commits(ctx, t, w, 0, elected))
	awaitReplaced(ctx, t, w.Client, 0, old, epoch)
	<-rest
	goOn()
	allCopies(ctx, t, w.Client)
}

// TestReplicasCutOff cuts the leader of a partition off, in three ways.
func TestReplicasCutOff(t *testing.T) {
	t.Parallel()
	n := harness.StartNet(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	cl := netClient(t, n.URLs()...)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	withCopies(ctx, t, cl, func(w harness.Load) {
		t.Run("from one follower", func(t *testing.T) {
			stays(ctx, t, w, 4*time.Second, func(leader string) (heal func()) { return n.CutBetween(leader, otherStorage(n, leader)[0]) })
		})
		t.Run("from the voters", func(t *testing.T) {
			stays(ctx, t, w, storageCut, func(leader string) (heal func()) { return n.CutBetween(leader, n.IDs(harness.Voter)...) })
		})
		t.Run("from its followers", func(t *testing.T) {
			old, epoch := copyLeader(ctx, t, cl, 0)
			heal := n.CutBetween(old, otherStorage(n, old)...)
			defer heal()
			defer commitsOn(ctx, w, 0)() // the old one is still asked, and must commit nothing: none of it would be stored
			t.Logf("a commit succeeded %s after the cut", commits(ctx, t, w, 0, elected))
			awaitReplaced(ctx, t, cl, 0, old, epoch) // whom nobody follows
			heal()
			allCopies(ctx, t, cl)
		})
	})
}

// stays cuts a leader off and checks that it goes on committing for a while. A machine that
// stands still makes elections of its own, and leaderships are evened out: not each time.
func stays(ctx context.Context, t *testing.T, w harness.Load, d time.Duration, cut func(leader string) (heal func())) {
	t.Helper()
	for try := 1; ; try++ {
		leader, epoch := copyLeader(ctx, t, w.Client, 0)
		heal := cut(leader)
		defer heal()
		slowest := time.Duration(0)
		for end := time.Now().Add(d); time.Now().Before(end); {
			slowest = max(slowest, commits(ctx, t, w, 0, elected))
		}
		now, e := copyLeader(ctx, t, w.Client, 0)
		t.Logf("the slowest commit took %s; %s led under epoch %d before, %s under %d after", slowest, leader, epoch, now, e)
		heal()
		allCopies(ctx, t, w.Client)
		if now == leader && e == epoch {
			return
		}
		if try == rejoins {
			t.Errorf("%d times another one led, or under another epoch, although the leader could go on", try)
			return
		}
	}
}

func otherStorage(n *harness.Net, not string) (ids []string) {
	for _, id := range n.IDs(harness.Storage) {
		if id != not {
			ids = append(ids, id)
		}
	}
	return ids
}
