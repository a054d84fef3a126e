//go:build e2e

package scenarios

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// cutRate is messages a second of each topic while moves are cut off.
const cutRate = 300

// moveCuts is for how long the network is cut in each phase. A pair is one for longer
// than the 6 s of silence after which the second copy of an only one is taken back, and
// for longer than a lease (3 s) when leadership is to go over.
var moveCuts = map[string]time.Duration{
	"pending": time.Second, "copying": time.Second, "joined": 7 * time.Second,
	"electing": 3500 * time.Millisecond, "removing": time.Second, "over": time.Second,
}

// TestMovesCutOff: the network between source and destination is cut in every phase of
// moves of a lone partition and of one with three copies. The move goes on or is taken
// back, nothing is lost, nothing comes twice without a listed reason, and no copy is left
// where none belongs.
func TestMovesCutOff(t *testing.T) {
	t.Parallel()
	n := harness.StartNet(t, harness.Options{Voters: 3, StorageNodes: 4, Gateways: 1})
	cl := netClient(t, n.URLs()...)
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	factors := map[string]int{"lone": 1, "safe": 3}
	for name, factor := range factors {
		create(ctx, t, cl, client.TopicSpec{Name: name, Partitions: 1, ReplicationFactor: factor, VisibilityTimeoutMS: 60_000})
	}
	names := slices.Sorted(maps.Keys(factors))
	w := startWatch(ctx, t, cl, names...)
	var ends []func()
	cut := &cutNodes{}
	var both sync.WaitGroup
	for _, name := range names {
		f := newFlow(cl, name)
		ends = append(ends, f.start(ctx, t, cutRate, func() {
			w.judge(t, name, f.Ledger)
			f.Ledger.Stored(ctx, t, cl, name)
		}))
		both.Go(func() { cutInEveryPhase(ctx, t, n, cl, name, cut) })
	}
	both.Wait()
	for _, end := range ends {
		end()
	}
	w.end()
	(&ending{t: t, ctx: ctx, cl: cl, dir: n.Dir, topics: names, interrupted: cut.has, restart: func(id string) {
		n.Kill(id)
		n.Restart(id)
		n.WaitReady(id)
	}}).clean()
}

// cutNodes are those that were cut off from another one. Safe for concurrent use.
type cutNodes struct {
	mu   sync.Mutex // guards list
	list []string
}

func (c *cutNodes) add(ids ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, ids...)
}

func (c *cutNodes) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.list, id)
}

// cutInEveryPhase moves the leader of a topic once for each phase.
func cutInEveryPhase(ctx context.Context, t *testing.T, n *harness.Net, cl *client.Client, name string, cut *cutNodes) {
	for _, phase := range movePhases {
		var from, to string
		if err := harness.Until(ctx, moveLimit, func() bool { // the gateway's replica may be behind
			have, leader := replicasOf(ctx, cl, name, 0)
			from, to = leader, otherOf(n.IDs(harness.Storage), have)
			if from == "" || to == "" {
				return false
			}
			_, err := cl.StartMove(ctx, name, 0, from, to)
			return err == nil
		}); err != nil {
			t.Errorf("a move of %s from %s to %s does not begin; logs in %s", name, from, to, n.Dir)
			return
		}
		at := reach(ctx, cl, name, phase)
		cut.add(from, to)
		heal := n.CutBetween(from, to)
		<-time.After(moveCuts[phase])
		during := reach(ctx, cl, name, "pending")
		heal()
		if err := harness.Until(ctx, moveLimit, func() bool {
			m, err := cl.Moves(ctx)
			return err == nil && !slices.ContainsFunc(m.Moves, func(x client.Move) bool { return x.Topic == name })
		}); err != nil {
			t.Errorf("a move of %s from %s to %s that was cut when %s does not end; logs in %s", name, from, to, at, n.Dir)
			return
		}
		now, _ := replicasOf(ctx, cl, name, 0)
		t.Logf("%s cut when it was %s: after %s it was %s, and it ended on %v (from %s to %s)", name, at, moveCuts[phase], during, now, from, to)
	}
}
