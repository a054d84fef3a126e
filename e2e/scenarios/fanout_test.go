//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	fanoutParent     = "events"
	fanoutPartitions = 3
	fanoutDelay      = 5 * time.Second
	// fanoutKills is how long nodes are killed under load.
	fanoutKills = 20 * time.Second
	// fanoutStamps is how far the stamps of two partitions may be apart: each counts
	// whole milliseconds from where it began.
	fanoutStamps = 5 * time.Millisecond
	// fanoutSlack is how much later than its delay a message may be in a child once
	// nothing fails any more: the time in which every node is back and elected.
	fanoutSlack = 20 * time.Second
)

// TestChildrenUnderKills: a plain child and a delay child get every message of their
// parent once, and none early, while storage nodes and voters are killed. All have
// three copies, so that nothing is rebalanced meanwhile: what is killed in the middle of
// a move is the business of the scenarios of moves.
func TestChildrenUnderKills(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), fanoutKills+3*time.Minute)
	defer cancel()
	no, delay := false, fanoutDelay.Milliseconds()
	specs := []client.TopicSpec{
		{Name: fanoutParent, Partitions: fanoutPartitions, ReplicationFactor: 3, Reroute: &no},
		{Name: "plain", Parent: fanoutParent, ReplicationFactor: 3},
		{Name: "later", Parent: fanoutParent, ReplicationFactor: 3, DelayMS: &delay},
	}
	for i, spec := range specs {
		// The parent's first leaders are elected a moment after it was created.
		err := harness.Until(ctx, 20*time.Second, func() bool {
			_, _, err := cl.CreateTopicIfAbsent(ctx, spec)
			return err == nil
		})
		if err != nil {
			t.Fatalf("create topic %d: %v", i, err)
		}
	}

	w := load{cl, fanoutParent, newLedger()}
	producing, stop := context.WithCancel(ctx)
	var producers sync.WaitGroup
	for i := range 6 { // 3.25 messages each 65 ms: about 300 a second
		producers.Go(func() { w.produce(producing, fmt.Sprintf("p%d", i), 65*time.Millisecond) })
	}
	killInTurn(t, c, random, []string{harness.Storage, harness.Voter}, fanoutKills)
	stop()
	producers.Wait()

	begin := time.Now()
	var standing string
	err = harness.Until(ctx, fanoutDelay+fanoutSlack, func() bool {
		standing = behindOf(ctx, cl)
		return standing == "" && len(w.ledger.lackedBy(ctx, cl, fanoutParent)) == 0
	})
	if err != nil {
		t.Errorf("overdue %v after the last fault: %s; data in %s", time.Since(begin), standing, c.Dir)
	}
	t.Logf("all copied %v after the last fault", time.Since(begin))
	parent := contentsOf(ctx, t, cl, fanoutParent)
	for child, delay := range map[string]time.Duration{"plain": 0, "later": fanoutDelay} {
		compareChild(t, child, parent, contentsOf(ctx, t, cl, child), delay)
	}
}

// everything replays all partitions of a topic.
func everything(ctx context.Context, cl *client.Client, name string) iter.Seq2[client.Record, error] {
	return func(yield func(client.Record, error) bool) {
		for p := range fanoutPartitions {
			for r, err := range cl.Replay(ctx, name, client.ReplayOptions{Partition: uint32(p)}) {
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// behindOf tells which children are behind; "" when none is.
func behindOf(ctx context.Context, cl *client.Client) string {
	list, err := cl.Children(ctx, fanoutParent)
	if err != nil {
		return err.Error()
	}
	var behind []string
	for _, ch := range list {
		if ch.Partial || ch.LagMessages > 0 || ch.DroppedMessages > 0 {
			behind = append(behind, fmt.Sprintf("%+v", ch))
		}
	}
	return strings.Join(behind, "; ")
}

// lackedBy lists accepted messages that a topic does not have.
func (l *ledger) lackedBy(ctx context.Context, cl *client.Client, name string) (missing []string) {
	have := map[string]bool{}
	for r, err := range everything(ctx, cl, name) {
		if err != nil {
			return []string{err.Error()}
		}
		have[string(r.Payload)] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for text := range l.accepted {
		if !have[text] {
			missing = append(missing, text)
		}
	}
	return missing
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
	for text, at := range parent {
		got := child[text]
		switch {
		case len(got) < len(at):
			lost++
		case len(got) > len(at):
			more++
		}
		if len(got) > 0 && got[0].Before(at[0].Add(delay-fanoutStamps)) {
			early++
		}
	}
	for text := range child {
		if parent[text] == nil {
			t.Errorf("%s has %q, which its parent does not have", name, text)
		}
	}
	t.Logf("%s: %d messages, %d lost, %d more than once, %d early", name, len(child), lost, more, early)
	if lost+more+early > 0 {
		t.Errorf("%s: %d lost, %d more than once, %d early", name, lost, more, early)
	}
}
