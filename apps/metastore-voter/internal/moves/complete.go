package moves

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// completeEvery is between looks for partitions that lack replicas. A look goes over
	// all partitions, and what lacks has lacked since an operator accepted a loss.
	completeEvery = 10 * time.Second
	// abortRest: who takes back a move that completes a partition has something else to
	// do first, and does not want it again at once.
	abortRest = 10 * time.Minute
)

// complete begins moves that bring partitions back to the factor of their topic: after a
// reset, or after nodes were removed with what they had.
func (r *Runner) complete(ctx context.Context) {
	r.plan.Lock()
	defer r.plan.Unlock()
	now := r.cfg.Mono()
	if now < r.completeAt {
		return
	}
	r.completeAt = now + completeEvery
	waiting, err := r.completeLocked(ctx)
	if err != nil {
		r.cfg.Log.Debug("partitions that lack replicas were not looked for; it is tried again", "err", err)
		return
	}
	r.waits(topic.MoveComplete, waiting)
}

// completeLocked begins what there is room for; it answers how many wait.
func (r *Runner) completeLocked(ctx context.Context) (waiting int, err error) {
	// A look at the own replica first: a cluster that lacks nothing pays no barrier.
	_, plan, err := r.lacking()
	if err != nil || len(plan) == 0 {
		return 0, err
	}
	if err := r.cfg.Sure(ctx); err != nil {
		return 0, err
	}
	s, plan, err := r.lacking()
	if err != nil || len(plan) == 0 {
		return 0, err
	}
	begun, err := r.beginLocked(ctx, s, topic.MoveComplete, plan)
	if begun > 0 {
		r.cfg.Log.Info("partitions get the replicas that they lack", "moves_begun", begun, "partitions", len(plan))
	}
	return len(plan) - begun, err
}

// lacking plans for the partitions that lack replicas.
func (r *Runner) lacking() (*state, []placement.Move, error) {
	s, err := r.read()
	if err != nil {
		return nil, nil, err
	}
	assigned, err := r.cfg.Assigned()
	if err != nil {
		return nil, nil, fmt.Errorf("read the assignments: %w", err)
	}
	topics, err := r.cfg.View.Topics("", "", math.MaxInt)
	if err != nil {
		return nil, nil, fmt.Errorf("read the topics: %w", err)
	}
	factors := make(map[topic.Incarnation]int, len(topics))
	for _, t := range topics {
		factors[t.Incarnation] = t.ReplicationFactor
	}
	list, members := r.cfg.Members(), map[string]bool{}
	for i := range list {
		members[list[i].ID] = true
	}
	plan := placement.Complete(placement.Candidates(list, assigned), assigned, s.moves,
		func(id topic.Incarnation) int { return factors[id] }, // 0 of a create under way: it has all
		func(node string) bool { return members[node] }, Away(r.cfg.View))
	return s, plan, nil
}
