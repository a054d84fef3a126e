package partition

import (
	"fmt"

	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// lead begins the leadership that the assignment names, unless it has begun
// already. When it returns nil, commits are taken under that epoch, and the tail
// that an earlier epoch left is committed as soon as a majority has it.
func (p *Partition) lead(set *Set) error {
	p.mu.Lock()
	for p.round != nil && !p.leadsLocked(set.Epoch) { // the epoch before ends when its last sync has
		r := p.round
		p.mu.Unlock()
		<-r.done
		p.mu.Lock()
	}
	var err error
	switch {
	case p.closed:
		err = queue.ErrClosed
	case p.leadsLocked(set.Epoch):
		err = p.configureLocked(set)
	case p.leader != nil && p.leader.Epoch() >= set.Epoch, set.Epoch < p.fence.Promised():
		p.mu.Unlock()
		return nil // it is over: a newer assignment is on its way
	default:
		err = p.beginLocked(set)
	}
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("lead %s under epoch %d: %w", p.ref, set.Epoch, err)
	}
	if err := p.serveIfSettled(); err != nil {
		return err
	}
	p.epoch.Store(uint32(set.Epoch)) // last: who sees it may take what the queue leases under it
	return nil
}

func (p *Partition) leadsLocked(epoch topic.Epoch) bool {
	return p.leader != nil && p.leader.Epoch() == epoch && p.leader.Ended() == nil
}

// beginLocked makes this copy the leader. The lock is held across the syncs of
// it: nothing of the new epoch may be appended before.
func (p *Partition) beginLocked(set *Set) error {
	if p.failed == nil {
		if _, err := p.log.Sync(); err != nil {
			return p.failLocked(err)
		}
	}
	l, err := p.becomeLocked(set)
	if err != nil {
		return err
	}
	if gap := l.Start() - p.log.LEO(); gap > 0 {
		p.s.Metrics.DamagedOffsets.Add(float64(gap))
		p.s.Log.Error("the log ends below what it had committed; the offsets between are lost",
			"partition", p.ref.String(), "log_end", p.log.LEO(), "high_watermark", l.Start())
		if err := p.log.NoteLoss(); err != nil { // its offsets will look as if they were skipped on purpose
			return err
		}
	}
	if err := p.log.BeginEpoch(set.Epoch, l.Start()); err != nil {
		return err
	}
	p.ledSince, p.level, p.elected = p.s.Mono(), map[string]int64{}, nil
	p.leader, p.follower, p.setSize, p.failed, p.waiting = l, nil, len(set.Replicas), nil, 0
	p.clockBase, p.clockAt = max(p.s.Now().UnixMilli(), p.log.LastCommitMS()), p.s.Mono()
	p.changeDue = l.LeaderChange() != quorum.NotNeeded
	p.posMu.Lock()
	p.posVersion = 1 // what it begins with; followers have seen none of this epoch
	p.posMu.Unlock()
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
	p.watch.tell()
	return nil
}

// becomeLocked asks the rule whether this copy may lead. It says so once: a log
// that could not begin the epoch is tried again with what it said.
func (p *Partition) becomeLocked(set *Set) (*quorum.Leader, error) {
	switch several := len(set.Replicas) > 1; {
	case several && p.primed.epoch != set.Epoch && (p.elected == nil || p.elected.Epoch() != set.Epoch):
		return nil, errNotPrimed
	case len(p.damage) == 0:
	case several:
		return nil, fmt.Errorf("%w: from %d to %d", errDamaged, p.damage[0].From, p.damage[0].To)
	default:
		p.forgoLocked()
	}
	if l := p.elected; l != nil && l.Epoch() == set.Epoch && l.Ended() == nil {
		return l, nil
	}
	at := quorum.Log{LEO: p.log.LEO(), HWM: p.hwm.Load(), LastEpoch: p.log.LastEpoch()}
	config := set.Config
	config.Replicas = p.own(set)
	p.fence.Recorded(config.Replicas)
	var err error
	p.elected, err = quorum.Lead(p.fence, config, set.Epoch, at)
	return p.elected, err
}

// serveIfSettled opens the consume side of a leadership whose high watermark
// covers everything that earlier epochs committed, unless it is open.
func (p *Partition) serveIfSettled() error {
	p.mu.Lock()
	if p.leader == nil || !p.leader.CanServe() || p.closed {
		p.mu.Unlock()
		return nil
	}
	epoch, q := p.leader.Epoch(), p.queue.Load()
	if q == nil {
		p.openQueueLocked(epoch)
	}
	p.leaseLocked()
	p.mu.Unlock()
	if q != nil {
		p.renewCursors(epoch)
		return q.NewEpoch(epoch)
	}
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
	return p.clockBase + p.s.Mono() - p.clockAt
}

// syncedLocked moves the high watermark by the rule.
func (p *Partition) syncedLocked(leo int64) {
	if p.leader != nil && p.leader.Synced(leo) {
		p.advancedLocked()
	}
}

// advancedLocked takes over that the leader's high watermark has moved.
func (p *Partition) advancedLocked() {
	hwm := p.leader.HWM()
	p.hwm.Store(hwm)
	p.log.Committed(hwm)
	p.tellLocked()
	p.tapped()
}

// failLocked ends this leadership: nothing is appended before a new epoch.
func (p *Partition) failLocked(err error) error {
	p.s.Cache.Forget(p.id) // the log is cut: other batches will stand at offsets that were never committed
	if p.leader != nil {
		p.leader.Failed()
	}
	if p.failed == nil {
		p.failed = err
		p.tellLocked()
		p.s.Failed(fmt.Errorf("disk under %s: %w", p.ref, err))
	}
	return err
}

// openQueueLocked makes the consume side from the positions that this copy has
// and those that a majority had when it was elected.
func (p *Partition) openQueueLocked(epoch topic.Epoch) {
	var seed [32]byte
	p.s.Random(seed[:])
	var others [][]byte
	if p.primed.epoch == epoch {
		others = p.primed.positions
	}
	p.primed = primed{}
	positions, others := p.openCursors(epoch, others)
	hold := func(string) {}
	if p.s.Hold != nil {
		hold = func(point string) { p.s.Hold(point, p.ref) }
	}
	q, err := queue.Open(queue.Config{
		Hold: hold, Ref: p.ref, Epoch: epoch, Source: p, Positions: positions, Others: others,
		Now: p.s.Steady, Waker: p.s.Waker, Deadlines: p.s.Deadlines,
		Flusher: p.s.Flusher, Skipped: p.skipped,
	}, seed)
	if err != nil {
		p.s.Log.Error("consumer positions are damaged; what was settled is delivered again",
			"partition", p.ref.String(), "error", err)
	}
	p.queue.Store(q)
}

func (p *Partition) skipped(from, to int64, err error) {
	p.s.Metrics.CorruptSkipped.Add(float64(to - from))
	p.s.Log.Error("records cannot be read and are passed over", "partition", p.ref.String(),
		"from", from, "to", to, "error", err)
}
