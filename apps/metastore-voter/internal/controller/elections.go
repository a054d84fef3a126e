package controller

import (
	"context"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
)

var _ metaapi.Elections = (*Controller)(nil)

func (c *Controller) newElections() (err error) {
	c.elections, err = election.New(election.Config{
		View: c.raft.View(), Index: c.raft.Index(), Members: c.memberList, Nodes: c.cfg.Nodes, Log: c.log, Registry: c.cfg.Registry, Mono: c.mono,
		Propose: func(ctx context.Context, e metastate.Entry) (*metastate.Result, error) {
			_, res, err := c.propose(ctx, e)
			return res, err
		},
	})
	return err
}

// RecordCopies implements metaapi.Elections.
func (c *Controller) RecordCopies(ctx context.Context, req *metaapi.RecordCopiesRequest) (*metaapi.RecordCopiesResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if len(req.Copies) == 0 || len(req.Copies) > metaapi.MaxCopyReports {
		return nil, invalid("copies", "must have 1 to 1000 reports")
	}
	e := &metastate.RecordCopies{Items: make([]metastate.CopyRecord, len(req.Copies))}
	for i, r := range req.Copies {
		e.Items[i] = metastate.CopyRecord(r)
	}
	index, res, err := c.propose(ctx, e)
	if err != nil {
		return nil, err
	}
	return &metaapi.RecordCopiesResult{Index: index, Done: res.Done}, nil
}

// StepDown implements metaapi.Elections. Only the process that is registered may
// give away what its node leads.
func (c *Controller) StepDown(ctx context.Context, req *metaapi.StepDownRequest) (*metaapi.StepDownResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	m := c.raft.View().Members().ByID[req.NodeID]
	if m == nil || m.BootNonce != req.BootNonce {
		return nil, problem.New(problem.MemberNotFound, "%q is not registered with this start", req.NodeID)
	}
	left, err := c.elections.StepDown(ctx, req.NodeID)
	if err != nil {
		return nil, problem.New(problem.NotReady, "the leader has not registered itself yet")
	}
	return &metaapi.StepDownResult{Left: left}, nil
}

// Suspect implements metaapi.Elections.
func (c *Controller) Suspect(_ context.Context, req *metaapi.SuspectRequest) error {
	if _, err := c.leading(); err != nil {
		return err
	}
	c.elections.Suspect(req.NodeID)
	return nil
}
