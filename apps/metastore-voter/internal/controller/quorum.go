package controller

import (
	"context"

	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
)

// Quorum implements metaapi.Voter: this node's own view, also when it does not lead.
func (c *Controller) Quorum(context.Context) (*metaapi.QuorumResult, error) {
	return member.QuorumOf(c.cfg.NodeID, c.raft.Stats(), c.raft.View().Members().ByID), nil
}
