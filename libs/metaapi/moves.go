package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Moves is what can be asked about moves of partitions. Safe for concurrent use.
// Refusals are *problem.Problem.
type Moves interface {
	// ListMoves answers every move under way, with what only the leader measures.
	ListMoves(ctx context.Context) (*MovesResult, error)
	// StartMove begins a move. Refusals: topic_not_found, partition_out_of_range,
	// member_not_found, invalid_request (the same node, no storage node, no replica
	// there, one there already), move_in_progress, too_many_requests, not_ready,
	// outcome_unknown.
	StartMove(ctx context.Context, req *StartMoveRequest) (*MoveRow, error)
	// AbortMove takes a move back; again: the same answer until it has ended. Refusals:
	// move_not_in_flight (also when another one than the named is under way),
	// outcome_unknown.
	AbortMove(ctx context.Context, req *AbortMoveRequest) (*MoveRow, error)
}

// MovePhase is how far a move is.
type MovePhase string

// The phases, in order.
const (
	MovePending  MovePhase = "pending"  // nothing was copied yet
	MoveCopying  MovePhase = "copying"  // the destination fetches, and counts for nothing
	MoveJoined   MovePhase = "joined"   // it is a replica
	MoveElecting MovePhase = "electing" // leadership is being handed over
	MoveRemoving MovePhase = "removing" // the source is about to leave the set
	// MoveReclaiming: the source has left the set, and the record of the move goes with the
	// next entry. Who asks hardly ever sees it; the copy itself is removed later, by the
	// sweep of its node, which is no part of a move.
	MoveReclaiming MovePhase = "reclaiming"
)

// MoveBlocked is what a move waits for that does not come by itself.
type MoveBlocked string

// The reasons.
const (
	BlockedSourceDead   MoveBlocked = "source_dead"
	BlockedTargetDead   MoveBlocked = "target_dead"
	BlockedUnverifiable MoveBlocked = "copy_unverifiable" // the source's copy is on no disk of record
	BlockedTargetFull   MoveBlocked = "target_disk_full"
	// BlockedLeader: nobody leads the partition, or its leader has not answered for a while.
	BlockedLeader MoveBlocked = "leader_unavailable"
)

// MoveBlockedReasons lists them, for metrics that show zeros too.
func MoveBlockedReasons() []MoveBlocked {
	return []MoveBlocked{BlockedSourceDead, BlockedTargetDead, BlockedUnverifiable, BlockedTargetFull, BlockedLeader}
}

// MaxRunningMoves is how many moves run at once; blocked ones do not count: each
// copies a partition, and a cluster that does nothing else serves nobody.
const MaxRunningMoves = 8

// MoveRow is one move.
type MoveRow struct {
	topic.Move
	Phase          MovePhase   `json:"phase"`
	CopiedBytes    int64       `json:"copied_bytes"`
	TotalBytes     int64       `json:"total_bytes"` // of the source's log; 0: not known yet
	BytesPerSecond int64       `json:"bytes_per_second"`
	Blocked        MoveBlocked `json:"blocked,omitempty"`
	LastError      string      `json:"last_error,omitempty"`
}

// MovesResult is every move, oldest first.
type MovesResult struct {
	Moves   []MoveRow `json:"moves"`
	Running int       `json:"running"` // that are not blocked
	Limit   int       `json:"limit"`
	Waiting int       `json:"waiting"` // that are planned and begin when others end
}

// StartMoveRequest names a partition and its way. Incarnation 0 does not compare it.
type StartMoveRequest struct {
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Partition   int32             `json:"partition"`
	From        string            `json:"from"`
	To          string            `json:"to"`
}

// AbortMoveRequest names a partition, and its move by when that was started: without it,
// 0, a request that is repeated takes back whatever is under way by then.
type AbortMoveRequest struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	StartedMS int64  `json:"started_ms,omitzero"`
}

var (
	methodListMoves = control("list_moves", smallBody, tableBody)
	methodStartMove = control("start_move", smallBody, smallBody)
	methodAbortMove = control("abort_move", smallBody, smallBody)
)

// ServeMoves registers the operations of m. Call it before the server serves.
func ServeMoves(s *rpc.Server, m Moves) {
	rpc.HandleJSON(s, methodListMoves, func(ctx context.Context, _ *empty) (*MovesResult, error) { return m.ListMoves(ctx) })
	rpc.HandleJSON(s, methodStartMove, m.StartMove)
	rpc.HandleJSON(s, methodAbortMove, m.AbortMove)
}

var (
	_ Moves = (*Client)(nil)
	_ Moves = (*Leader)(nil)
)

// ListMoves implements Moves.
func (c *Client) ListMoves(ctx context.Context) (*MovesResult, error) {
	return rpc.CallJSON[MovesResult](ctx, c.peer, methodListMoves, empty{})
}

// StartMove implements Moves.
func (c *Client) StartMove(ctx context.Context, req *StartMoveRequest) (*MoveRow, error) {
	return rpc.CallJSON[MoveRow](ctx, c.peer, methodStartMove, req)
}

// AbortMove implements Moves.
func (c *Client) AbortMove(ctx context.Context, req *AbortMoveRequest) (*MoveRow, error) {
	return rpc.CallJSON[MoveRow](ctx, c.peer, methodAbortMove, req)
}

// ListMoves implements Moves.
func (l *Leader) ListMoves(ctx context.Context) (*MovesResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*MovesResult, error) { return c.ListMoves(ctx) })
}

// StartMove implements Moves.
func (l *Leader) StartMove(ctx context.Context, req *StartMoveRequest) (*MoveRow, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*MoveRow, error) { return c.StartMove(ctx, req) })
}

// AbortMove implements Moves.
func (l *Leader) AbortMove(ctx context.Context, req *AbortMoveRequest) (*MoveRow, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*MoveRow, error) { return c.AbortMove(ctx, req) })
}
