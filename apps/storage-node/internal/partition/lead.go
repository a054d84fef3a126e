package partition

import (
	"fmt"

	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Lead begins the leadership that the assignment names, unless it has begun
// already. When it returns nil the partition is served under that epoch, and the
// tail that an earlier epoch left is committed.
func (p *Partition) Lead(a *topic.Assignment) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader != nil && p.Epoch() >= a.LeaderEpoch {
		return nil
	}
	if p.closed {
		return fmt.Errorf("lead %s: %w", p.ref, queue.ErrClosed)
	}
	for p.round != nil { // the epoch before ends when its last sync has
		r := p.round
		p.mu.Unlock()
		<-r.done
		p.mu.Lock()
	}
	if err := p.beginLocked(a); err != nil {
		return fmt.Errorf("lead %s under epoch %d: %w", p.ref, a.LeaderEpoch, err)
	}
	if p.queue == nil {
		p.openQueueLocked(a.LeaderEpoch)
	} else if err := p.queue.NewEpoch(a.LeaderEpoch); err != nil {
		return err
	}
	p.epoch.Store(uint32(a.LeaderEpoch))
	return nil
}

// beginLocked makes this copy the leader. The lock is held across the syncs of
// it: nothing of the new epoch may be appended before.
func (p *Partition) beginLocked(a *topic.Assignment) error {
	if p.failed == nil {
		if _, err := p.log.Sync(); err != nil {
			return p.failLocked(err)
		}
	}
	self := quorum.Replica{Node: p.s.Node, Disk: p.s.DiskID}
	set := make([]quorum.Replica, 0, len(a.Replicas))
	for _, r := range a.Replicas {
		set = append(set, quorum.Replica{Node: r.Node, Disk: r.DiskID})
	}
	l, err := quorum.BecomeLeader(self, set, a.LeaderEpoch, quorum.Log{
		LEO: p.log.LEO(), HWM: p.hwm.Load(), LastEpoch: p.log.LastEpoch(),
	})
	if err != nil {
		return err
	}
	if gap := l.Start() - p.log.LEO(); gap > 0 {
		p.s.Metrics.DamagedOffsets.Add(float64(gap))
		p.s.Log.Error("the log ends below what it had committed; the offsets between are lost",
			"partition", p.ref.String(), "log_end", p.log.LEO(), "high_watermark", l.Start())
	}
	if err := p.log.BeginEpoch(a.LeaderEpoch, l.Start()); err != nil {
		return err
	}
	p.leader, p.failed, p.waiting = l, nil, 0
	p.clockBase, p.clockAt = max(p.s.Now().UnixMilli(), p.log.LastCommitMS()), p.s.Now()
	p.changeDue = l.LeaderChange() != quorum.NotNeeded
	if l.LeaderChange() != quorum.AtOnce {
		return nil
	}
	if err := p.changeLocked(); err != nil {
		return err
	}
	leo, err := p.log.Sync()
	if err != nil {
		return p.failLocked(err)
	}
	p.syncedLocked(leo)
	return nil
}

// changeLocked appends the leader-change batch if it is due.
func (p *Partition) changeLocked() error {
	if !p.changeDue {
		return nil
	}
	epoch := p.leader.Epoch()
	if _, err := p.log.Append(record.AppendLeaderChange(nil, epoch), epoch, p.clockLocked()); err != nil {
		if p.refused(err) != nil {
			return err // it is still due: the next commit begins with it
		}
		return p.failLocked(err)
	}
	p.changeDue = false
	return nil
}

// clockLocked is the partition clock: it goes on from the last stamp in the log
// and never back, whatever the wall clock does.
func (p *Partition) clockLocked() int64 {
	return p.clockBase + p.s.Now().Sub(p.clockAt).Milliseconds()
}

// syncedLocked moves the high watermark by the rule.
func (p *Partition) syncedLocked(leo int64) {
	if p.leader.Synced(leo) {
		hwm := p.leader.HWM()
		p.hwm.Store(hwm)
		p.log.Committed(hwm)
	}
}

// failLocked ends this leadership: nothing is appended before a new epoch.
func (p *Partition) failLocked(err error) error {
	p.s.Cache.Forget(p.id) // the log is cut: other batches will stand at offsets that were never committed
	if p.failed == nil {
		p.failed = err
		p.s.Failed(fmt.Errorf("disk under %s: %w", p.ref, err))
	}
	return err
}

// openQueueLocked makes the consume side from the positions in the state.
func (p *Partition) openQueueLocked(epoch topic.Epoch) {
	var seed [32]byte
	p.s.Random(seed[:])
	q, err := queue.Open(queue.Config{
		Ref: p.ref, Epoch: epoch, Source: p, Positions: p.state.Position,
		Now: func() int64 { return p.s.Now().UnixMilli() }, Waker: p.s.Waker, Scheduler: p.s.Scheduler,
		Flusher: p.s.Flusher, Skipped: p.skipped,
	}, seed)
	if err != nil {
		p.s.Log.Error("consumer positions are damaged; what was settled is delivered again",
			"partition", p.ref.String(), "error", err)
	}
	p.state.Position = nil
	p.queue = q
}

func (p *Partition) skipped(from, to int64, err error) {
	p.s.Metrics.CorruptSkipped.Add(float64(to - from))
	p.s.Log.Error("records cannot be read and are passed over", "partition", p.ref.String(),
		"from", from, "to", to, "error", err)
}
