//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// linearCut is how long a voter or a gateway stays cut off: some elections long.
	linearCut = 3 * time.Second
	// linearRest is how long all are there between two faults.
	linearRest = time.Second
	// askedAnew is above the 1 s for which a gateway believes what the leader said of a
	// name, and askedGone is above that and the 2 s of a question that nobody waits for
	// any more: a read that comes later is decided after it began.
	askedAnew, askedGone = 1100 * time.Millisecond, 3500 * time.Millisecond
	// readNames is so many that some are missing whenever a fault begins.
	readNames = 12
	// linearReads is how many reads at least have to find a name missing; about 30 do.
	linearReads = 4
)

// TestTopicsAreLinearizableOverCuts is TestTopicsAreLinearizable with voters that are cut
// off, too: from all, and from the other voters only, so that the gateways go on asking
// a leader that is none. A third gateway reads. What its own replica shows is a local
// read; that a name is not there is the leader's word, also while that replica is behind.
func TestTopicsAreLinearizableOverCuts(t *testing.T) {
	t.Parallel()
	n := harness.StartNet(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 3})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	h := newHistory(readNames)
	loading, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	const reader = "gateway-3"
	for gateway, id := range n.IDs(harness.Gateway) {
		cl, err := client.New(client.Config{URL: n.URL(id), Retry: client.Retry{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		running.Go(func() { readsNeverGoBack(loading, t, id, cl) })
		if id == reader {
			for name := range readNames {
				running.Go(func() { h.readConfirmed(loading, cl, linearName(name)) })
			}
			continue
		}
		for w := range linearWorkers / 2 {
			running.Go(func() { h.work(loading, cl, gateway*linearWorkers+w) })
		}
	}

	c := cuts{t: t, n: n, ctx: ctx}
	others := func(leader string) []string {
		return slices.DeleteFunc(n.IDs(harness.Voter), func(id string) bool { return id == leader })
	}
	for _, fault := range []func(leader string) (heal func()){
		func(leader string) func() { return n.CutBetween(leader, others(leader)...) },
		func(leader string) func() { return c.killed(leader) },
		func(leader string) func() { return n.Cut(leader) },
		func(string) func() { return n.CutRaft(reader) },
		func(leader string) func() { return c.killed(others(leader)[rand.IntN(2)]) },
		func(leader string) func() { // the reader is on the old leader's side
			heal, healReader := n.CutBetween(leader, others(leader)...), n.CutBetween(reader, others(leader)...)
			return func() { heal(); healReader() }
		},
	} {
		wait(loading, linearRest)
		heal := fault(c.leader(t))
		wait(loading, linearCut)
		heal()
	}
	wait(loading, linearRest)
	stop()
	running.Wait()
	if got := h.counts[opRead+" "+missing]; got < linearReads {
		t.Errorf("%d reads found their name missing: too few to show anything", got)
	}
	h.check(t)
}

// killed kills a voter; heal starts it again and waits until it is ready.
func (c *cuts) killed(id string) (heal func()) {
	c.n.Kill(id)
	return func() {
		c.n.Restart(id)
		c.n.WaitReady(id)
	}
}

func linearName(n int) string { return fmt.Sprintf("linear-%d", n) }

// readConfirmed reads one name at a gateway at which nobody else asks for it, and notes
// each answer that it is not there: the leader's, given after the read began.
func (h *history) readConfirmed(ctx context.Context, cl *client.Client, name string) {
	for pause := askedAnew; ctx.Err() == nil; wait(ctx, pause) {
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		call := time.Since(h.begin)
		_, err := cl.Topic(one, name)
		end := time.Since(h.begin)
		cancel()
		kind := "there"
		switch pause = askedAnew; {
		case client.HasCode(err, client.CodeTopicNotFound):
			kind = missing
		case err != nil:
			kind, pause = "failed", askedGone
		}
		h.mu.Lock()
		h.counts[opRead+" "+kind]++
		if kind == missing {
			h.ops = append(h.ops, porcupine.Operation{
				ClientId: -1, Input: change{name: name, kind: opRead}, Call: int64(call), Output: outcome{kind: missing}, Return: int64(end),
			})
		}
		h.mu.Unlock()
	}
}
