package election

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Wire is Nodes over node RPC: addresses are those of the member records.
type Wire struct {
	View metastate.View
	RPC  *rpc.Client
}

// node is whom to call, and the record by which it is found: another look may find none.
func (w *Wire) node(id string) (*nodeapi.ReplicaClient, *topic.Member, error) {
	rec := w.View.Members().ByID[id]
	if rec == nil || rec.RPCAddr == "" {
		return nil, nil, fmt.Errorf("call storage node %s: no member of that id", id)
	}
	return nodeapi.NewReplicaClient(w.RPC.Peer(id, rec.RPCAddr)), rec, nil
}

// Fence implements Nodes. Positions that had no room are asked for by themselves.
func (w *Wire) Fence(ctx context.Context, node string, items []Fence) ([]Promise, error) {
	out := make([]Promise, 0, len(items))
	for part := range slices.Chunk(items, nodeapi.MaxFenceItems) {
		got, err := w.fence(ctx, node, part)
		if err != nil {
			return nil, err
		}
		out = append(out, got...)
	}
	return out, nil
}

func (w *Wire) fence(ctx context.Context, node string, items []Fence) ([]Promise, error) {
	c, _, err := w.node(node)
	if err != nil {
		return nil, err
	}
	req := &nodeapi.FenceRequest{WithPositions: true}
	for _, it := range items {
		req.Items = append(req.Items, nodeapi.Target{Ref: it.Ref, DiskID: it.Replica.DiskID, Epoch: it.Epoch})
	}
	res, err := c.Fence(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("fence %d partitions at %s: %w", len(items), node, err)
	}
	out := make([]Promise, len(items))
	for i, a := range res.Answers {
		if a.PositionLeft && len(items) > 1 {
			again, err := w.fence(ctx, node, items[i:i+1])
			if err != nil {
				return nil, err
			}
			out[i] = again[0]
			continue
		}
		out[i] = promiseOf(&items[i], &res.Answers[i])
	}
	return out, nil
}

// promiseOf is what an answer is worth: it must be of the copy that is meant, for the
// epoch that was asked for.
func promiseOf(f *Fence, a *nodeapi.FenceAnswer) Promise {
	damaged := a.Status == nodeapi.FenceDamaged
	return Promise{
		OK:        (damaged || a.Status == nodeapi.FencePromised) && a.PromisedEpoch == f.Epoch && a.CopyID == f.Replica.CopyID,
		LastEpoch: a.LastEpoch, LEO: a.LEO, Damaged: damaged, Settled: a.Settled, HWM: a.HWM,
		Generation: a.PositionGeneration, Positions: a.Position,
	}
}

// maxPrimed bounds the positions of the partitions that share a call; those of one
// may be more, up to what a call may carry.
const maxPrimed = 4 << 20

// Prime implements Nodes.
func (w *Wire) Prime(ctx context.Context, node string, items []Prime) error {
	c, self, err := w.node(node)
	if err != nil {
		return err
	}
	for _, part := range primes(items) {
		var req nodeapi.PrimeRequest
		for _, it := range part {
			req.Items = append(req.Items, nodeapi.PrimeItem{
				Target: nodeapi.Target{Ref: it.Ref, DiskID: self.DiskID, Epoch: it.Epoch}, Positions: it.Positions,
			})
		}
		if err := c.Prime(ctx, &req); err != nil {
			return fmt.Errorf("prime %s: %w", node, err)
		}
	}
	return nil
}

// primes shares partitions out over calls, in order.
func primes(items []Prime) (calls [][]Prime) {
	size := 0
	for i, it := range items {
		own := 0
		for _, p := range it.Positions {
			own += len(p)
		}
		if size += own; i == 0 || size > maxPrimed {
			calls, size = append(calls, nil), own
		}
		last := &calls[len(calls)-1]
		*last = append(*last, it)
	}
	return calls
}

// HandOver implements Nodes: the partitions of a call stand still together.
func (w *Wire) HandOver(ctx context.Context, node string, items []HandOver) ([]bool, error) {
	c, self, err := w.node(node)
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(items))
	var calls sync.WaitGroup
	for i, it := range items {
		calls.Go(func() {
			res, err := c.Handover(ctx, &nodeapi.HandoverRequest{
				Target: nodeapi.Target{Ref: it.Ref, DiskID: self.DiskID, Epoch: it.Epoch}, To: it.To.Node, ToDisk: it.To.DiskID,
			})
			out[i] = err == nil && res.Ready // one that refused or did not answer keeps what it leads
		})
	}
	calls.Wait()
	return out, nil
}

// Standing implements Nodes.
func (w *Wire) Standing(ctx context.Context, node string, refs []topic.Ref) ([]Standing, error) {
	c, _, err := w.node(node)
	if err != nil {
		return nil, err
	}
	out := make([]Standing, 0, len(refs))
	for part := range slices.Chunk(refs, nodeapi.MaxFetchPartitions) {
		res, err := c.Standing(ctx, &nodeapi.StandingRequest{Partitions: part})
		if err != nil {
			return nil, fmt.Errorf("ask %s about %d partitions: %w", node, len(part), err)
		}
		if len(res.Partitions) != len(part) {
			return nil, fmt.Errorf("ask %s about %d partitions: %d answers", node, len(part), len(res.Partitions))
		}
		for _, s := range res.Partitions {
			out = append(out, Standing(s))
		}
	}
	return out, nil
}

// Vouch asks the leader of partitions about their copies.
func (w *Wire) Vouch(ctx context.Context, node string, refs []topic.Ref) ([]nodeapi.Vouch, error) {
	c, _, err := w.node(node)
	if err != nil {
		return nil, err
	}
	res, err := c.Vouch(ctx, &nodeapi.VouchRequest{Partitions: refs})
	if err != nil {
		return nil, fmt.Errorf("ask %s to vouch for %d partitions: %w", node, len(refs), err)
	}
	return res.Partitions, nil
}
