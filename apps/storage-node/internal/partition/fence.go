package partition

import (
	"errors"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Fence promises an epoch, durably, and says what this copy has. known is the
// leadership that this node's replica of the metastore shows. A damaged copy promises
// too, and says so: without its word a pair could not be fenced, nor would anybody
// know that a smaller log may lack what this one committed.
func (p *Partition) Fence(epoch topic.Epoch, known quorum.Leadership, positions bool) nodeapi.FenceAnswer {
	p.roleMu.Lock()
	defer p.roleMu.Unlock()
	p.mu.Lock()
	out := nodeapi.FenceAnswer{Status: nodeapi.FenceUnavailable, CopyID: p.state.CopyID}
	if p.closed {
		p.mu.Unlock()
		return out
	}
	err := p.fence.Promise(epoch, known)
	out.PromisedEpoch = p.fence.Promised()
	if err != nil {
		p.mu.Unlock()
		if errors.Is(err, quorum.ErrNotReplica) {
			out.Status = nodeapi.FenceLost
		} else {
			out.Status = nodeapi.FenceStale
		}
		return out
	}
	q := p.queue.Load()
	if p.leader != nil && p.leader.Ended() != nil {
		q = p.resignLocked()
	} else if p.leader == nil {
		q = nil
	}
	p.mu.Unlock()
	err = p.endQueue(q) // its positions go into the answer
	if err == nil {
		err = p.fenceFile.Promise(epoch)
	}
	if err == nil {
		if _, err = p.log.Sync(); errors.Is(err, partlog.ErrFailed) {
			p.mu.Lock()
			err = p.failLocked(err)
			p.mu.Unlock()
		}
	}
	if err != nil {
		p.s.Log.Warn("a fence could not be promised", "partition", p.ref.String(), "epoch", uint32(epoch), "error", err)
		return out
	}
	return p.promised(epoch, positions, out)
}

// promised makes the answer of a fence that is on disk.
func (p *Partition) promised(epoch topic.Epoch, positions bool, out nodeapi.FenceAnswer) nodeapi.FenceAnswer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fence.Stored(epoch)
	if err := p.followLocked(); err != nil {
		p.s.Log.Error("a fenced copy cannot go on", "partition", p.ref.String(), "error", err)
		return out
	}
	p.posMu.Lock()
	defer p.posMu.Unlock()
	a, err := p.fence.Answer(epoch, p.historyLocked(), p.log.LEO(), p.hwm.Load(), p.state.PositionGeneration)
	if err != nil {
		out.Status = nodeapi.FenceStale
		return out
	}
	out.Status, out.LastEpoch, out.LEO, out.HWM = nodeapi.FencePromised, a.LastEpoch, a.LEO, a.HWM
	out.Settled = a.Settled
	if len(p.damage) > 0 {
		out.Status = nodeapi.FenceDamaged
	}
	out.PositionGeneration = a.Generation
	if positions {
		out.Position = p.state.Position
	}
	return out
}
