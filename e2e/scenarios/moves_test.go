//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// moveLimit is far above what a move of a small partition takes.
	moveLimit = 60 * time.Second
	// moveRate is messages a second on the partition that moves.
	moveRate = 5000
	// moveBatch is how many of them are produced at once.
	moveBatch = 100
	// moveMedian is what consumers wait in the median of moves; a quiet machine takes
	// 30 to 80 ms. moveWorst is a bound for one that does much else; the goal is 1 s.
	moveMedian, moveWorst = time.Second, 10 * time.Second
	// leaderLease is how long a leader may stand still before another one is elected.
	leaderLease = 3 * time.Second
)

// flow produces and consumes one topic with a ledger, and notes when something came.
type flow struct {
	harness.Load
	producer *client.Client // for produces; the load's own for the rest

	mu      sync.Mutex  // guards what follows
	came    []time.Time // of each answer with messages
	refused []string    // what the produces met that were not accepted
	slowest time.Duration
}

func (f *flow) produce(ctx context.Context, rate int) {
	slots := make(chan struct{}, 32) // produces under way: one that waits does not stop the others
	var calls sync.WaitGroup
	defer calls.Wait()
	harness.Every(ctx, time.Second*moveBatch/time.Duration(rate), func(n int) {
		texts, msgs := make([]string, moveBatch), make([]client.Message, moveBatch)
		for i := range texts {
			texts[i] = fmt.Sprintf("%s-%d-%d", f.Topic, n, i)
			msgs[i].Payload = []byte(texts[i])
		}
		slots <- struct{}{}
		calls.Go(func() {
			defer func() { <-slots }()
			f.Ledger.Sending(texts...)
			one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			began := time.Now()
			_, err := f.producer.ProduceBatch(one, f.Topic, msgs, client.ProduceOptions{})
			f.Ledger.Produced(err, texts...)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.slowest = max(f.slowest, time.Since(began))
			if err != nil {
				f.refused = append(f.refused, fmt.Sprintf("at %s, after %s: %v", began.Format(time.StampMilli), time.Since(began), err))
			}
		})
	})
}

// newFlow makes one that consumes by the thousand.
func newFlow(cl *client.Client, topic string) *flow {
	f := &flow{producer: cl}
	f.Load = harness.Load{Client: cl, Topic: topic, Ledger: harness.NewLedger(), Max: 1000, Came: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.came = append(f.came, time.Now())
	}}
	return f
}

// pause is the longest time without a delivery between two moments.
func (f *flow) pause(from, to time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.SortFunc(f.came, time.Time.Compare)
	longest, last := time.Duration(0), from
	for _, at := range f.came {
		if at.After(from) && at.Before(to) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return max(longest, to.Sub(last))
}

// start runs the flow until the function that it returns is called, which waits
// until everything accepted has come, and then lets judge do so.
func (f *flow) start(ctx context.Context, t *testing.T, rate int, judge func()) (end func()) {
	t.Helper()
	producing, stopProducing := context.WithCancel(ctx)
	consuming, stopConsuming := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	producers.Go(func() { f.produce(producing, rate) })
	for range 2 {
		consumers.Go(func() { f.Consume(consuming, t) })
	}
	return func() {
		stopProducing()
		producers.Wait()
		if err := harness.Until(ctx, time.Minute, func() bool { n, _ := f.Ledger.Missing(); return n == 0 }); err != nil {
			n, example := f.Ledger.Missing()
			t.Errorf("%d accepted messages have still not come, e.g. %q", n, example)
		}
		stopConsuming()
		consumers.Wait()
		judge()
	}
}

// replicasOf lists the nodes of a partition and its leader ("": none).
func replicasOf(ctx context.Context, cl *client.Client, name string, partition int) (nodes []string, leader string) {
	d, err := cl.Topic(ctx, name)
	if err != nil || partition >= len(d.PartitionDetails) {
		return nil, ""
	}
	p := d.PartitionDetails[partition]
	for _, r := range p.Replicas {
		nodes = append(nodes, r.ID)
	}
	if p.Leader != nil && len(nodes) > 0 { // else the leader has not told who has a replica
		leader = *p.Leader
	}
	return nodes, leader
}

// otherNode is a storage node that has no replica; "" when none is free: a gateway that
// is behind shows the set of a move that has ended, with one node more.
func otherNode(c *harness.Cluster, have []string) string {
	return otherOf(c.IDs(harness.Storage), have)
}

func otherOf(all, have []string) string {
	var free []string
	for _, id := range all {
		if !slices.Contains(have, id) {
			free = append(free, id)
		}
	}
	if len(free) == 0 {
		return ""
	}
	return free[rand.IntN(len(free))]
}

// atRest waits until nothing moves.
func atRest(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, limit time.Duration) {
	t.Helper()
	var last client.Moves
	if err := harness.Until(ctx, limit, func() bool {
		m, err := cl.Moves(ctx)
		if err == nil {
			last = m
		}
		return err == nil && len(m.Moves) == 0 && m.Waiting == 0
	}); err != nil {
		t.Fatalf("moves do not end within %s: %+v; logs in %s", limit, last, c.Dir)
	}
}

// rebalanceBegins is more than a controller waits, from its election or the arrival of a
// node, before it plans a rebalance.
const rebalanceBegins = 8 * time.Second

// pastRebalance waits until no rebalance is to come: one that a new controller or nodes
// that came have caused takes back what is moved by name.
func pastRebalance(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client) {
	t.Helper()
	busy := time.Now()
	if err := harness.Until(ctx, moveLimit, func() bool {
		if m, err := cl.Moves(ctx); err != nil || len(m.Moves)+m.Waiting > 0 {
			busy = time.Now()
		}
		return time.Since(busy) > rebalanceBegins
	}); err != nil {
		t.Fatalf("a rebalance does not end within %s; logs in %s", moveLimit, c.Dir)
	}
}

// awaitPlaces waits until the first partition of a topic has a leader and a node has no
// replica of it, and answers the replicas, the leader and such a node.
func awaitPlaces(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, name string) (have []string, leader, free string) {
	t.Helper()
	if err := harness.Until(ctx, moveLimit, func() bool {
		have, leader = replicasOf(ctx, cl, name, 0)
		free = otherNode(c, have)
		return leader != "" && free != ""
	}); err != nil {
		t.Fatalf("%s has no leader, or no node is free; logs in %s", name, c.Dir)
	}
	return have, leader, free
}

// beginMove starts to move the replica that leads the first partition to a node that has
// none, and answers the nodes. A start that is refused is tried again, from where the
// partition is then: the voters may elect just then, or it may have moved for balance.
func beginMove(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, name string) (from, to string) {
	t.Helper()
	var last error
	if err := harness.Until(ctx, moveLimit, func() bool {
		_, from, to = awaitPlaces(ctx, t, c, cl, name)
		if _, last = cl.StartMove(ctx, name, 0, from, to); last == nil {
			return true
		}
		m, err := cl.Moves(ctx) // it may have begun and not been answered
		return err == nil && slices.ContainsFunc(m.Moves, func(x client.Move) bool { return x.Topic == name && x.From == from && x.To == to })
	}); err != nil {
		t.Fatalf("a move of %s from %s to %s does not begin: %v", name, from, to, last)
	}
	return from, to
}

// awaitOn waits until a node has one of the replicas of the first partition, of which
// there are as many as the topic's factor, and until then starts to move one there: the
// one on from, or the one that leads when there is none on from any more.
func awaitOn(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, name string, factor int, from, to string) {
	t.Helper()
	var have []string
	var leader string
	var last error
	if err := harness.Until(ctx, moveLimit, func() bool {
		m, err := cl.Moves(ctx)
		if err != nil || slices.ContainsFunc(m.Moves, func(x client.Move) bool { return x.Topic == name }) {
			return false
		}
		have, leader = replicasOf(ctx, cl, name, 0) // may be behind
		switch {
		case leader == "":
		case slices.Contains(have, to):
			return len(have) == factor
		case slices.Contains(have, from):
			_, last = cl.StartMove(ctx, name, 0, from, to)
		default:
			_, last = cl.StartMove(ctx, name, 0, leader, to)
		}
		return false
	}); err != nil {
		t.Fatalf("%s does not move from %s to %s and is on %v, led by %q; last refusal %v; logs in %s", name, from, to, have, leader, last, c.Dir)
	}
}

// moveLeader moves the replica that leads to a node that has none, and waits for
// the end; it answers when it began and ended.
func moveLeader(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, name string) (from, to string, began, ended time.Time) {
	t.Helper()
	awaitPlaces(ctx, t, c, cl, name)
	began = time.Now()
	from, to = beginMove(ctx, t, c, cl, name)
	if err := harness.Until(ctx, moveLimit, func() bool {
		m, err := cl.Moves(ctx)
		return err == nil && !slices.ContainsFunc(m.Moves, func(m client.Move) bool { return m.Topic == name })
	}); err != nil {
		m, _ := cl.Moves(ctx)
		t.Fatalf("the move of %s from %s to %s does not end: %+v; logs in %s", name, from, to, m, c.Dir)
	}
	return from, to, began, time.Now()
}

// TestMovesUnderLoad: a partition of one copy and one of three move again and again
// at 5,000 messages a second each; every produce is accepted at its first try, nothing is
// lost, and consumers notice an election. NARAD_E2E_MOVES sets the number of moves of each.
func TestMovesUnderLoad(t *testing.T) {
	runs := 4
	if s := os.Getenv("NARAD_E2E_MOVES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		runs = n
	}
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 4, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	once, err := client.New(client.Config{URLs: c.URLs(), Retry: client.Retry{Attempts: 1}}) // hides no refusal
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute+time.Duration(runs)*20*time.Second)
	defer cancel()
	longest := time.Duration(0) // that consumers waited
	for _, kind := range []struct {
		name   string
		factor int
	}{{"lone", 1}, {"safe", 3}} {
		create(ctx, t, cl, client.TopicSpec{Name: kind.name, Partitions: 1, ReplicationFactor: kind.factor, VisibilityTimeoutMS: 60_000})
		f := newFlow(cl, kind.name)
		f.producer = once
		var mu sync.Mutex // guards windows
		var windows [][2]time.Time
		leaders := startWatch(ctx, t, cl, kind.name) // leaderships are evened out between moves, too
		end := f.start(ctx, t, moveRate, func() {
			leaders.end()
			f.Ledger.JudgeRepeats(t, func(r harness.Repeat) string {
				mu.Lock()
				defer mu.Unlock()
				if slices.ContainsFunc(windows, func(w [2]time.Time) bool { return w[1].After(r.Since.Add(-time.Second)) && w[0].Before(r.At) }) {
					return "it moved"
				}
				return leaders.reason(kind.name, r)
			})
		})
		onceInTime(t, kind.name+": consumers wait in the median", func() (kept bool, figures string) {
			var pauses, took []time.Duration
			for range runs {
				from, to, began, ended := moveLeader(ctx, t, c, cl, kind.name)
				ended = ended.Add(200 * time.Millisecond)
				<-time.After(200 * time.Millisecond)
				mu.Lock()
				windows = append(windows, [2]time.Time{began, ended})
				mu.Unlock()
				var nodes []string
				var leader string
				if err := harness.Until(ctx, 10*time.Second, func() bool { // the gateway's replica may be behind the leader's word
					nodes, leader = replicasOf(ctx, cl, kind.name, 0)
					return slices.Contains(nodes, to) && !slices.Contains(nodes, from) && leader != "" && len(nodes) == kind.factor
				}); err != nil {
					t.Errorf("after a move from %s to %s: on %v, led by %q", from, to, nodes, leader)
				}
				pauses, took = append(pauses, f.pause(began, ended)), append(took, ended.Sub(began))
			}
			slices.Sort(pauses)
			slices.Sort(took)
			if longest = max(longest, pauses[runs-1]); longest > moveWorst {
				t.Errorf("consumers waited %s", longest)
			}
			t.Logf("%s (factor %d), %d moves at %d msg/s: consume pause %s (median), %s (worst); a move took %s (median), %s (worst)",
				kind.name, kind.factor, runs, moveRate, pauses[runs/2], pauses[runs-1], took[runs/2], took[runs-1])
			return pauses[runs/2] < moveMedian, pauses[runs/2].String()
		})
		end()
		f.mu.Lock()
		t.Logf("%s: the slowest produce took %s", kind.name, f.slowest)
		if len(f.refused) > 0 {
			t.Errorf("%d produces were not accepted: %q", len(f.refused), f.refused[:min(len(f.refused), 5)])
		}
		f.mu.Unlock()
		f.Ledger.Stored(ctx, t, cl, kind.name)
	}
	stalled := func(string) bool { return longest >= leaderLease } // the machine did it, to whom is not known
	(&ending{t: t, ctx: ctx, cl: cl, dir: c.Dir, topics: []string{"lone", "safe"}, restart: restarts(c), interrupted: stalled}).clean()
}
