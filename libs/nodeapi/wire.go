package nodeapi

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
)

// Bounds of the bodies: a batch is at most 8 MiB of records plus headers, and
// an answer is MaxAnswerBytes plus what the last taker may add, plus headers.
const (
	maxCommitBody   = 9 << 20
	maxRequestBody  = 4 << 20
	maxAnswerBody   = MaxAnswerBytes + 17<<20 + 3<<20
	maxSmallReply   = 64 << 10
	maxDetailsReply = 4 << 20

	maxInventoryReply = 4 << 20

	// 1,000 items of names of at most 255 bytes, each six bytes in JSON at worst;
	// outcomes with a reason of some 200 bytes.
	maxReclaimRequest = 4 << 20
	maxReclaimReply   = 1 << 20
)

// The operations of a storage node.
var (
	methodCommit  = rpc.Method{Name: "commit", Class: rpc.ClassCommit, MaxRequest: maxCommitBody, MaxReply: maxSmallReply}
	methodClaim   = rpc.Method{Name: "claim", Class: rpc.ClassConsume, MaxRequest: maxRequestBody, MaxReply: maxAnswerBody}
	methodSettle  = rpc.Method{Name: "settle", Class: rpc.ClassAck, MaxRequest: maxRequestBody, MaxReply: maxSmallReply}
	methodRead    = rpc.Method{Name: "read", Class: rpc.ClassConsume, MaxRequest: maxSmallReply, MaxReply: maxAnswerBody}
	methodDetails = rpc.Method{Name: "details", Class: rpc.ClassControl, MaxRequest: maxSmallReply, MaxReply: maxDetailsReply}

	methodInventory = rpc.Method{Name: "inventory", Class: rpc.ClassControl, MaxRequest: maxSmallReply, MaxReply: maxInventoryReply}
	methodReclaim   = rpc.Method{Name: "reclaim", Class: rpc.ClassControl, MaxRequest: maxReclaimRequest, MaxReply: maxReclaimReply}
)

// Serve registers the operations of n. Call it before the server serves. The
// Batch of a CommitRequest is a view of the request's buffer, which is used
// again once Commit has returned nil, and never again when it returned an error.
func Serve(s *rpc.Server, n Node) {
	binaryOp(s, methodCommit, decodeCommit, n.Commit, appendCommitResult)
	binaryOp(s, methodClaim, decodeClaimRequest, n.Claim, appendClaimResult)
	binaryOp(s, methodSettle, decodeSettleRequest, n.Settle, appendSettleResult)
	binaryOp(s, methodRead, decodeReadRequest, n.Read, appendReadResult)
	rpc.HandleJSON(s, methodDetails, n.Details)
	rpc.HandleJSON(s, methodInventory, n.Inventory)
	rpc.HandleJSON(s, methodReclaim, n.Reclaim)
}

func binaryOp[Req, Res any](s *rpc.Server, m rpc.Method, decode func([]byte) (*Req, error),
	do func(context.Context, *Req) (*Res, error), encode func([]byte, *Res) []byte,
) {
	s.Handle(m, func(ctx context.Context, r *rpc.Request, reply []byte) ([]byte, error) {
		req, err := decode(r.Body)
		if err != nil {
			return nil, rpc.Malformed(m)
		}
		res, err := do(ctx, req)
		if err != nil {
			return nil, err
		}
		return encode(reply, res), nil
	})
}

// Client is the Node at one address. Besides refusals its methods return
// *rpc.TransportError. The bodies and ids of a ClaimResult or ReadResult keep
// the whole answer in memory as long as one of them is in use.
type Client struct{ peer *rpc.Peer }

var _ Node = (*Client)(nil)

// NewClient returns the node that a peer reaches.
func NewClient(peer *rpc.Peer) *Client { return &Client{peer: peer} }

// Commit implements Node. The batch is not read any more when it returns.
func (c *Client) Commit(ctx context.Context, req *CommitRequest) (*CommitResult, error) {
	var room [512]byte // a head is at most 200 bytes of name and 30 more
	reply, err := c.peer.Call(ctx, methodCommit, appendCommitHead(room[:0], req), req.Batch)
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	return decoded(c, methodCommit, reply, decodeCommitResult)
}

// Claim implements Node.
func (c *Client) Claim(ctx context.Context, req *ClaimRequest) (*ClaimResult, error) {
	reply, err := c.peer.Call(ctx, methodClaim, appendClaimRequest(nil, req))
	if err != nil {
		return nil, err
	}
	return decoded(c, methodClaim, reply, decodeClaimResult) // not released: the bodies point into it
}

// Settle implements Node.
func (c *Client) Settle(ctx context.Context, req *SettleRequest) (*SettleResult, error) {
	if len(req.Ops) > MaxSettleOps {
		return nil, &rpc.TransportError{
			Op: methodSettle.Name, Node: c.peer.Addr(),
			Err: fmt.Errorf("%d operations, the bound is %d", len(req.Ops), MaxSettleOps),
		}
	}
	reply, err := c.peer.Call(ctx, methodSettle, appendSettleRequest(nil, req))
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	res, err := decoded(c, methodSettle, reply, decodeSettleResult)
	if err == nil && len(res.Statuses) != len(req.Ops) {
		return nil, c.lost(methodSettle, fmt.Errorf("%d statuses for %d operations", len(res.Statuses), len(req.Ops)))
	}
	return res, err
}

// Read implements Node.
func (c *Client) Read(ctx context.Context, req *ReadRequest) (*ReadResult, error) {
	reply, err := c.peer.Call(ctx, methodRead, appendReadRequest(nil, req))
	if err != nil {
		return nil, err
	}
	return decoded(c, methodRead, reply, decodeReadResult) // not released: the bodies point into it
}

// Details implements Node.
func (c *Client) Details(ctx context.Context, req *DetailsRequest) (*DetailsResult, error) {
	return rpc.CallJSON[DetailsResult](ctx, c.peer, methodDetails, req)
}

// Inventory implements Node.
func (c *Client) Inventory(ctx context.Context, req *InventoryRequest) (*InventoryResult, error) {
	return rpc.CallJSON[InventoryResult](ctx, c.peer, methodInventory, req)
}

// Reclaim implements Node.
func (c *Client) Reclaim(ctx context.Context, req *ReclaimRequest) (*ReclaimResult, error) {
	if len(req.Items) > MaxReclaimItems {
		return nil, &rpc.TransportError{
			Op: methodReclaim.Name, Node: c.peer.Addr(),
			Err: fmt.Errorf("%d items, the bound is %d", len(req.Items), MaxReclaimItems),
		}
	}
	res, err := rpc.CallJSON[ReclaimResult](ctx, c.peer, methodReclaim, req)
	if err == nil && len(res.Outcomes) != len(req.Items) {
		return nil, c.lost(methodReclaim, fmt.Errorf("%d outcomes for %d items", len(res.Outcomes), len(req.Items)))
	}
	return res, err
}

func decoded[Res any](c *Client, m rpc.Method, reply rpc.Reply, decode func([]byte) (*Res, error)) (*Res, error) {
	res, err := decode(reply.Body)
	if err != nil {
		return nil, c.lost(m, err)
	}
	return res, nil
}

// lost is an answer that cannot be understood: the work was done, or not.
func (c *Client) lost(m rpc.Method, err error) error {
	return &rpc.TransportError{Op: m.Name, Node: c.peer.Addr(), Sent: true, Err: err}
}
