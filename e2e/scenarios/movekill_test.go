//go:build e2e

package scenarios

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// killFor is how long moves are interrupted; NARAD_E2E_MOVEKILL_SECONDS changes it.
	killFor = 12 * time.Second
	// killRate is messages a second of each topic meanwhile.
	killRate = 300
	// frozenFor is longer than the lease of a partition's leader (3 s) and than an
	// election of the metastore, and shorter than the silence that makes a member dead.
	frozenFor = 3500 * time.Millisecond
)

// moveFactors are the topics that move, and their factors.
var moveFactors = map[string]int{"lone": 1, "safe": 3, "wide": 5}

// TestMovesInterrupted: source, destination, controller and another voter are killed or
// frozen in every phase of moves of partitions of one, three and five copies; one moves
// away and back while its first node has not given up the old copy; one topic is
// deleted and created anew in the middle of a move; a topic grows. Nothing is lost, no
// message comes twice without a listed reason, everything comes to rest, and no copy is
// left where none belongs.
func TestMovesInterrupted(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 6, Gateways: 1})
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	names := slices.Sorted(maps.Keys(moveFactors))
	var ends []func()
	for _, name := range names {
		create(ctx, t, cl, client.TopicSpec{Name: name, Partitions: 1, ReplicationFactor: moveFactors[name], VisibilityTimeoutMS: 60_000})
	}
	w := startWatch(ctx, t, cl, names...)
	for _, name := range names {
		f := newFlow(cl, name)
		ends = append(ends, f.start(ctx, t, killRate, func() {
			w.judge(t, name, f.Ledger)
			f.Ledger.Stored(ctx, t, cl, name)
		}))
	}
	m := &interrupted{T: t, ctx: ctx, c: c, cl: cl, watch: w, random: rand.New(rand.NewPCG(seed, 0)), hit: map[string]int{}}
	m.all(names)
	began := time.Now()
	atRest(ctx, t, c, cl, 2*time.Minute)
	t.Logf("at rest %s after the last interruption", time.Since(began).Round(time.Millisecond))
	pastRebalance(ctx, t, c, cl) // of the controllers that led when others were interrupted
	m.awayAndBack("lone")
	m.awayAndBack("safe")
	t.Logf("%d moves, interrupted: %v", m.moves, m.hit)

	recreateInTheMiddle(ctx, t, c, cl)
	t.Logf("created anew in the middle after %s", time.Since(began).Round(time.Millisecond))
	partitions := 4
	if _, err := cl.UpdateTopic(ctx, "lone", client.TopicChange{Partitions: &partitions}, ""); err != nil {
		t.Errorf("growth: %v", err)
	}
	for _, end := range ends {
		end()
	}
	w.end()
	t.Logf("all has come after %s", time.Since(began).Round(time.Millisecond))
	if d, err := cl.Topic(ctx, "lone"); err != nil || len(d.PartitionDetails) != 4 {
		t.Errorf("after the growth: %d partitions, %v", len(d.PartitionDetails), err)
	}
	(&ending{t: t, ctx: ctx, cl: cl, dir: c.Dir, topics: append(names, "again"), restart: restarts(c), interrupted: w.hasCrashed}).clean()
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
	create(ctx, t, cl, spec)
	if _, err := cl.Produce(ctx, "again", client.Message{Payload: []byte("old")}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	beginMove(ctx, t, c, cl, "again")
	if err := cl.DeleteTopic(ctx, "again", ""); err != nil {
		t.Fatal(err)
	}
	create(ctx, t, cl, spec)
	atRest(ctx, t, c, cl, moveLimit)
	if _, err := cl.Produce(ctx, "again", client.Message{Payload: []byte("new")}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	first, there, _, _ := moveLeader(ctx, t, c, cl, "again")
	_ = harness.Until(ctx, 10*time.Second, func() bool { // the gateway's replica may be behind; a rebalance may have been there first
		have, _ := replicasOf(ctx, cl, "again", 0)
		return !slices.Contains(have, first)
	})
	awaitOn(ctx, t, c, cl, "again", 1, there, first)
	var got client.Received
	var err error
	_ = harness.Until(ctx, moveLimit, func() bool { // its leader has just changed
		got, err = cl.Receive(ctx, "again", client.ReceiveOptions{Max: 10, Wait: 10 * time.Second})
		return err == nil && len(got.Deliveries) > 0
	})
	if err != nil || len(got.Deliveries) != 1 || string(got.Deliveries[0].Payload) != "new" {
		t.Errorf("of the new life came %+v, %v", got, err)
	}
}
