package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Damaged bytes are messages as others are, as far as they can be read: they are given to
// copies of the partition only, by the registration of who asks and the assignment.

// Pieces implements nodeapi.Candidate.
func (n *Node) Pieces(ctx context.Context, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	who := &nodeapi.FetchRequest{From: req.From, Disk: req.Disk, Boot: req.Boot}
	if !n.view.Latched() {
		return nil, problem.New(problem.NotReady, "this node's metastore replica has not caught up")
	}
	if !n.registered(who) {
		n.metrics.BadFetches.Inc()
		n.shared.Complain("damaged bytes were asked for by a process that is not registered under its node id", "from", req.From)
		return nil, notRegistered(who)
	}
	j := judge(n.view, n.self, n.disk, req.Ref)
	if refusal := j.refuseTarget(req.Ref, req.DiskID, req.Epoch, n.disk, true); refusal != nil {
		return nil, refusal
	}
	if !copies(j.a, req.From, req.Disk) {
		n.metrics.BadFetches.Inc()
		n.shared.Complain("damaged bytes were asked for by a node that has no copy", "partition", req.Ref.String(), "from", req.From)
		return nil, problem.New(problem.NotPartitionLeader, "%s on disk %s is no copy of %s", req.From, req.Disk, req.Ref)
	}
	p := n.peek(req.Ref)
	if p == nil {
		return nil, unavailable(req.Ref)
	}
	if req.Name != "" {
		room, err := n.pieceRoom(ctx, req.MaxBytes)
		if err != nil {
			return nil, err
		}
		bounded := *req
		bounded.MaxBytes = room
		req = &bounded
	}
	res, err := p.Pieces(quorum.Replica{Node: req.From, Disk: req.Disk, Copy: req.Copy}, req)
	if err == nil && len(res.Bytes) > 0 {
		n.catchUp.spent(len(res.Bytes), n.shared.Mono())
	}
	return res, err
}

// copies tells whether another node has a copy of the partition, or is to have one.
func copies(a *topic.Assignment, node string, disk topic.ID64) bool {
	is := func(r topic.Replica) bool { return r.Node == node && r.DiskID == disk }
	return slices.ContainsFunc(a.Replicas, is) || slices.ContainsFunc(a.Observers, is)
}

// pieceRoom waits until so many bytes, or fewer, may go beside the commits of this node.
func (n *Node) pieceRoom(ctx context.Context, want int) (int, error) {
	for {
		room, again := n.catchUp.take(min(max(want, 1), nodeapi.MaxPieceBytes), n.shared.Mono())
		if again == 0 {
			return room, nil
		}
		timer := time.NewTimer(again)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, fmt.Errorf("send damaged bytes: %w", ctx.Err())
		}
	}
}

// AskPieces implements replication.Host.
func (n *Node) AskPieces(ctx context.Context, leader string, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error) {
	if n.cfg.Candidates == nil {
		return nil, problem.New(problem.NotImplemented, "this node asks nobody")
	}
	c, err := n.cfg.Candidates(leader)
	if err != nil {
		return nil, err
	}
	return c.Pieces(ctx, req)
}

// judgePieces says why a copy must be set aside for damage of it, or of the leader's copy:
// what a copy had in a place that is damaged, and in one that is damaged in the leader's
// copy alone, may be nowhere else.
func judgePieces(r *partlog.Remains, v nodeapi.Vouch) (why string) {
	has := make(map[nodeapi.Piece]bool, len(r.Pieces))
	for _, k := range r.Pieces {
		has[nodeapi.Piece(k)] = true
	}
	both := 0
	for _, k := range v.Pieces {
		if has[k] {
			both++
		}
	}
	switch {
	case r.Damaged && (!r.Whole || both < len(has)):
		return "damage was found in it, of which the leader does not keep all bytes; what it had there may be nowhere else"
	case v.Lost, both < len(v.Pieces):
		return "damage was found in the leader's copy; what that has lost may be in this one"
	}
	return ""
}

// damagedHere counts the partitions led here of whose logs damage is known.
func (n *Node) damagedHere() (count int) {
	n.slots.Range(func(_, v any) bool {
		if p := asSlot(v).open.Load(); p != nil && p.Damaged() {
			count++
		}
		return true
	})
	return count
}
