package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// forever is the end of a lone copy's right to serve: nobody else can be elected.
const forever = math.MaxInt64

// Assume takes over the role that the assignment gives this copy: it leads under
// a new epoch, follows another leader, or counts by another replica set. It is
// idempotent, and nothing that an older assignment says is done. When it returns
// nil the assignment holds, or a newer one or a promise has taken its place.
func (p *Partition) Assume(set Set) error {
	p.roleMu.Lock()
	defer p.roleMu.Unlock()
	if set.before(&p.newest) {
		return nil
	}
	p.newest = set
	if !set.alone() {
		if _, err := p.Identity(); err != nil {
			return err
		}
	}
	var err error
	switch {
	case set.Leader == p.s.Node:
		err = p.lead(&set)
	default:
		err = p.follow(&set)
	}
	if err == nil {
		p.assumed.Store(&set)
	}
	return err
}

// Holds tells whether the role that the assignment gives this copy was assumed.
func (p *Partition) Holds(a *topic.Assignment) bool {
	set := p.assumed.Load()
	return set != nil && set.Epoch == a.LeaderEpoch && set.Leader == a.Leader && set.Version == a.ConfigVersion &&
		(a.Leader != p.s.Node || p.Epoch() == a.LeaderEpoch)
}

// follow makes this copy a follower of the leader that the metastore names, if it
// names one.
func (p *Partition) follow(set *Set) error {
	p.mu.Lock()
	p.fence.Recorded(p.own(set))
	if set.Epoch < p.fence.Promised() {
		p.mu.Unlock()
		return nil // the leader of that epoch is nobody's any more
	}
	// Of the epoch that is led here an assignment without this leader is an older
	// one: nobody else leads that epoch, and none is named before the one that is.
	stale := p.leader != nil && set.Epoch <= p.leader.Epoch()
	var ended *queue.Queue
	if !stale && p.leader != nil {
		p.leader.StepDown(set.Epoch)
		ended = p.resignLocked()
	}
	p.mu.Unlock()
	if stale {
		return nil
	}
	if err := p.endQueue(ended); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("follow with %s: %w", p.ref, queue.ErrClosed)
	case p.leader != nil: // it was elected again meanwhile
		return nil
	}
	if err := p.settleLocked(); err != nil {
		return err
	}
	if set.Leader == "" || p.follower.Epoch() >= set.Epoch {
		return nil
	}
	// The log first: until it takes batches of that epoch nothing is asked for under
	// it, and a log that could not is tried again.
	if err := p.log.BeginFollow(set.Epoch); err != nil {
		return fmt.Errorf("follow %s of %s: %w", set.Leader, p.ref, err)
	}
	if p.failed != nil { // what was written and not synced is gone from the log
		p.follower.Truncated(p.log.LEO(), p.log.LastEpoch())
		p.failed = nil
	}
	if err := p.follower.Follow(set.Epoch); err != nil {
		return fmt.Errorf("follow %s of %s: %w", set.Leader, p.ref, err)
	}
	p.primed = primed{} // for an epoch that another one leads, or that is over
	p.posMu.Lock()
	p.posVersion = 0 // the new leader counts anew
	p.posMu.Unlock()
	return nil
}

// settleLocked makes the follower's state after what a leadership has written is on
// disk, or cut: it may have ended with a sync under way, or before one.
func (p *Partition) settleLocked() error {
	for p.round != nil {
		r := p.round
		p.mu.Unlock()
		<-r.done
		p.mu.Lock()
	}
	if !p.closed && p.failed == nil && p.log.LEO() < p.log.WrittenEnd() {
		if _, err := p.log.Sync(); err != nil {
			return fmt.Errorf("follow with %s: %w", p.ref, p.failLocked(err))
		}
	}
	return p.followLocked()
}

// followLocked makes the follower's state from the log, unless it is there, and
// tells it what is written and what is on disk.
func (p *Partition) followLocked() error {
	if p.follower != nil {
		p.follower.Synced(p.log.LEO())
		return nil
	}
	leo := p.log.LEO()
	f, err := quorum.NewFollower(p.fence, quorum.Local{LEO: leo, HWM: min(p.hwm.Load(), leo), LastEpoch: quorum.EpochAt(p.historyLocked(), leo)})
	if err != nil {
		return fmt.Errorf("follow with %s: %w", p.ref, err)
	}
	f.Appended(p.log.WrittenEnd(), p.log.LastEpoch())
	p.follower = f
	return nil
}

// historyLocked is the epoch history of the log as the rule reads it.
func (p *Partition) historyLocked() []quorum.EpochStart {
	epochs := p.log.Epochs()
	out := make([]quorum.EpochStart, len(epochs))
	for i, e := range epochs {
		out[i] = quorum.EpochStart(e)
	}
	return out
}

// resignLocked ends a leadership in memory: nothing is served or appended under
// it, and everybody who waits for it hears so. It returns the queue, which the
// caller ends without the lock.
func (p *Partition) resignLocked() *queue.Queue {
	p.leader = nil
	p.epoch.Store(0)
	p.serves.Store(0)
	p.heldUntil = 0
	p.renewCursors(0)
	p.tellLocked()
	p.watch.tell()
	return p.queue.Swap(nil)
}

// endQueue saves positions and ends the leases of a leadership that is over.
func (p *Partition) endQueue(q *queue.Queue) error {
	if q == nil {
		return nil
	}
	if err := q.Close(); err != nil {
		return fmt.Errorf("end the leases of %s: %w", p.ref, err)
	}
	return nil
}

// tellLocked wakes everybody who waits for the high watermark or the end of the
// leadership.
func (p *Partition) tellLocked() {
	if p.moved != nil {
		close(p.moved)
		p.moved = nil
	}
}

// movedLocked is the channel that tellLocked closes next.
func (p *Partition) movedLocked() chan struct{} {
	if p.moved == nil {
		p.moved = make(chan struct{})
	}
	return p.moved
}

// configureLocked makes a leader count by a newer replica set.
func (p *Partition) configureLocked(set *Set) error {
	config := set.Config
	config.Replicas = p.own(set)
	p.fence.Recorded(config.Replicas)
	p.setSize = len(config.Replicas)
	moved, err := p.leader.Apply(config, p.log.WrittenEnd())
	if err != nil {
		return fmt.Errorf("count %s by version %d of its replicas: %w", p.ref, set.Version, err)
	}
	if moved {
		p.advancedLocked()
	}
	p.leaseLocked()
	if !p.leader.NeedsBatch() {
		return nil
	}
	// Nothing may be produced for long: a record of this leadership settles the set.
	p.changeDue = true
	if err := p.changeLocked(); err != nil {
		return err
	}
	p.leader.Appended(p.log.WrittenEnd())
	leo, err := p.log.Sync()
	if err != nil {
		return p.failLocked(err)
	}
	p.syncedLocked(leo)
	p.watch.tell()
	return nil
}

// leaseLocked works out until when this leadership may serve.
func (p *Partition) leaseLocked() {
	if p.leader == nil || p.leader.Ended() != nil || !p.leader.CanServe() || p.queue.Load() == nil {
		p.serves.Store(0)
		return
	}
	end, now := leaseEnd(p.leader.Progress(), p.s.Node, p.setSize), p.s.Mono()
	if was := p.serves.Swap(end); was <= now && now < end {
		p.s.Serving(p.ref, p.leader.Epoch())
	}
}

// leaseEnd is when the majority's word ends: it counts the leader itself, and of
// the others as many as a majority of the set needs, those heard last.
func leaseEnd(progress []quorum.Progress, self string, set int) int64 {
	need := quorum.Majority(set) - 1
	if need == 0 {
		return forever
	}
	var heard []int64
	for _, m := range progress {
		if m.Counts && m.Heard && m.Replica.Node != self {
			heard = append(heard, m.HeardMS)
		}
	}
	if len(heard) < need {
		return 0
	}
	slices.Sort(heard)
	return heard[len(heard)-need] + quorum.LeaseMS
}
