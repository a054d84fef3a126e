package partition

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Incoming is a batch to commit: verified, of a producer stream.
type Incoming struct {
	Epoch  topic.Epoch // that the caller believes in
	Batch  []byte      // its placement is overwritten
	Header *record.Header
	// Recheck is asked again under the append lock whether this node still
	// leads this life of the topic under that epoch.
	Recheck func() *problem.Problem
}

// Commit appends what of the batch the partition does not have yet and answers
// when the high watermark has passed everything in it. Errors are problems.
func (p *Partition) Commit(ctx context.Context, in *Incoming) (*nodeapi.CommitResult, error) {
	j, end, err := p.append(in)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, in.Epoch, end); err != nil {
		if j.expected >= 0 {
			return nil, p.undecided()
		}
		return nil, err
	}
	if j.expected >= 0 {
		return nil, p.outOfSequence(in.Header.FirstSeq, j.expected)
	}
	p.s.Metrics.CommitRecords.Add(float64(in.Header.Count - j.dropped))
	p.s.Metrics.Duplicates.Add(float64(j.dropped))
	return &nodeapi.CommitResult{
		Epoch: in.Epoch, HighWatermark: p.hwm.Load(), BaseOffset: j.base,
		Appended: in.Header.Count - j.dropped, Duplicates: j.dropped,
	}, nil
}

// append does everything that needs the append lock, and returns the end that
// the high watermark has to pass.
func (p *Partition) append(in *Incoming) (j judged, end int64, err error) {
	p.used.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.admitLocked(in); err != nil {
		return j, 0, err
	}
	if j, err = p.judgeLocked(in); err != nil {
		return j, 0, problem.New(problem.DamagedBatch, "batch for %s: %v", p.ref, err)
	}
	if j.rest != nil {
		if j.base, err = p.appendLocked(j.rest, in.Epoch); err != nil {
			return j, 0, err
		}
	}
	p.waiting++
	p.s.live.Store(p.s.Mono())
	end = p.log.WrittenEnd()
	p.leader.Appended(end)
	p.watch.tell()
	return j, end, nil
}

// admitLocked refuses a batch that this leadership may not take.
func (p *Partition) admitLocked(in *Incoming) error {
	switch {
	case p.closed || p.leader == nil:
		return problem.New(problem.NotReady, "%s is being closed", p.ref)
	case p.failed != nil:
		return problem.New(problem.PartitionUnavailable, "the disk under %s failed", p.ref)
	case in.Epoch != p.leader.Epoch():
		return problem.New(problem.NotReady, "%s is led under epoch %d here", p.ref, p.leader.Epoch())
	case p.leader.Ended() != nil:
		return problem.New(problem.PartitionUnavailable, "the leadership of %s has ended", p.ref)
	case p.stalled():
		return problem.New(problem.PartitionUnavailable, "the disk under %s does not answer", p.ref)
	case p.forsakenLocked():
		return problem.New(problem.PartitionUnavailable, "no majority of the replicas of %s follows", p.ref)
	case p.s.Mono() < p.heldUntil:
		return problem.New(problem.PartitionUnavailable, "%s is being handed over", p.ref)
	}
	if refusal := in.Recheck(); refusal != nil {
		return refusal
	}
	return nil
}

func (p *Partition) appendLocked(batch []byte, epoch topic.Epoch) (int64, error) {
	err := p.changeLocked()
	base := int64(0)
	if err == nil {
		base, err = p.log.Append(batch, epoch, p.clockLocked())
	}
	switch {
	case err == nil:
		p.keepLocked(batch, base)
		return base, nil
	case errors.Is(err, partlog.ErrStaleEpoch):
		return 0, problem.New(problem.NotReady, "%s is between two epochs", p.ref)
	}
	if refusal := p.refused(err); refusal != nil {
		return 0, refusal
	}
	_ = p.failLocked(err)
	return 0, problem.New(problem.OutcomeUnknown, "a write of %s failed", p.ref)
}

// refused tells a shortage that Append met before it wrote anything (the log has
// not failed, its segment may be appended to) from a failed write: nothing
// happened, and the next append may find room. The disk may fill up between two
// looks at its free space.
func (p *Partition) refused(err error) *problem.Problem {
	switch {
	case errors.Is(err, partlog.ErrFailed) || p.log.Failed() != nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return problem.New(problem.DiskFull, "the disk of this node is full")
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return problem.New(problem.Overloaded, "this node has no file descriptors left")
	}
	return nil
}

// await returns when the high watermark has passed target under this epoch.
// Whoever finds no fsync running runs the next one, for all who wait; what is
// synced here waits for the followers.
func (p *Partition) await(ctx context.Context, epoch topic.Epoch, target int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.leader == nil || p.leader.Epoch() != epoch:
			return problem.New(problem.OutcomeUnknown, "the leadership of %s changed", p.ref)
		case p.leader.HWM() >= target:
			return nil
		case p.failed != nil:
			return problem.New(problem.OutcomeUnknown, "the disk under %s failed", p.ref)
		case p.leader.Ended() != nil:
			return problem.New(problem.OutcomeUnknown, "the leadership of %s has ended", p.ref)
		case p.closed:
			return problem.New(problem.OutcomeUnknown, "%s was closed", p.ref)
		case p.round == nil && p.leader.LEO() < target:
			p.syncRoundLocked()
			continue
		}
		news := p.movedLocked()
		if p.round != nil {
			news = p.round.done
		}
		p.mu.Unlock()
		select {
		case <-news:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return problem.New(problem.OutcomeUnknown, "the caller of a commit to %s did not wait for it", p.ref)
		}
	}
}

// syncRoundLocked runs one fsync, without the lock, and tells everybody.
func (p *Partition) syncRoundLocked() {
	r := &round{done: make(chan struct{})}
	p.round = r
	p.s.Metrics.CommitsPerFsync.Observe(float64(p.waiting))
	p.waiting = 0
	p.mu.Unlock()
	began := time.Now()
	p.syncing.Store(max(p.s.Mono(), 1))
	leo, err := p.log.Sync()
	p.syncing.Store(0)
	p.s.Metrics.FsyncSeconds.Observe(time.Since(began).Seconds())
	p.mu.Lock()
	p.round = nil
	if err != nil {
		_ = p.failLocked(err)
	} else {
		p.syncedLocked(leo)
	}
	close(r.done)
	q, replicated := p.queue.Load(), p.setSize > 1
	p.mu.Unlock()
	if q != nil {
		q.Committed(replicated) // takes the queue's lock, which is never held together with ours
	}
	p.mu.Lock()
}
