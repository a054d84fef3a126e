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
		Assigned: c.movable, Members: c.memberList,
		Propose: func(ctx context.Context, e metastate.Entry) (*metastate.Result, error) {
			_, res, err := c.propose(ctx, e)
			return res, err
		},
	})
	return err
}

// movable is allAssigned, where nobody leads what is lost: the node that is to have an only
// copy and misses it still leads by the record, and nothing can be copied from it.
func (c *Controller) movable() ([]topic.Assignment, error) {
	out, err := c.allAssigned()
	if err != nil {
		return nil, err
	}
	heard, _ := c.heardMissing()
	missed, err := lostCopies(c.raft.View(), heard)
	if err != nil {
		return nil, unregistered(err)
	}
	lost := map[topic.Ref]bool{}
	for _, n := range missed.Nodes {
		for _, one := range n.Named {
			lost[one.Ref] = true
		}
	}
	for i := range out {
		if lost[out[i].Ref] {
			out[i].Leader = ""
		}
	}
	return out, nil
}

// allAssigned lists every partition, those of creates and growths under way included,
// each once, for plans that look at each: a rebalance.
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
	applied := map[topic.Incarnation]int{} // how many of its partitions are listed
	for _, live := range all {
		p, err := view.Assignments(live.Name)
		switch {
		case errors.Is(err, metastate.ErrNoTopic): // deleted since it was listed
		case err != nil:
			return nil, unregistered(err)
		default:
			out = append(out, p.List...)
			applied[p.Incarnation] = len(p.List)
		}
	}
	twice := map[topic.Ref]bool{} // of two growths of one topic at once, one is refused
	for _, list := range t.placing {
		for i := range list {
			if a := &list[i]; int(a.Partition) >= applied[a.Incarnation] && !twice[a.Ref] {
				twice[a.Ref] = true
				out = append(out, *a)
			}
		}
	}
	return out, nil
}

// ListMoves implements metaapi.Moves.
func (c *Controller) ListMoves(context.Context) (*metaapi.MovesResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	res, err := c.moves.List()
	if err != nil {
		return nil, err
	}
	leaving, err := removals{c}.toEvacuate()
	if err != nil {
		return nil, err
	}
	res.Waiting += leaving
	return res, nil
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
