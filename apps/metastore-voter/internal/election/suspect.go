package election

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// check looks at a suspected node: when it does not answer within the probe's
// time, and no follower of a partition that it leads has fetched from it since
// the look began, that partition gets a new leader early. A node that is only
// unreachable from one follower, or from this voter, keeps what it leads.
func (r *term) check(ctx context.Context, node string) {
	all, led, err := r.ledBy(node)
	if err != nil || len(all) == 0 {
		return
	}
	list := make([]*topic.Assignment, len(all))
	for i := range all {
		list[i] = &all[i]
	}
	began := r.cfg.Mono()
	refs := make([]topic.Ref, 0, len(list))
	for _, a := range list {
		refs = append(refs, a.Ref)
	}
	probe, cancel := context.WithTimeout(ctx, r.timing.Probe)
	defer cancel()
	own, err := r.cfg.Nodes.Standing(probe, node, refs)
	for i := range own {
		if own[i].Leads {
			list[i] = nil
		}
	}
	list = slices.DeleteFunc(list, func(a *topic.Assignment) bool { return a == nil })
	if len(list) == 0 {
		return
	}
	// A leader that lives answers every waiting fetch within the bound of its wait.
	if !wait(ctx, r.timing.Silence-(r.cfg.Mono()-began)) {
		return
	}
	fetched := r.fetchedSince(ctx, list, began)
	m := members(r.cfg.View.Members().ByID)
	var contests []*contest
	for _, a := range list {
		if !fetched[a.Ref] && electable(a, m) && r.early.allow(a.Ref, began) {
			c := &contest{a: *a, wanted: successor(a, m, led)}
			if others := without(a, node); electable(&others, m) {
				// Its log is the longest, with what nobody fetched from it: asked for a
				// promise it would be elected again. A majority of the others is as safe.
				c.avoided = node
			}
			contests = append(contests, c)
		}
	}
	if len(contests) == 0 {
		return
	}
	r.cfg.Log.Warn("a node does not answer; what it leads is elected early", "node", node, "partitions", len(contests), "err", err)
	r.turn.Lock()
	defer r.turn.Unlock()
	r.elect(ctx, contests, "suspected")
}

// without is the partition as if the copy on a node could not be used.
func without(a *topic.Assignment, node string) topic.Assignment {
	out := *a
	out.Replicas = slices.Clone(a.Replicas)
	for i := range out.Replicas {
		if out.Replicas[i].Node == node {
			out.Replicas[i].CopyID = 0
		}
	}
	return out
}

// fetchedSince asks the followers of partitions whether one of them fetched
// after the moment began.
func (r *Runner) fetchedSince(ctx context.Context, list []*topic.Assignment, began time.Duration) map[topic.Ref]bool {
	byNode := map[string][]topic.Ref{}
	for _, a := range list {
		for _, rep := range a.Replicas {
			if rep.Node != a.Leader {
				byNode[rep.Node] = append(byNode[rep.Node], a.Ref)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, r.timing.Probe)
	defer cancel()
	out := map[topic.Ref]bool{}
	var mu sync.Mutex // guards out
	var calls sync.WaitGroup
	for node, refs := range byNode {
		calls.Go(func() {
			got, err := r.cfg.Nodes.Standing(ctx, node, refs)
			if err != nil || len(got) != len(refs) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			since := (r.cfg.Mono() - began).Milliseconds()
			for i, s := range got {
				if s.FetchedAgoMS >= 0 && s.FetchedAgoMS <= since {
					out[refs[i]] = true
				}
			}
		})
	}
	calls.Wait()
	return out
}
