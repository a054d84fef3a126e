package election

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

// StepDown hands what a node that stops leads of replicated partitions to others, and
// answers what is left. A replica that is behind is not waited for twice: the others
// are asked after it. What none of them could take is elected without the node, as
// if it had died already, and so before somebody has to find that out.
func (r *Runner) StepDown(ctx context.Context, node string) (left int, err error) {
	tried := map[topic.Ref][]string{}
	for ctx.Err() == nil {
		all, led, err := r.ledBy(node)
		if err != nil {
			return 0, err
		}
		list := handOvers(all, r.cfg.View.Members().ByID, led, tried)
		if len(list) == 0 {
			break
		}
		r.handOver(ctx, list, "planned")
		for _, c := range list {
			tried[c.a.Ref] = append(tried[c.a.Ref], c.wanted)
		}
	}
	rest, led, err := r.ledBy(node)
	if err != nil {
		return 0, err
	}
	var list []*contest
	m := members(r.cfg.View.Members().ByID)
	for i := range rest {
		if others := without(&rest[i], node); electable(&others, m) {
			list = append(list, &contest{a: rest[i], wanted: successor(&rest[i], m, led), avoided: node})
		}
	}
	if ctx.Err() != nil || len(list) == 0 {
		return len(rest), nil
	}
	r.turn.Lock()
	defer r.turn.Unlock()
	return len(rest) - r.elect(ctx, list, "planned"), nil
}

// ledBy lists the partitions of several replicas that a node leads, and how many each
// node leads of all.
func (r *Runner) ledBy(node string) (all []topic.Assignment, led map[string]int, err error) {
	all, err = r.cfg.Index.Led(func(leader topic.Replica) bool { return leader.Node == node })
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	led, err = r.leads()
	return all, led, err
}

// leads is how many partitions each node leads.
func (r *Runner) leads() (map[string]int, error) {
	loads, err := r.cfg.Index.Loads(nil)
	led := make(map[string]int, len(loads))
	for node, l := range loads {
		led[node] = l.Leads
	}
	return led, err
}

// handOvers are those of what one node leads to somebody who was not tried yet.
func handOvers(all []topic.Assignment, m members, led map[string]int, tried map[topic.Ref][]string) (list []*contest) {
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
	return list
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

// balance hands over some leaderships, as placement.Lead plans it.
func (r *term) balance(ctx context.Context, m members) {
	now := r.cfg.Mono()
	loads, err := r.cfg.Index.Loads(nil)
	if err != nil {
		return
	}
	var free []*topic.Assignment
	err = r.each(func(a *topic.Assignment, factor int) {
		at, refused := r.notGiven[a.Ref]
		if !moving(a, factor) && electable(a, m) && (!refused || now-at >= notGivenFor) {
			free = append(free, a)
		}
	})
	if err != nil {
		return
	}
	nodes := placement.Loaded(r.cfg.Members(), loads)
	for i := range nodes {
		if at, behind := r.notTaken[nodes[i].ID]; behind && now-at < notGivenFor {
			nodes[i].Full = true // it may give, as one whose disk is
		}
	}
	var list []*contest
	for i, chain := range placement.Lead(nodes, free, maxBalanced) {
		for _, h := range chain {
			list = append(list, &contest{a: *free[h.At], wanted: h.To, chain: i + 1})
		}
	}
	if len(list) == 0 {
		return
	}
	r.handOver(ctx, list, "balance")
	if len(r.notGiven) > maxEarlyKept {
		clear(r.notGiven)
	}
	for _, c := range list {
		if !c.finished {
			r.notGiven[c.a.Ref] = now
		}
		if c.behind {
			r.notTaken[c.wanted] = now
		}
	}
}

// notGivenFor is how long a leadership that could not be handed over for balance stays
// where it is: the replica that was to get it, or one of the same chain, is still
// catching up. So long its node gets no other one either: there may be hundreds that it
// is behind in, and the others are to be evened out meanwhile.
const notGivenFor = time.Minute

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
		ready, broken := whole(part, r.reached(ctx, part))
		var off sync.WaitGroup
		off.Go(func() { r.ask(ctx, broken, false) })
		done += r.elect(ctx, ready, reason)
		off.Wait()
		r.turn.Unlock()
	}
	return done
}

// whole separates what was reached of a chain of which not all was: its leaders hold for
// nothing.
func whole(asked, reached []*contest) (ready, broken []*contest) {
	lack := map[int]int{}
	for _, c := range asked {
		lack[c.chain]++
	}
	for _, c := range reached {
		lack[c.chain]--
	}
	for _, c := range reached {
		if c.chain != 0 && lack[c.chain] > 0 {
			broken = append(broken, c)
		} else {
			ready = append(ready, c)
		}
	}
	return ready, broken
}

// maxHandedOver bounds the partitions that stand still together: they wait for
// the slowest of them.
const maxHandedOver = 32

// reached asks the leaders to hold, and returns the contests whose wanted
// replica has everything.
func (r *Runner) reached(ctx context.Context, list []*contest) []*contest {
	r.ask(ctx, list, true)
	out := slices.DeleteFunc(slices.Clone(list), func(c *contest) bool { return !c.holds })
	slices.SortFunc(out, func(a, b *contest) int { return byRef(&a.a, &b.a) })
	return out
}

// ask asks each leader to hold for the wanted replica, or to go on because no election
// comes: one that is not told goes on a moment later.
func (r *Runner) ask(ctx context.Context, list []*contest, hold bool) {
	byNode := map[string][]*contest{}
	for _, c := range list {
		byNode[c.a.Leader] = append(byNode[c.a.Leader], c)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timing.Call)
	defer cancel()
	var calls sync.WaitGroup
	for node, contests := range byNode {
		calls.Go(func() {
			items := make([]HandOver, 0, len(contests))
			for _, c := range contests {
				it := HandOver{Ref: c.a.Ref, Epoch: c.a.LeaderEpoch}
				if hold {
					it.To, _ = c.a.ReplicaOn(c.wanted)
				}
				items = append(items, it)
			}
			ok, err := r.cfg.Nodes.HandOver(ctx, node, items)
			if err != nil || len(ok) != len(items) {
				r.cfg.Log.Debug("a leader did not answer a hand-over", "node", node, "partitions", len(items), "err", err)
				return
			}
			for i, c := range contests {
				c.holds, c.behind = hold && ok[i], c.behind || hold && !ok[i]
			}
		})
	}
	calls.Wait()
}
