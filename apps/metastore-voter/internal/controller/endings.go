package controller

import (
	"context"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
)

var _ metaapi.Endings = (*Controller)(nil)

// Endings implements metaapi.Endings.
func (c *Controller) Endings(ctx context.Context, req *metaapi.EndingsRequest) (*metaapi.EndingsResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	limit := req.Limit
	if limit < 1 || limit > metaapi.MaxEndings {
		limit = metaapi.MaxEndings
	}
	res := &metaapi.EndingsResult{Endings: []metaapi.Ending{}}
	err := c.raft.Read(func(r metastate.Reader) error {
		list, err := metastate.Endings(r, req.After, limit+1)
		if err != nil {
			return err
		}
		res.More = len(list) > limit
		for _, e := range list[:min(limit, len(list))] {
			res.Endings = append(res.Endings, metaapi.Ending{Incarnation: e.Incarnation, Topic: e.Name, EndedMS: e.EndedMS})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the ends of topics: %w", err)
	}
	return res, nil
}

// ForgetEnded implements metaapi.Endings. The barrier comes first, so that a
// leader that was replaced proposes nothing; whether an id lives is judged by the
// state machine, at the entry's place in the log.
func (c *Controller) ForgetEnded(ctx context.Context, req *metaapi.ForgetEndedRequest) (*metaapi.ChangeResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if n := len(req.IDs); n == 0 || n > metaapi.MaxEndings {
		return nil, invalid("ids", fmt.Sprintf("has to be 1 to %d", metaapi.MaxEndings))
	}
	if slices.Contains(req.IDs, 0) {
		return nil, invalid("ids", "names no incarnation")
	}
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	index, _, err := c.propose(ctx, &metastate.ForgetEnded{IDs: req.IDs})
	if err != nil {
		return nil, err
	}
	c.log.Info("the ends of topics were forgotten: no member has anything of them", "incarnations", len(req.IDs))
	return &metaapi.ChangeResult{Index: index}, nil
}
