package nodeapi

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
)

// Bounds of the bodies. A fetch reply is what was asked for, then what the last
// partition may go past it: one batch (16 MiB and its header), its positions and
// a snapshot; and 120 bytes of head for each partition. A fence reply is the same
// without batches and snapshots.
const (
	maxFetchBody  = 4 << 20
	maxFetchReply = MaxFetchBytes + 17<<20 + maxPosition + maxSnapshot + 1<<20
	maxFenceBody  = 1 << 20
	maxFenceReply = MaxFenceBytes + maxPosition + 1<<20
)

// The operations between replicas. Fences are control: they must get through
// when fetches have every slot.
var (
	methodFetch    = rpc.Method{Name: "fetch", Class: rpc.ClassFetch, MaxRequest: maxFetchBody, MaxReply: maxFetchReply}
	methodFence    = rpc.Method{Name: "fence", Class: rpc.ClassControl, MaxRequest: maxFenceBody, MaxReply: maxFenceReply}
	methodHandover = rpc.Method{Name: "handover", Class: rpc.ClassControl, MaxRequest: maxSmallReply, MaxReply: maxSmallReply}
)

// ServeReplica registers the operations of r. Call it before the server serves.
// A FetchResult is released when its bytes have been written.
func ServeReplica(s *rpc.Server, r Replica) {
	s.HandleParts(methodFetch, func(ctx context.Context, call *rpc.Request, reply []byte) ([][]byte, func(), error) {
		req, err := decodeFetchRequest(call.Body)
		if err != nil {
			return nil, nil, rpc.Malformed(methodFetch)
		}
		res, err := r.Fetch(ctx, req)
		if err != nil {
			return nil, nil, err
		}
		return appendFetchResult(reply, res), res.Release, nil
	})
	binaryOp(s, methodFence, decodeFenceRequest, r.Fence, appendFenceResult)
	rpc.HandleJSON(s, methodHandover, r.Handover)
}

// ReplicaClient is the Replica at one address. Besides refusals its methods
// return *rpc.TransportError. The positions of a FenceResult keep the whole
// answer in memory, and those of a FetchResult are valid until its Release.
type ReplicaClient struct{ Client }

var _ Replica = (*ReplicaClient)(nil)

// NewReplicaClient returns the node that a peer reaches.
func NewReplicaClient(peer *rpc.Peer) *ReplicaClient { return &ReplicaClient{Client{peer: peer}} }

// Fetch implements Replica. An answer about a partition that was not asked for
// is not believed.
func (c *ReplicaClient) Fetch(ctx context.Context, req *FetchRequest) (*FetchResult, error) {
	if len(req.Partitions) > MaxFetchPartitions {
		return nil, c.tooMany(methodFetch, len(req.Partitions), MaxFetchPartitions)
	}
	reply, err := c.peer.Call(ctx, methodFetch, appendFetchRequest(nil, req))
	if err != nil {
		return nil, err
	}
	res, err := decoded(&c.Client, methodFetch, reply, decodeFetchResult)
	if err != nil {
		return nil, err
	}
	if n := len(res.Partitions); n > 0 && res.Partitions[n-1].Index >= len(req.Partitions) {
		return nil, c.lost(methodFetch, fmt.Errorf("an answer about partition %d of %d", res.Partitions[n-1].Index, len(req.Partitions)))
	}
	res.OnRelease(reply.Release)
	return res, nil
}

// Fence implements Replica.
func (c *ReplicaClient) Fence(ctx context.Context, req *FenceRequest) (*FenceResult, error) {
	if len(req.Items) > MaxFenceItems {
		return nil, c.tooMany(methodFence, len(req.Items), MaxFenceItems)
	}
	reply, err := c.peer.Call(ctx, methodFence, appendFenceRequest(nil, req))
	if err != nil {
		return nil, err
	}
	res, err := decoded(&c.Client, methodFence, reply, decodeFenceResult) // not released: the positions point into it
	if err == nil && len(res.Answers) != len(req.Items) {
		return nil, c.lost(methodFence, fmt.Errorf("%d answers for %d items", len(res.Answers), len(req.Items)))
	}
	return res, err
}

// Handover implements Replica.
func (c *ReplicaClient) Handover(ctx context.Context, req *HandoverRequest) (*HandoverResult, error) {
	return rpc.CallJSON[HandoverResult](ctx, c.peer, methodHandover, req)
}

func (c *ReplicaClient) tooMany(m rpc.Method, n, bound int) error {
	return &rpc.TransportError{Op: m.Name, Node: c.peer.Addr(), Err: fmt.Errorf("%d partitions, the bound is %d", n, bound)}
}
