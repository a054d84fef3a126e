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
	res, target, err := p.append(in)
	if err != nil {
		return nil, err
	}
	if err := p.await(ctx, in.Epoch, target); err != nil {
		return nil, err
	}
	res.HighWatermark = p.hwm.Load()
	p.s.Metrics.CommitRecords.Add(float64(res.Appended))
	p.s.Metrics.Duplicates.Add(float64(res.Duplicates))
	return res, nil
}

// append does everything that needs the append lock, and returns the end that
// the high watermark has to pass.
func (p *Partition) append(in *Incoming) (res *nodeapi.CommitResult, target int64, err error) {
	p.used.Store(true)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.admitLocked(in); err != nil {
		return nil, 0, err
	}
	rest, dropped, err := p.dropKnown(in)
	if err != nil {
		return nil, 0, problem.New(problem.DamagedBatch, "batch for %s: %v", p.ref, err)
	}
	res = &nodeapi.CommitResult{Epoch: in.Epoch, BaseOffset: -1, Duplicates: dropped}
	if rest != nil {
		res.Appended = in.Header.Count - dropped
		if res.BaseOffset, err = p.appendLocked(rest, in.Epoch); err != nil {
			return nil, 0, err
		}
	}
	p.waiting++
	end := p.log.WrittenEnd()
	p.leader.Appended(end)
	p.watch.tell()
	return res, end, nil
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
	case p.s.Mono() < p.heldUntil:
		return problem.New(problem.PartitionUnavailable, "%s is being handed over", p.ref)
	}
	if refusal := in.Recheck(); refusal != nil {
		return refusal
	}
	return nil
}

type codec struct {
	dec record.Decoder
	bld record.Builder
}

// dropKnown leaves out what the partition has. The result does not alias the
// pool: it is the batch itself, nil, or a copy.
func (p *Partition) dropKnown(in *Incoming) (rest []byte, dropped int, err error) {
	have, known := p.log.Producer(in.Header.Stream)
	if !known {
		return in.Batch, 0, nil
	}
	if have.Less(in.Header.First()) {
		return in.Batch, 0, nil
	}
	c, ok := p.s.codecs.Get().(*codec)
	if !ok {
		c = new(codec)
	}
	defer p.s.codecs.Put(c)
	rest, dropped, err = record.DropUntil(in.Batch, have, &c.dec, &c.bld, record.CodecZstd)
	if err != nil || rest == nil {
		return nil, dropped, err
	}
	return append([]byte(nil), rest...), dropped, nil
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
	leo, err := p.log.Sync()
	p.s.Metrics.FsyncSeconds.Observe(time.Since(began).Seconds())
	p.mu.Lock()
	p.round = nil
	if err != nil {
		_ = p.failLocked(err)
	} else {
		p.syncedLocked(leo)
	}
	close(r.done)
	q := p.queue.Load()
	p.mu.Unlock()
	if q != nil {
		q.Committed() // takes the queue's lock, which is never held together with ours
	}
	p.mu.Lock()
}
