package node

import (
	"context"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Limits of one read: what the API allows (api.md, section 12).
const (
	maxReadRecords = 1000
	maxReadBytes   = 16 << 20
	// confirmWait bounds what a confirmed read waits for a majority: a follower that
	// lives fetches again within milliseconds; the caller has 5 s altogether.
	confirmWait = 3 * time.Second
)

// Commit implements nodeapi.Node. The batch's placement is overwritten.
func (n *Node) Commit(ctx context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error) {
	began := time.Now()
	j := n.judgeFor(ctx, req.Ref, req.Epoch)
	if refusal := j.refuseTarget(req.Ref, req.DiskID, req.Epoch, n.disk, false); refusal != nil {
		return nil, refusal
	}
	if n.full.Load() {
		return nil, problem.New(problem.DiskFull, "the disk of this node is full")
	}
	if err := record.Verify(req.Batch); err != nil {
		return nil, problem.New(problem.DamagedBatch, "batch for %s: %v", req.Ref, err)
	}
	h, err := record.ParseHeader(req.Batch)
	if err != nil || h.Control {
		return nil, problem.New(problem.DamagedBatch, "batch for %s is not one of a producer", req.Ref)
	}
	p, err := n.partition(ctx, req.Ref, j.a)
	if err != nil {
		return nil, unavailable(req.Ref)
	}
	n.pulse.began()
	committed := 0
	defer func() { n.pulse.ended(time.Since(began), committed, n.shared.Mono()) }()
	res, err := p.Commit(ctx, &partition.Incoming{
		Epoch: req.Epoch, Batch: req.Batch, Header: &h,
		Recheck: func() *problem.Problem {
			return judge(n.view, n.self, n.disk, req.Ref).refuseTarget(req.Ref, req.DiskID, req.Epoch, n.disk, false)
		},
	})
	if err == nil {
		committed = len(req.Batch)
		n.metrics.CommitSeconds.Observe(time.Since(began).Seconds())
	}
	return res, err
}

func unavailable(ref topic.Ref) *problem.Problem {
	return problem.New(problem.PartitionUnavailable, "%s cannot be opened now", ref)
}

// Read implements nodeapi.Node.
func (n *Node) Read(ctx context.Context, req *nodeapi.ReadRequest) (*nodeapi.ReadResult, error) {
	j := n.judgeFor(ctx, req.Ref, req.Epoch)
	if refusal := j.refuseTarget(req.Ref, req.DiskID, req.Epoch, n.disk, true); refusal != nil {
		return nil, refusal
	}
	p, err := n.partition(ctx, req.Ref, j.a)
	if err != nil {
		return nil, unavailable(req.Ref)
	}
	if p.Queue() == nil {
		return nil, unavailable(req.Ref)
	}
	if req.Confirmed {
		ctx, cancel := context.WithTimeout(ctx, confirmWait)
		defer cancel()
		if err := p.Confirm(ctx); err != nil {
			return nil, err
		}
	}
	bounded := *req
	bounded.Limit = min(max(req.Limit, 1), maxReadRecords)
	bounded.MaxBytes = min(max(req.MaxBytes, 1), maxReadBytes)
	res, err := p.Read(&bounded)
	if err == nil && p.Queue() == nil { // the right to serve ended meanwhile: what was read may be old
		return nil, unavailable(req.Ref)
	}
	if err != nil {
		// What has ended meanwhile is told as that, not as trouble of the disk.
		if refusal := judge(n.view, n.self, n.disk, req.Ref).refuse(req.Ref, true); refusal != nil {
			return nil, refusal
		}
	}
	return res, err
}

// Details implements nodeapi.Node: a row for each partition that this node
// leads, with a problem in place of figures when it cannot be served.
func (n *Node) Details(ctx context.Context, req *nodeapi.DetailsRequest) (*nodeapi.DetailsResult, error) {
	res := &nodeapi.DetailsResult{Partitions: make([]nodeapi.PartitionDetails, 0, len(req.Partitions))}
	for _, i := range req.Partitions {
		ref := topic.Ref{Topic: req.Topic, Incarnation: req.Incarnation, Partition: i}
		j := judge(n.view, n.self, n.disk, ref)
		switch j.standing {
		case leads, lost:
		case gone, replaced:
			return nil, j.refuse(ref, true)
		case notReady:
			return nil, j.refuse(ref, true)
		default:
			continue
		}
		row := nodeapi.PartitionDetails{Partition: i, Epoch: j.a.LeaderEpoch, ConfigVersion: j.a.ConfigVersion}
		if j.standing == lost {
			row.Problem = j.refuse(ref, true)
		} else if p, err := n.partition(ctx, ref, j.a); err != nil {
			row.Problem = notServed(ref, err)
		} else {
			row = p.Details(j.a)
		}
		res.Partitions = append(res.Partitions, row)
	}
	return res, nil
}
