package controller

import (
	"context"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/moves"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

var _ metaapi.Moves = (*Controller)(nil)

func (c *Controller) newMoves() (err error) {
	c.moves, err = moves.New(moves.Config{
		View: c.raft.View(), Read: c.raft.Read, Sure: c.sure, Nodes: c.cfg.Nodes, Elections: c.elections,
		Log: c.log, Registry: c.cfg.Registry, Mono: c.mono, WallMS: c.wallMS,
		Assigned: c.allAssigned,
		Propose: func(ctx context.Context, e metastate.Entry) (*metastate.Result, error) {
			_, res, err := c.propose(ctx, e)
			return res, err
		},
	})
	return err
}

// allAssigned is every partition, those of creates under way included.
func (c *Controller) allAssigned() ([]topic.Assignment, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	return c.assigned(t.placing)
}

// ListMoves implements metaapi.Moves.
func (c *Controller) ListMoves(context.Context) (*metaapi.MovesResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	return c.moves.List()
}

// StartMove implements metaapi.Moves.
func (c *Controller) StartMove(ctx context.Context, req *metaapi.StartMoveRequest) (*metaapi.MoveRow, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	return c.moves.Start(ctx, req)
}

// AbortMove implements metaapi.Moves.
func (c *Controller) AbortMove(ctx context.Context, req *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	return c.moves.Abort(ctx, req)
}
