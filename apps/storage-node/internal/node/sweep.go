package node

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

const (
	// A sweep that would take more directories than sweepMany, and more than one
	// of sweepShare of the node's topics, takes none: the likelier fault is then one of
	// the metastore, and an operator has to look.
	sweepMany  = 100
	sweepShare = 10
)

// tooMany is the brake of everything that removes directories without having been
// told to by a delete.
func tooMany(take, topics int) bool { return take > sweepMany && take*sweepShare > topics }

// sweepPlan is what a sweep does.
type sweepPlan struct {
	take  []topicdir.Entry // what has ended
	kept  int              // directories set aside that stay
	large bool             // take is too much: nothing is taken
}

// planSweep decides about an inventory, by the leader's verdicts of this pass. Only
// an incarnation of a valid marker that is gone is taken; whatever else stands
// there stays.
func planSweep(inventory []topicdir.Entry, verdicts map[topic.Incarnation]metaapi.Verdict) sweepPlan {
	var p sweepPlan
	topics := map[string]bool{}
	for _, e := range inventory {
		if e.Kind != topicdir.Foreign {
			topics[topic.FoldName(e.Topic)] = true
		}
		switch {
		case e.Kind != topicdir.Foreign && e.Marker != 0 && verdicts[e.Marker] == metaapi.VerdictGone:
			p.take = append(p.take, e)
		case e.Kind == topicdir.SetAside || e.Kind == topicdir.Superseded:
			p.kept++
		}
	}
	p.large = tooMany(len(p.take), len(topics))
	return p
}

// suspects are the incarnations to ask about: each that does not live by the
// replica, and that of each directory that does not serve.
func suspects(inventory []topicdir.Entry, lives func(name string, id topic.Incarnation) bool) []topic.Incarnation {
	var ids []topic.Incarnation
	for _, e := range inventory {
		if e.Kind == topicdir.Foreign || e.Marker == 0 || e.Kind == topicdir.Serving && lives(e.Topic, e.Marker) {
			continue
		}
		ids = append(ids, e.Marker)
	}
	return ids
}

// sweeps ends what no purge has ended: once when the replica has caught up after
// the start, then every while, until ctx ends.
func (n *Node) sweeps(ctx context.Context) {
	_, err := n.survey()
	if err != nil {
		n.log.Warn("the topic directories cannot be listed", "error", err)
	}
	if n.awaitCatchUp(ctx) {
		n.sweep(ctx)
	} else if ctx.Err() == nil {
		n.log.Warn("the sweep at the start is skipped: the metastore replica has not caught up", "waited", n.cfg.ReconcileWait.String())
	}
	tick := time.NewTicker(n.cfg.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if n.caughtUp() {
				n.sweep(ctx)
			}
		}
	}
}

func (n *Node) caughtUp() bool { return n.view.CaughtUpOnce() && n.view.Latched() }

// awaitCatchUp waits for a replica that may be believed, at most ReconcileWait.
func (n *Node) awaitCatchUp(ctx context.Context) bool {
	limit := time.NewTimer(n.cfg.ReconcileWait)
	defer limit.Stop()
	for {
		changed := n.view.Changed()
		if n.caughtUp() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-limit.C:
			return false
		case <-changed:
		}
	}
}

// survey lists what is here, remembers whose directories live, and reports, once,
// what nobody can judge.
func (n *Node) survey() ([]topicdir.Entry, error) {
	unread := map[string]bool{}
	list, _, err := n.cfg.Dirs.Page("", math.MaxInt, func(e topicdir.Entry, err error) {
		unread[e.Key()] = true
		n.odd(e, "it cannot be read", err)
	})
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		switch {
		case unread[e.Key()]:
		case e.Kind == topicdir.Foreign:
			n.odd(e, "no name of ours", nil)
		case e.Marker == 0 && e.Kind != topicdir.Staged:
			n.odd(e, "no directory, or no valid marker", nil)
		case e.Kind == topicdir.Serving && n.caughtUp() && n.lives(e.Topic, e.Marker):
			n.reaper.learn(e.Topic, e.Marker) // so that its delete is noticed; what is dead already is a sweep's, with its brake
		}
	}
	return list, nil
}

func (n *Node) odd(e topicdir.Entry, why string, err error) {
	r := n.reaper
	r.mu.Lock()
	known := r.odd[e.Key()]
	r.odd[e.Key()] = true
	r.mu.Unlock()
	if !known {
		n.log.Warn("left alone in the data directory: an operator has to look", "name", e.Key(), "why", why, "error", err)
	}
}

// sweep is one pass. Whatever fails keeps the data.
func (n *Node) sweep(ctx context.Context) {
	list, err := n.survey()
	if err != nil {
		n.log.Warn("the topic directories cannot be listed", "error", err)
		return
	}
	verdicts := map[topic.Incarnation]metaapi.Verdict{}
	if ids := suspects(list, n.lives); len(ids) > 0 {
		if verdicts, err = n.confirm(ctx, ids); err != nil {
			n.log.Warn("nobody confirms what a sweep found; everything unconfirmed is kept", "incarnations", len(ids), "error", err)
		}
	}
	n.sweepCopies(ctx, list)
	p := planSweep(list, verdicts)
	n.metrics.QuarantinesKept.Set(float64(p.kept))
	if n.brake(p) {
		return
	}
	for _, e := range p.take {
		if ctx.Err() != nil {
			return
		}
		if _, err := n.reclaim(ctx, e, verdicts[e.Marker]); err != nil && ctx.Err() == nil {
			n.log.Warn("a directory of a deleted topic is left for the next sweep", "name", e.Key(), "error", err)
		}
	}
}

// brake tells whether a plan is too large, and says so once per streak.
func (n *Node) brake(p sweepPlan) bool {
	r := n.reaper
	r.mu.Lock()
	before := r.refused
	r.refused = 0
	if p.large {
		r.refused = len(p.take)
	}
	r.mu.Unlock()
	if !p.large {
		return false
	}
	n.metrics.SweepsRefused.Inc()
	if before == 0 {
		n.log.Error("refusing to sweep: too many topic directories belong to deleted topics at once; look, then run purge-sweeper --yes",
			"directories", len(p.take))
	}
	return true
}

// Refused is how many directories the last sweep did not take because they were
// too many; 0: it was not refused.
func (n *Node) Refused() int {
	n.reaper.mu.Lock()
	defer n.reaper.mu.Unlock()
	return n.reaper.refused
}

// reclaim ends one directory, by a verdict of this pass.
func (n *Node) reclaim(ctx context.Context, e topicdir.Entry, v metaapi.Verdict) (bytes int64, err error) {
	err = n.alone(ctx, e.Topic, func() error {
		bytes, err = n.cfg.Dirs.Reclaim(e, verdictOf(v), n.dropLife)
		return err
	})
	n.metrics.ReclaimedBytes.Add(float64(bytes))
	switch {
	case errors.Is(err, topicdir.ErrAbsent), ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return bytes, err
	case err != nil:
		n.metrics.PurgeFailures.Inc()
		return bytes, fmt.Errorf("reclaim %s: %w", e.Key(), err)
	}
	n.metrics.PurgedDirs.Inc()
	n.log.Info("a directory of a deleted topic was removed", "name", e.Key(), "incarnation", e.Marker.String(), "bytes", bytes)
	return bytes, nil
}
