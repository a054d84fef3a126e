package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Decommissions is what a metastore voter does about members that are to leave, and
// about partitions whose copies are lost. Only the Raft leader answers.
type Decommissions interface {
	// Decommission marks a member draining, unless that is unsafe; what follows goes
	// on by itself. Refusals: member_not_found, decommission_unsafe (reasons), not_ready.
	Decommission(ctx context.Context, req *DecommissionRequest) (*DecommissionResult, error)
	// CancelDecommission takes the mark back, and the moves that are under way because of
	// it. Refusals: member_not_found,
	// decommission_unsafe: there is nothing to cancel (any more).
	CancelDecommission(ctx context.Context, req *CancelDecommissionRequest) (*ChangeResult, error)
	// MemberDetail tells how far the decommission of a member is, as judged now.
	MemberDetail(ctx context.Context, req *MemberDetailRequest) (*MemberDetailResult, error)
	// ResetPartition begins a lost partition anew, empty. Refusals: topic_changed,
	// partition_out_of_range, precondition_failed: it is not lost,
	// not_enough_storage_nodes.
	ResetPartition(ctx context.Context, req *ResetPartitionRequest) (*ResetPartitionResult, error)
}

// Codes of reasons for which a decommission is refused, or waits.
const (
	BelowMinVoters         = "below_min_voters"
	NoHealthyMajority      = "no_healthy_majority"
	NoReceivers            = "no_receivers"
	BelowReplicationFactor = "below_replication_factor"
	OwnerDead              = "owner_dead"
	DispatchBacklog        = "dispatch_backlog"
	MoveBudgetFull         = "move_budget_full"
	LeaderTransfer         = "leader_transfer"
	NodeStatusUnavailable  = "node_status_unavailable"
	MemberAlive            = "member_alive"
)

// Reason is one thing that keeps a member from being removed.
type Reason struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Topics are the first that the reason is about, by name, and TopicCount how many
	// there are.
	Topics     []string `json:"topics,omitempty"`
	TopicCount int      `json:"topic_count,omitempty"`
}

// DecommissionRequest names a member. Operator goes into the leader's log.
//
// AcceptDataLoss gives up what only a member has that is marked dead, or what a living one
// had on another disk than its own; with any other member it is refused (member_alive).
// It is no standing word: it ends when the member lives again, dies or registers.
type DecommissionRequest struct {
	NodeID         string `json:"node_id"`
	DryRun         bool   `json:"dry_run"`
	AcceptDataLoss bool   `json:"accept_data_loss"`
	Operator       string `json:"operator"`
}

// DecommissionResult is the mark, or with DryRun what would keep it back.
type DecommissionResult struct {
	Index             uint64   `json:"index"` // of the mark; 0 with DryRun
	Would             bool     `json:"would"` // it would be accepted
	Reasons           []Reason `json:"reasons"`
	PartitionsLed     int      `json:"partitions_led"`
	Replicas          int      `json:"replicas"`
	WALBacklogRecords int64    `json:"wal_backlog_records"` // as far as known
}

// CancelDecommissionRequest names a draining member.
type CancelDecommissionRequest struct {
	NodeID   string `json:"node_id"`
	Operator string `json:"operator"`
}

// MemberDetailRequest names a member.
type MemberDetailRequest struct {
	NodeID string `json:"node_id"`
}

// MemberDetailResult has the decommission of a member; Draining false: there is none.
type MemberDetailResult struct {
	Draining          bool     `json:"draining"`
	StartedMS         int64    `json:"started_ms"` // Unix ms
	PartitionsLeft    int      `json:"partitions_left"`
	WALBacklogRecords int64    `json:"wal_backlog_records"`
	Blocked           []Reason `json:"blocked"`
}

// ResetPartitionRequest names a partition whose copies are lost.
type ResetPartitionRequest struct {
	topic.Ref
	Operator string `json:"operator"`
}

// ResetPartitionResult tells where the partition begins anew.
type ResetPartitionResult struct {
	Index uint64 `json:"index"`
	Node  string `json:"node"`
}

// A reason names at most 100 topics of at most 200 bytes, and there are at most ten.
const reasonsBody = 256 << 10

var (
	methodDecommission       = control("decommission", smallBody, reasonsBody)
	methodCancelDecommission = control("cancel_decommission", smallBody, smallBody)
	methodMemberDetail       = control("member_detail", smallBody, reasonsBody)
	methodResetPartition     = control("reset_partition", smallBody, smallBody)
)

// ServeDecommissions registers the operations of d. Call it before the server serves.
func ServeDecommissions(s *rpc.Server, d Decommissions) {
	rpc.HandleJSON(s, methodDecommission, d.Decommission)
	rpc.HandleJSON(s, methodCancelDecommission, d.CancelDecommission)
	rpc.HandleJSON(s, methodMemberDetail, d.MemberDetail)
	rpc.HandleJSON(s, methodResetPartition, d.ResetPartition)
}

var (
	_ Decommissions = (*Client)(nil)
	_ Decommissions = (*Leader)(nil)
)

// Decommission implements Decommissions.
func (c *Client) Decommission(ctx context.Context, req *DecommissionRequest) (*DecommissionResult, error) {
	return rpc.CallJSON[DecommissionResult](ctx, c.peer, methodDecommission, req)
}

// CancelDecommission implements Decommissions.
func (c *Client) CancelDecommission(ctx context.Context, req *CancelDecommissionRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodCancelDecommission, req)
}

// MemberDetail implements Decommissions.
func (c *Client) MemberDetail(ctx context.Context, req *MemberDetailRequest) (*MemberDetailResult, error) {
	return rpc.CallJSON[MemberDetailResult](ctx, c.peer, methodMemberDetail, req)
}

// ResetPartition implements Decommissions.
func (c *Client) ResetPartition(ctx context.Context, req *ResetPartitionRequest) (*ResetPartitionResult, error) {
	return rpc.CallJSON[ResetPartitionResult](ctx, c.peer, methodResetPartition, req)
}

// Decommission implements Decommissions. It is repeated freely: the mark is the same.
func (l *Leader) Decommission(ctx context.Context, req *DecommissionRequest) (*DecommissionResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*DecommissionResult, error) { return c.Decommission(ctx, req) })
}

// CancelDecommission implements Decommissions.
func (l *Leader) CancelDecommission(ctx context.Context, req *CancelDecommissionRequest) (*ChangeResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.CancelDecommission(ctx, req) })
}

// MemberDetail implements Decommissions.
func (l *Leader) MemberDetail(ctx context.Context, req *MemberDetailRequest) (*MemberDetailResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*MemberDetailResult, error) { return c.MemberDetail(ctx, req) })
}

// ResetPartition implements Decommissions.
func (l *Leader) ResetPartition(ctx context.Context, req *ResetPartitionRequest) (*ResetPartitionResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*ResetPartitionResult, error) { return c.ResetPartition(ctx, req) })
}
