package election

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// StepDown hands what a node leads of replicated partitions to others, until
// none is left that can be handed over or ctx ends, and answers what is left.
func (r *Runner) StepDown(ctx context.Context, node string) (left int, err error) {
	m := members(r.cfg.View.Members().ByID)
	led := map[string]int{}
	var list []*contest
	err = r.each(func(a *topic.Assignment) {
		led[a.Leader]++
		if a.Leader == node && len(a.Replicas) > 1 {
			list = append(list, &contest{a: *a})
		}
	})
	if err != nil {
		return 0, err
	}
	total := len(list)
	list = slices.DeleteFunc(list, func(c *contest) bool {
		c.wanted = successor(&c.a, m, led)
		return c.wanted == "" || !electable(&c.a, m)
	})
	return total - r.handOver(ctx, list, "planned"), nil
}

// Give hands the leadership of a partition, as it was read, to one of its
// replicas, if that one has what the leader has, or gets it soon; false: not now.
func (r *Runner) Give(ctx context.Context, a topic.Assignment, to string) bool {
	c := &contest{a: a, wanted: to}
	if _, ok := a.ReplicaOn(to); !ok || a.Leader == "" || a.Leader == to || !electable(&a, r.cfg.View.Members().ByID) {
		return false
	}
	return r.handOver(ctx, []*contest{c}, "move") == 1 && c.elected.Node == to
}

// balance moves some leaderships back to the first replica of their set.
func (r *term) balance(ctx context.Context, m members) {
	now := r.cfg.Mono()
	var list []*contest
	err := r.each(func(a *topic.Assignment) {
		at, refused := r.notBack[a.Ref]
		if len(list) < maxBalanced && displaced(a, m) && electable(a, m) && (!refused || now-at >= notBackFor) {
			list = append(list, &contest{a: *a, wanted: a.Replicas[0].Node})
		}
	})
	if err != nil || len(list) == 0 {
		return
	}
	r.handOver(ctx, list, "balance")
	if len(r.notBack) > maxEarlyKept {
		clear(r.notBack)
	}
	for _, c := range list {
		if !c.finished {
			r.notBack[c.a.Ref] = now
		}
	}
}

// notBackFor is how long a leadership that could not be moved back stays where
// it is: its first replica is still catching up.
const notBackFor = time.Minute

// handOver lets the leaders stop until the wanted replicas have everything, and
// then elects; it answers how many changed hands. A partition whose follower is
// too far behind keeps its leader.
func (r *Runner) handOver(ctx context.Context, list []*contest, reason string) int {
	done := 0
	for part := range slices.Chunk(list, maxHandedOver) {
		if ctx.Err() != nil {
			break
		}
		r.turn.Lock()
		done += r.elect(ctx, r.reached(ctx, part), reason)
		r.turn.Unlock()
	}
	return done
}

// maxHandedOver bounds the partitions that stand still together: they wait for
// the slowest of them.
const maxHandedOver = 32

// reached asks the leaders to hold, and returns the contests whose wanted
// replica has everything.
func (r *Runner) reached(ctx context.Context, list []*contest) []*contest {
	byNode := map[string][]*contest{}
	for _, c := range list {
		byNode[c.a.Leader] = append(byNode[c.a.Leader], c)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timing.Call)
	defer cancel()
	var mu sync.Mutex // guards out
	var out []*contest
	var calls sync.WaitGroup
	for node, contests := range byNode {
		calls.Go(func() {
			items := make([]HandOver, 0, len(contests))
			for _, c := range contests {
				to, _ := c.a.ReplicaOn(c.wanted)
				items = append(items, HandOver{Ref: c.a.Ref, Epoch: c.a.LeaderEpoch, To: to})
			}
			ok, err := r.cfg.Nodes.HandOver(ctx, node, items)
			if err != nil || len(ok) != len(items) {
				r.cfg.Log.Debug("a leader did not answer a hand-over", "node", node, "partitions", len(items), "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for i, c := range contests {
				if ok[i] {
					out = append(out, c)
				}
			}
		})
	}
	calls.Wait()
	slices.SortFunc(out, func(a, b *contest) int { return byRef(&a.a, &b.a) })
	return out
}
