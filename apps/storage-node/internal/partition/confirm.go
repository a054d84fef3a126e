package partition

import (
	"context"

	"github.com/narad-mq/narad/libs/problem"
)

// Confirm returns when a majority of the replicas has fetched again, by requests
// sent after this call: then nobody else led when it began, and the high
// watermark covers everything that was committed by then. Errors are problems.
func (p *Partition) Confirm(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil {
		return problem.New(problem.PartitionUnavailable, "%s is not led here any more", p.ref)
	}
	l := p.leader
	round, _, ok := l.Confirm()
	if !ok {
		return problem.New(problem.PartitionUnavailable, "the leader of %s is not settled yet", p.ref)
	}
	p.watch.tell() // followers that wait hear of the round at once
	p.confirming++
	defer func() { p.confirming-- }()
	for !l.Confirmed(round) {
		if p.leader != l || l.Ended() != nil || p.closed {
			return problem.New(problem.PartitionUnavailable, "the leadership of %s has ended", p.ref)
		}
		news := p.movedLocked()
		p.mu.Unlock()
		select {
		case <-news:
			p.mu.Lock()
		case <-ctx.Done():
			p.mu.Lock()
			return problem.New(problem.PartitionUnavailable, "no majority of %s has confirmed its leader in time", p.ref)
		}
	}
	return nil
}
