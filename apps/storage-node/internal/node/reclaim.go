package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

// reclaimTime is when a call stops to remove and answers: half of what a caller
// waits by default, so that one large directory more does not make it late.
const reclaimTime = 5 * time.Second

const noTime = "no time left; ask again"

// Reclaim implements nodeapi.Node.
func (n *Node) Reclaim(ctx context.Context, req *nodeapi.ReclaimRequest) (*nodeapi.ReclaimResult, error) {
	if len(req.Items) > nodeapi.MaxReclaimItems {
		return nil, problem.New(problem.InvalidRequest, "%d items", len(req.Items)).With("parameter", "items")
	}
	if !n.caughtUp() {
		return nil, problem.New(problem.NotReady, "this node's metastore replica has not caught up")
	}
	until := time.Now().Add(reclaimTime)
	entries := make([]topicdir.Entry, len(req.Items))
	out := make([]nodeapi.ReclaimOutcome, len(req.Items))
	var ids []topic.Incarnation
	for i := range req.Items {
		var why string
		if entries[i], why = entryToReclaim(&req.Items[i]); why != "" {
			out[i] = nodeapi.ReclaimOutcome{Status: nodeapi.Kept, Reason: why}
			continue
		}
		ids = append(ids, entries[i].Marker)
	}
	verdicts, err := n.confirm(ctx, ids)
	if err != nil {
		return nil, problem.New(problem.NotReady, "the metastore leader does not confirm")
	}
	take := 0
	for i := range out {
		if out[i].Status == "" && verdicts[entries[i].Marker] == metaapi.VerdictGone {
			take++
		}
	}
	topics, err := n.cfg.Dirs.Topics()
	if err != nil {
		return nil, fmt.Errorf("reclaim on %s: %w", n.self, err)
	}
	large := !req.AllowLarge && tooMany(take, topics)
	if large {
		n.metrics.SweepsRefused.Inc()
		n.log.Error("refusing to reclaim: too many topic directories belong to deleted topics at once", "directories", take, "topics", topics)
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	for i := range out {
		if out[i].Status == "" {
			out[i] = n.reclaimItem(ctx, entries[i], verdicts[entries[i].Marker], large)
		}
	}
	return &nodeapi.ReclaimResult{Outcomes: out}, nil
}

// entryToReclaim reads an item; why says why it is kept unseen.
func entryToReclaim(it *nodeapi.ReclaimItem) (e topicdir.Entry, why string) {
	e, ok := topicdir.ParseKey(it.Name)
	switch {
	case !ok, e.Kind == topicdir.Foreign:
		return e, "no name of Narad's"
	case kindOf(e.Kind) != it.Kind || e.Topic != it.Topic:
		return e, "the name says another kind or topic"
	case it.Incarnation == 0:
		return e, "no valid marker: an operator has to decide"
	}
	e.Marker = it.Incarnation
	return e, ""
}

func (n *Node) reclaimItem(ctx context.Context, e topicdir.Entry, v metaapi.Verdict, large bool) nodeapi.ReclaimOutcome {
	kept := func(why string) nodeapi.ReclaimOutcome {
		return nodeapi.ReclaimOutcome{Status: nodeapi.Kept, Reason: why}
	}
	switch {
	case v == metaapi.VerdictLive:
		return kept("the topic lives")
	case v != metaapi.VerdictGone:
		return kept("the metastore does not remember the end of this incarnation")
	case large:
		return kept(nodeapi.ReasonLarge)
	case ctx.Err() != nil:
		return kept(noTime)
	}
	bytes, err := n.reclaim(ctx, e, v)
	switch {
	case err == nil:
		return nodeapi.ReclaimOutcome{Status: nodeapi.Reclaimed, Bytes: bytes}
	case errors.Is(err, topicdir.ErrAbsent):
		return nodeapi.ReclaimOutcome{Status: nodeapi.Absent}
	case errors.Is(err, topicdir.ErrChanged):
		return kept("its marker names another incarnation now")
	case errors.Is(err, topicdir.ErrNotDirectory):
		return kept("no directory")
	case ctx.Err() != nil && errors.Is(err, ctx.Err()): // before its turn came
		return kept(noTime)
	}
	n.log.Warn("a directory of a deleted topic could not be reclaimed", "name", e.Key(), "error", err)
	return kept("it could not be removed; see the node's log")
}
