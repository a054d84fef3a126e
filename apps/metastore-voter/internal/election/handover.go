package election

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// StepDown hands what a node that stops leads of replicated partitions to others, and
// answers what is left. A replica that is behind is not waited for twice: the others
// are asked after it. What none of them could take is elected without the node, as
// if it had died already, and so before somebody has to find that out.
func (r *Runner) StepDown(ctx context.Context, node string) (left int, err error) {
	tried := map[topic.Ref][]string{}
	for ctx.Err() == nil {
		list, _, err := r.ledBy(node, tried)
		if err != nil {
			return 0, err
		}
		if len(list) == 0 {
			break
		}
		r.handOver(ctx, list, "planned")
		for _, c := range list {
			tried[c.a.Ref] = append(tried[c.a.Ref], c.wanted)
		}
	}
	_, rest, err := r.ledBy(node, nil)
	if err != nil {
		return 0, err
	}
	var list []*contest
	m := members(r.cfg.View.Members().ByID)
	for i := range rest {
		if others := without(&rest[i], node); electable(&others, m) {
			list = append(list, &contest{a: rest[i], wanted: successor(&rest[i], m, map[string]int{}), avoided: node})
		}
	}
	if ctx.Err() != nil || len(list) == 0 {
		return len(rest), nil
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	return len(rest) - r.elect(ctx, list, "planned"), nil
}

// ledBy lists what a node leads, and the hand-overs of it to somebody who was not
// tried yet.
func (r *Runner) ledBy(node string, tried map[topic.Ref][]string) (list []*contest, all []topic.Assignment, err error) {
	m := members(r.cfg.View.Members().ByID)
	led := map[string]int{}
	err = r.each(func(a *topic.Assignment) {
		led[a.Leader]++
		if a.Leader == node && len(a.Replicas) > 1 {
			all = append(all, *a)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		fresh := all[i]
		for _, id := range tried[fresh.Ref] {
			fresh = without(&fresh, id)
		}
		c := &contest{a: all[i], wanted: successor(&fresh, m, led)}
		if c.wanted != "" && electable(&c.a, m) {
			list = append(list, c)
		}
	}
	return list, all, nil
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
