package gateway

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
)

// Moves implements api.Moves: without a leader it answers what the replica has.
func (c *cluster) Moves(ctx context.Context) (*metaapi.MovesResult, error) {
	ask, cancel := context.WithTimeout(ctx, leaderFirst)
	defer cancel()
	res, err := c.leader.ListMoves(ask)
	if err == nil {
		return res, nil
	}
	list, err := c.moves()
	if err != nil {
		return nil, err
	}
	res = &metaapi.MovesResult{Limit: metaapi.MaxRunningMoves, Running: len(list)}
	for i := range list {
		res.Moves = append(res.Moves, metaapi.MoveRow{Move: list[i], Phase: metaapi.MovePending, LastError: "no metastore leader answers"})
	}
	return res, nil
}

// StartMove implements api.Moves.
func (c *cluster) StartMove(ctx context.Context, req *metaapi.StartMoveRequest) (*metaapi.MoveRow, error) {
	return c.leader.StartMove(ctx, req)
}

// AbortMove implements api.Moves.
func (c *cluster) AbortMove(ctx context.Context, req *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error) {
	return c.leader.AbortMove(ctx, req)
}
