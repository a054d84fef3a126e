package node

import (
	"context"

	"github.com/narad-mq/narad/libs/nodeapi"
)

// Reclaim implements nodeapi.Node. Nothing is removed yet.
func (n *Node) Reclaim(_ context.Context, req *nodeapi.ReclaimRequest) (*nodeapi.ReclaimResult, error) {
	res := &nodeapi.ReclaimResult{Outcomes: make([]nodeapi.ReclaimOutcome, len(req.Items))}
	for i := range res.Outcomes {
		res.Outcomes[i] = nodeapi.ReclaimOutcome{Status: nodeapi.Kept, Reason: "this node cannot reclaim yet"}
	}
	return res, nil
}
