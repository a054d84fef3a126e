package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/narad-mq/narad/apps/storage-node/internal/fanout"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

var _ nodeapi.Fanout = (*Node)(nil)

var errNotLed = errors.New("this node does not lead it")

// parents is the node as package fanout sees it.
type parents struct{ *Node }

// Lead implements fanout.Host.
func (n parents) Lead(ctx context.Context, a *topic.Assignment) (fanout.Parent, error) {
	j := judge(n.view, n.self, n.disk, a.Ref)
	if j.standing != leads {
		return nil, fmt.Errorf("lead %s: %w", a.Ref, errNotLed)
	}
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	return n.partition(ctx, a.Ref, j.a)
}

// Marks implements nodeapi.Fanout.
func (n *Node) Marks(ctx context.Context, req *nodeapi.MarksRequest) (*nodeapi.MarksResult, error) {
	if len(req.Partitions) > nodeapi.MaxCursorPartitions {
		return nil, problem.New(problem.InvalidRequest, "%d partitions", len(req.Partitions)).With("parameter", "partitions")
	}
	res := &nodeapi.MarksResult{Marks: make([]int64, len(req.Partitions))}
	for i := range req.Partitions {
		t := &req.Partitions[i]
		j := judge(n.view, n.self, n.disk, t.Ref)
		if refusal := j.refuseTarget(t.Ref, t.DiskID, t.Epoch, n.disk, false); refusal != nil {
			return nil, refusal
		}
		p, err := n.partition(ctx, t.Ref, j.a)
		if err != nil || !p.Serving(t.Epoch) {
			return nil, unavailable(t.Ref)
		}
		mark := p.HighWatermark()
		if !p.Serving(t.Epoch) { // it ended while we looked
			return nil, unavailable(t.Ref)
		}
		res.Marks[i] = mark
	}
	return res, nil
}

// Cursors implements nodeapi.Fanout.
func (n *Node) Cursors(_ context.Context, req *nodeapi.CursorsRequest) (*nodeapi.CursorsResult, error) {
	if len(req.Partitions) > nodeapi.MaxCursorPartitions {
		return nil, problem.New(problem.InvalidRequest, "%d partitions", len(req.Partitions)).With("parameter", "partitions")
	}
	res := &nodeapi.CursorsResult{Partitions: []nodeapi.PartitionCursors{}}
	for _, i := range req.Partitions {
		ref := topic.Ref{Topic: req.Topic, Incarnation: req.Incarnation, Partition: i}
		if judge(n.view, n.self, n.disk, ref).standing != leads {
			continue
		}
		if row, ok := n.children.Cursors(ref); ok {
			res.Partitions = append(res.Partitions, row)
		}
	}
	return res, nil
}
