package controller

import (
	"context"
	"errors"
	"math"

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
		Assigned: c.allAssigned, Members: c.memberList,
		Propose: func(ctx context.Context, e metastate.Entry) (*metastate.Result, error) {
			_, res, err := c.propose(ctx, e)
			return res, err
		},
	})
	return err
}

// allAssigned lists every partition, those of creates under way included, each
// once, for plans that look at each: a rebalance.
func (c *Controller) allAssigned() ([]topic.Assignment, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	t.placeMu.Lock()
	defer t.placeMu.Unlock()
	view := c.raft.View()
	all, err := view.Topics("", "", math.MaxInt)
	if err != nil {
		return nil, err
	}
	var out []topic.Assignment
	applied := map[topic.Incarnation]bool{}
	for _, live := range all {
		if t.placing[live.Incarnation] != nil {
			applied[live.Incarnation] = true
		}
		p, err := view.Assignments(live.Name)
		switch {
		case errors.Is(err, metastate.ErrNoTopic): // deleted since it was listed
		case err != nil:
			return nil, unregistered(err)
		default:
			out = append(out, p.List...)
		}
	}
	for id, list := range t.placing {
		if !applied[id] {
			out = append(out, list...)
		}
	}
	return out, nil
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
