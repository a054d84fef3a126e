package nodeapi

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Fanout is what a storage node tells about the children of the topics whose
// partitions it leads. Safe for concurrent use. Refusals are *problem.Problem.
type Fanout interface {
	// Marks tells the high watermarks of partitions, as attach points: only as a
	// leader that may serve them under the epoch that is named. Refusals:
	// not_partition_leader, incarnation_mismatch, stale_epoch, not_ready,
	// partition_unavailable.
	Marks(ctx context.Context, req *MarksRequest) (*MarksResult, error)
	// Cursors tells where the cursors of partitions led here stand. A partition that
	// is not led here, or has none, is left out.
	Cursors(ctx context.Context, req *CursorsRequest) (*CursorsResult, error)
}

// MaxCursorPartitions bounds the partitions of one CursorsRequest and one
// MarksRequest: each may have 108 cursors of some 140 bytes.
const MaxCursorPartitions = 128

// MarksRequest names partitions as the caller believes them to be.
type MarksRequest struct {
	Partitions []Target `json:"partitions"`
}

// MarksResult has a high watermark for each, in order.
type MarksResult struct {
	Marks []int64 `json:"marks"`
}

// CursorsRequest asks about partitions of one life of a topic.
type CursorsRequest struct {
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Partitions  []int32           `json:"partitions"`
}

// CursorsResult has the partitions that have cursors here.
type CursorsResult struct {
	Partitions []PartitionCursors `json:"partitions"`
}

// PartitionCursors is the cursors of one parent partition.
type PartitionCursors struct {
	Partition     int32           `json:"partition"`
	HighWatermark int64           `json:"high_watermark"`
	Cursors       []CursorDetails `json:"cursors"`
}

// CursorDetails is where one cursor stands.
type CursorDetails struct {
	AttachEpoch topic.ID64 `json:"attach_epoch"`
	NextOffset  int64      `json:"next_offset"` // everything below is in the child, or was gone
	DueLagMS    int64      `json:"due_lag_ms"`  // for how long the record there has been due; 0: none is
	Dropped     int64      `json:"dropped"`     // records that were gone before they were copied
}

var (
	methodMarks   = rpc.Method{Name: "marks", Class: rpc.ClassControl, MaxRequest: maxSmallReply, MaxReply: maxSmallReply}
	methodCursors = rpc.Method{Name: "cursors", Class: rpc.ClassControl, MaxRequest: maxSmallReply, MaxReply: maxDetailsReply}
)

// ServeFanout registers the operations of f. Call it before the server serves.
func ServeFanout(s *rpc.Server, f Fanout) {
	rpc.HandleJSON(s, methodMarks, f.Marks)
	rpc.HandleJSON(s, methodCursors, f.Cursors)
}

var _ Fanout = (*Client)(nil)

// Marks implements Fanout.
func (c *Client) Marks(ctx context.Context, req *MarksRequest) (*MarksResult, error) {
	res, err := rpc.CallJSON[MarksResult](ctx, c.peer, methodMarks, req)
	if err == nil && len(res.Marks) != len(req.Partitions) {
		return nil, c.lost(methodMarks, fmt.Errorf("%d marks of %d partitions", len(res.Marks), len(req.Partitions)))
	}
	return res, err
}

// Cursors implements Fanout.
func (c *Client) Cursors(ctx context.Context, req *CursorsRequest) (*CursorsResult, error) {
	return rpc.CallJSON[CursorsResult](ctx, c.peer, methodCursors, req)
}
