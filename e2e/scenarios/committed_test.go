//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	committedTopic      = "pay"
	committedPartitions = 3
	// committedKills: each storage node once or twice; more would take longer than a
	// scenario should. NARAD_E2E_COMMITTED_KILLS asks for as many as figures need.
	committedKills, committedStops = 4, 3
	// committedPause lets leaders be balanced again, so that the next node leads some.
	committedPause = 2500 * time.Millisecond
	// committedTimeout is what one produce may take: longer than any election here.
	committedTimeout = 15 * time.Second
	// killedWorst and stoppedWorst are bounds for a machine that does much else, and so
	// are the usual ones, medians: on a quiet one they are 0.9 s and 30 ms. A stop whose
	// hand-over was late is as bad as a kill.
	killedWorst, stoppedWorst = 20 * time.Second, 20 * time.Second
	killedUsual, stoppedUsual = 5 * time.Second, 1500 * time.Millisecond
)

// place is where a committed message is said to be.
type place struct {
	partition uint32
	offset    uint64
}

// committedBook is what the producers were told.
type committedBook struct {
	mu      sync.Mutex       // guards below
	at      map[string]place // by payload, of what was committed
	refused map[string]bool  // surely not stored

	seen    [committedPartitions][]time.Time // successes, by partition
	unknown int
	errs    []string
}

// produce commits numbered payloads to one partition, each once, whatever becomes of it.
func (b *committedBook) produce(ctx context.Context, cl *client.Client, id string, partition uint32) {
	for n := 0; ctx.Err() == nil; n++ {
		payload := fmt.Sprintf("%s/%d", id, n)
		r, err := cl.Produce(context.WithoutCancel(ctx), committedTopic, client.Message{Payload: []byte(payload), Partition: client.Pin(partition)},
			client.ProduceOptions{Committed: true, Timeout: committedTimeout})
		b.note(payload, r, err)
		pause(ctx, 5*time.Millisecond)
	}
}

// number commits payloads under a producer's numbers, each until its outcome is known.
func (b *committedBook) number(ctx context.Context, cl *client.Client, id string, partition uint32) {
	for n := uint64(0); ctx.Err() == nil; n++ {
		payload := fmt.Sprintf("%s/%d", id, n)
		for {
			r, err := cl.Produce(context.WithoutCancel(ctx), committedTopic, client.Message{Payload: []byte(payload), Partition: client.Pin(partition)},
				client.ProduceOptions{Committed: true, Timeout: time.Second, Producer: id, Seq: n})
			if err == nil {
				b.note(payload, r, nil)
				break
			}
			if client.HasCode(err, client.CodeOutOfSequence) {
				b.mu.Lock()
				b.errs = append(b.errs, err.Error())
				b.mu.Unlock()
				return
			}
		}
		pause(ctx, 5*time.Millisecond)
	}
}

func (b *committedBook) note(payload string, r client.Receipt, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var refusal *client.Error
	switch {
	case err == nil:
		b.at[payload] = place{*r.Partition, *r.Offset}
		b.seen[*r.Partition] = append(b.seen[*r.Partition], time.Now())
	case errors.As(err, &refusal) && refusal.Applied == client.AppliedNo:
		b.refused[payload] = true
	default:
		b.unknown++
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestCommittedWhileLeadersAreKilled: nothing that was answered 200 is lost or has
// another content, nothing that was refused is there, a client that numbers ends with
// one copy of each, and a partition takes produces again soon.
func TestCommittedWhileLeadersAreKilled(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	once, err := client.New(client.Config{URLs: c.URLs(), Retry: client.Retry{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer once.Close()
	cl, err := client.New(client.Config{URLs: c.URLs(), Retry: client.Retry{BaseDelay: 10 * time.Millisecond, MaxDelay: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	create(ctx, t, cl, client.TopicSpec{Name: committedTopic, Partitions: committedPartitions, ReplicationFactor: 3})
	b := &committedBook{at: map[string]place{}, refused: map[string]bool{}}
	producing, stop := context.WithCancel(ctx)
	var producers sync.WaitGroup
	for p := range uint32(committedPartitions) {
		for i := range 3 {
			producers.Go(func() { b.produce(producing, once, fmt.Sprintf("free-%d-%d", p, i), p) })
		}
		producers.Go(func() { b.number(producing, cl, fmt.Sprintf("numbered-%d", p), p) })
	}
	if err := harness.Until(ctx, 30*time.Second, func() bool { return b.all(time.Time{}) }); err != nil {
		t.Fatalf("not every partition takes produces; data in %s", c.Dir)
	}
	kills := inTurn(ctx, t, c, cl, b, runs(t, "NARAD_E2E_COMMITTED_KILLS", committedKills), c.Kill)
	stops := inTurn(ctx, t, c, cl, b, runs(t, "NARAD_E2E_COMMITTED_STOPS", committedStops), c.Terminate)
	stop()
	producers.Wait()
	b.report(t, "kill -9", kills, killedUsual, killedWorst)
	b.report(t, "graceful stop", stops, stoppedUsual, stoppedWorst)
	b.judge(ctx, t, cl)
}

// all tells whether every partition has had a success after at.
func (b *committedBook) all(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.seen {
		if n := len(b.seen[p]); n == 0 || !b.seen[p][n-1].After(at) {
			return false
		}
	}
	return true
}

// end is a leader that was ended at a time.
type end struct {
	at, until  time.Time
	partitions []uint32
}

// inTurn ends storage nodes that lead something, one after the other, each ready again
// before the next.
func inTurn(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, b *committedBook, n int, how func(string)) (out []end) {
	t.Helper()
	ids := c.IDs(harness.Storage)
	for i := range n {
		pause(ctx, committedPause)
		var e end
		id := ""
		for j := range ids { // the next one in turn that leads a partition
			id = ids[(i+j)%len(ids)]
			if e.partitions = ledBy(ctx, t, cl, id); len(e.partitions) > 0 {
				break
			}
		}
		pid := c.Node(id).PID
		e.at = time.Now()
		how(id)
		if err := harness.Until(ctx, 30*time.Second, func() bool { return b.all(time.Now().Add(-200 * time.Millisecond)) }); err != nil {
			t.Fatalf("a partition takes no produces after %s was ended; data in %s", id, c.Dir)
		}
		c.WaitReady(id, pid)
		e.until = time.Now()
		out = append(out, e)
	}
	return out
}

func ledBy(ctx context.Context, t *testing.T, cl *client.Client, id string) (list []uint32) {
	t.Helper()
	d, err := cl.Topic(ctx, committedTopic)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range d.PartitionDetails {
		if p.Leader != nil && *p.Leader == id {
			list = append(list, p.Index)
		}
	}
	return list
}

// report says for how long partitions took nothing: the longest time between two
// successes around the end of their leader.
func (b *committedBook) report(t *testing.T, what string, ends []end, median, worst time.Duration) {
	t.Helper()
	var gaps []time.Duration
	for _, e := range ends {
		for _, p := range e.partitions {
			longest := time.Duration(0)
			for i := 1; i < len(b.seen[p]); i++ {
				if from, to := b.seen[p][i-1], b.seen[p][i]; to.After(e.at) && from.Before(e.until) {
					longest = max(longest, to.Sub(from))
				}
			}
			gaps = append(gaps, longest)
		}
	}
	slices.Sort(gaps)
	if len(gaps) == 0 {
		t.Fatalf("%s: no leader was ended", what)
	}
	t.Logf("%s of %d leaders, %d partitions: without a committed produce for %s (median), %s (worst): %v", what, len(ends), len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1], gaps)
	if is := gaps[len(gaps)/2]; is > median {
		t.Errorf("%s: %s is more than %s in the median", what, is, median)
	}
	if gaps[len(gaps)-1] > worst {
		t.Errorf("%s: %s is more than %s", what, gaps[len(gaps)-1], worst)
	}
}

// judge reads every partition and holds it against what was answered.
func (b *committedBook) judge(ctx context.Context, t *testing.T, cl *client.Client) {
	t.Helper()
	found := map[string]place{}
	next := map[string]uint64{} // of a numbered producer
	for p := range uint32(committedPartitions) {
		for r, err := range cl.Replay(ctx, committedTopic, client.ReplayOptions{Partition: p, Confirmed: true}) {
			if err != nil {
				t.Fatal(err)
			}
			payload := string(r.Payload)
			if was, twice := found[payload]; twice {
				t.Errorf("%s is at %v and at %v", payload, was, place{p, r.Offset})
			}
			found[payload] = place{p, r.Offset}
			id, n, _ := strings.Cut(payload, "/")
			if seq, err := strconv.ParseUint(n, 10, 64); strings.HasPrefix(id, "numbered") {
				if err != nil || seq != next[id] {
					t.Errorf("%s came after %s/%d", payload, id, next[id])
				}
				next[id] = seq + 1
			}
		}
	}
	for payload, at := range b.at {
		if is, ok := found[payload]; !ok || is != at {
			t.Errorf("%s was committed at %v and is at %v (found: %t)", payload, at, is, ok)
		}
	}
	for payload := range b.refused {
		if at, ok := found[payload]; ok {
			t.Errorf("%s was refused for sure and is at %v", payload, at)
		}
	}
	for _, e := range b.errs {
		t.Error(e)
	}
	t.Logf("%d committed, %d unknown, %d refused; %d in the logs", len(b.at), b.unknown, len(b.refused), len(found))
	if len(b.at) < 1000 {
		t.Errorf("only %d messages: a test of nothing", len(b.at))
	}
}

// runs is how often something is done: def, or what the environment says.
func runs(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
