package controller

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Quorum implements metaapi.Voter. A node that does not lead refuses: who asks
// then asks every server itself.
func (c *Controller) Quorum(ctx context.Context) (*metaapi.QuorumResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	return c.cfg.Quorum(ctx), nil
}

// Forget implements metaapi.Voter. The configuration is read after the barrier
// and named in the change, so that nobody who joined meanwhile is removed.
func (c *Controller) Forget(ctx context.Context, req *metaapi.ForgetRequest) (*metaapi.ChangeResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timing.Propose)
	defer cancel()
	c.members.Lock()
	defer c.members.Unlock()
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	conf := c.raft.Configuration()
	server := find(conf, req.NodeID)
	if err := c.checkForget(req.NodeID, server != nil); err != nil {
		return nil, err
	}
	index, err := c.raft.RemoveServer(ctx, server.RaftID, conf.Index)
	if err != nil {
		return nil, c.refusal(err)
	}
	c.log.Warn("removed a raft server that was no member", "node", req.NodeID)
	return &metaapi.ChangeResult{Index: index}, nil
}

func (c *Controller) checkForget(id string, server bool) error {
	return c.raft.Read(func(r metastate.Reader) error {
		record, err := metastate.MemberByID(r, id)
		if err != nil {
			return err
		}
		return forgettable(id, record, server, metastate.TopicsOnNode(r, id))
	})
}

// forgettable is nil for a Raft server that nobody would miss: one that left a
// record may come back, and one that has partitions is where their messages are.
func forgettable(id string, record *topic.Member, server bool, topics []string) error {
	switch {
	case record != nil:
		return problem.New(problem.HasMemberRecord, "%q is a member: decommission it", id)
	case !server:
		return problem.New(problem.MemberNotFound, "there is no Raft server %q", id)
	case len(topics) > 0:
		return problem.New(problem.HasAssignments, "%q has partitions of %d topics, of %q first", id, len(topics), topics[0])
	}
	return nil
}
