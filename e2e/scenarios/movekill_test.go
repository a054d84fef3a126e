//go:build e2e

package scenarios

import (
	"context"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
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
		if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: name, Partitions: 1, ReplicationFactor: moveFactors[name], VisibilityTimeoutMS: 60_000}); err != nil {
			t.Fatal(err)
		}
	}
	w := startWatch(ctx, t, cl, names...)
	for _, name := range names {
		f := newFlow(cl, name)
		ends = append(ends, f.start(ctx, t, killRate, func() { w.judge(t, name, f.Ledger) }))
	}
	m := &interrupted{T: t, ctx: ctx, c: c, cl: cl, watch: w, random: rand.New(rand.NewPCG(seed, 0)), hit: map[string]int{}, aside: map[string]bool{}}
	m.all(names)
	began := time.Now()
	atRest(ctx, t, c, cl, 2*time.Minute)
	t.Logf("at rest %s after the last interruption", time.Since(began).Round(time.Millisecond))
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
	m.swept(append(names, "again"))
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

// swept waits until no node has a copy of a topic that moved and that it does not hold.
// The sweep at a start comes sooner than the next one.
func (m *interrupted) swept(names []string) {
	m.Helper()
	began, starts := time.Now(), 0
	for range 3 { // a leader that started in a round has proved nothing in it
		round := map[string]bool{}
		for _, d := range m.stray(names) {
			round[nodeOf(m.c, d)] = true
		}
		for id := range round {
			old := m.c.Node(id).PID
			m.c.Kill(id)
			m.c.WaitReady(id, old)
			starts++
		}
	}
	var left []string
	if err := harness.Until(m.ctx, 90*time.Second, func() bool { left = m.stray(names); return len(left) == 0 }); err != nil {
		m.Errorf("copies that nobody holds: %v; in %s", left, m.c.Dir)
	}
	m.Logf("after %d starts and %s no node has an old copy; set aside with the tail of a leader that was interrupted: %v",
		starts, time.Since(began).Round(time.Millisecond), slices.Sorted(maps.Keys(m.aside)))
}

// nodeOf is the node whose directory a path is in.
func nodeOf(c *harness.Cluster, path string) string {
	return strings.Split(strings.TrimPrefix(path, c.Dir+"/"), "/")[0]
}

// stray lists directories of partitions on nodes that have no replica of them. What the
// sweep has set aside on a node that was interrupted is none: nobody can tell the tail of
// a leader that was lost from records that were committed.
func (m *interrupted) stray(names []string) (out []string) {
	m.Helper()
	for _, name := range names {
		nodes, leader := replicasOf(m.ctx, m.cl, name, 0)
		if leader == "" {
			return []string{name + " has no leader"}
		}
		dirs, err := filepath.Glob(filepath.Join(m.c.Dir, "storage-*", "topics", name, "p00000*"))
		if err != nil {
			m.Fatal(err)
		}
		for _, d := range dirs {
			switch id := nodeOf(m.c, d); {
			case slices.Contains(nodes, id):
			case strings.Contains(d, ".quarantine-") && m.watch.hasCrashed(id):
				m.aside[strings.TrimPrefix(d, m.c.Dir+"/")] = true
			default:
				out = append(out, d)
			}
		}
		// A lone copy that restarts proves itself with its next record.
		if _, err := m.cl.Produce(m.ctx, name, client.Message{Payload: []byte("x")}, client.ProduceOptions{Committed: true}); err != nil {
			m.Logf("produce: %v", err)
		}
	}
	return out
}
