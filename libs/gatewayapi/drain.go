package gatewayapi

import (
	"context"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Drain is what a gateway tells of its own decommission.
type Drain interface {
	// Drained looks now. Only a true Drained lets the controller remove the gateway,
	// and only when it was asked for this removal: the answer is of the moment.
	Drained(ctx context.Context, req *DrainedRequest) (*DrainedResult, error)
}

// DrainedRequest names the process start that is meant.
type DrainedRequest struct {
	BootNonce topic.ID64 `json:"boot_nonce"`
}

// DrainedResult tells how far a draining gateway is.
type DrainedResult struct {
	Marked  bool  `json:"marked"`  // its replica shows it draining
	Sealed  bool  `json:"sealed"`  // on disk: nothing is accepted until a cancel is applied here
	Backlog int64 `json:"backlog"` // accepted records that are neither committed nor discarded
	Drained bool  `json:"drained"` // all of it: marked, sealed and nothing is left
}

var methodDrained = rpc.Method{Name: "drained", Class: rpc.ClassControl, MaxRequest: 1 << 10, MaxReply: 1 << 10}

// ServeDrain registers the operation of d. Call it before the server serves.
func ServeDrain(s *rpc.Server, d Drain) { rpc.HandleJSON(s, methodDrained, d.Drained) }

var _ Drain = (*Client)(nil)

// Drained implements Drain; see NoDrain.
func (c *Client) Drained(ctx context.Context, req *DrainedRequest) (*DrainedResult, error) {
	return rpc.CallJSON[DrainedResult](ctx, c.peer, methodDrained, req)
}

// NoDrain tells that a gateway's release does not know the question.
func NoDrain(err error) bool { return problem.HasCode(err, problem.RouteNotFound) }
