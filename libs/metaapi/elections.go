package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Elections is what storage nodes ask the Raft leader about the replicas of
// partitions. Safe for concurrent use. Refusals are *problem.Problem; every call
// may be repeated.
type Elections interface {
	// RecordCopies records which copies replicas are, before they count: a node's
	// own fresh ones, or one that a leader vouches for in the place of a lost one.
	RecordCopies(ctx context.Context, req *RecordCopiesRequest) (*RecordCopiesResult, error)
	// StepDown hands the replicated partitions that a stopping node leads to other
	// replicas, as many as the caller's time allows, and answers how many are left.
	StepDown(ctx context.Context, req *StepDownRequest) (*StepDownResult, error)
	// Suspect says that a node does not answer its followers. It decides nothing:
	// the controller asks that node and its followers itself.
	Suspect(ctx context.Context, req *SuspectRequest) error
}

// MaxCopyReports bounds one RecordCopiesRequest; it goes into one entry.
const MaxCopyReports = 1000

// RecordCopiesRequest reports copies.
type RecordCopiesRequest struct {
	Copies []CopyReport `json:"copies"`
}

// CopyReport says that the replica of a partition on a node is this copy. What
// was read of the replica stands with it (WasDisk, Was), so that a report from
// an old view changes nothing.
type CopyReport struct {
	topic.Ref
	Node    string     `json:"node"`
	WasDisk topic.ID64 `json:"was_disk"`
	Was     topic.ID64 `json:"was"` // 0: none was recorded
	DiskID  topic.ID64 `json:"disk_id"`
	CopyID  topic.ID64 `json:"copy_id"`
	// Epoch is that of the partition's leader when it vouches that the copy holds
	// everything committed, and ConfigVersion that of the replica set by which it
	// counted; 0 in a node's report of its own first copy.
	Epoch         topic.Epoch `json:"epoch"`
	ConfigVersion uint64      `json:"config_version"`
}

// RecordCopiesResult answers report by report, in order; false: the replica is
// not as the report says, look again.
type RecordCopiesResult struct {
	Index uint64 `json:"index"`
	Done  []bool `json:"done"`
}

// StepDownRequest names the stopping node and its process start.
type StepDownRequest struct {
	NodeID    string     `json:"node_id"`
	BootNonce topic.ID64 `json:"boot_nonce"`
}

// StepDownResult tells how many replicated partitions the node still leads.
type StepDownResult struct {
	Left int `json:"left"`
}

// SuspectRequest names a node that does not answer and who noticed.
type SuspectRequest struct {
	From   string `json:"from"`
	NodeID string `json:"node_id"`
}

var (
	methodRecordCopies = control("record_copies", 1<<20, questionBody) // 1,000 reports of at most 500 bytes, with a topic name of 200
	methodStepDown     = control("step_down", smallBody, smallBody)
	methodSuspect      = control("suspect", smallBody, smallBody)
)

// ServeElections registers the operations of e. Call it before the server serves.
func ServeElections(s *rpc.Server, e Elections) {
	rpc.HandleJSON(s, methodRecordCopies, e.RecordCopies)
	rpc.HandleJSON(s, methodStepDown, e.StepDown)
	rpc.HandleJSON(s, methodSuspect, func(ctx context.Context, req *SuspectRequest) (*empty, error) {
		return &empty{}, e.Suspect(ctx, req)
	})
}

var (
	_ Elections = (*Client)(nil)
	_ Elections = (*Leader)(nil)
)

// RecordCopies implements Elections.
func (c *Client) RecordCopies(ctx context.Context, req *RecordCopiesRequest) (*RecordCopiesResult, error) {
	return rpc.CallJSON[RecordCopiesResult](ctx, c.peer, methodRecordCopies, req)
}

// StepDown implements Elections.
func (c *Client) StepDown(ctx context.Context, req *StepDownRequest) (*StepDownResult, error) {
	return rpc.CallJSON[StepDownResult](ctx, c.peer, methodStepDown, req)
}

// Suspect implements Elections.
func (c *Client) Suspect(ctx context.Context, req *SuspectRequest) error {
	_, err := rpc.CallJSON[empty](ctx, c.peer, methodSuspect, req)
	return err
}

// RecordCopies implements Elections.
func (l *Leader) RecordCopies(ctx context.Context, req *RecordCopiesRequest) (*RecordCopiesResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*RecordCopiesResult, error) { return c.RecordCopies(ctx, req) })
}

// StepDown implements Elections.
func (l *Leader) StepDown(ctx context.Context, req *StepDownRequest) (*StepDownResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*StepDownResult, error) { return c.StepDown(ctx, req) })
}

// Suspect implements Elections.
func (l *Leader) Suspect(ctx context.Context, req *SuspectRequest) error {
	_, err := ask(ctx, l, func(ctx context.Context, c *Client) (*empty, error) { return nil, c.Suspect(ctx, req) })
	return err
}
