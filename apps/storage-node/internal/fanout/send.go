package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// patience is how long a round waits for its slowest bucket: many times what a
	// commit takes, so that buckets stay together while all is well, and short
	// enough that one dead node is not felt in another's messages.
	patience = 250 * time.Millisecond
	// commitBudget ends one commit at a child's leader; its outcome is unknown then.
	commitBudget = 10 * time.Second
)

var errNoLeader = errors.New("no leader of the child's partition is known")

// pass is the sends of one round.
type pass struct {
	c       *cursor
	lane    fanout.Lane
	results chan int // indexes of work, as they end; as long as work
	left    bool     // nobody waits any more; guarded by mu of the cursor
}

// send commits what each bucket gets, side by side, and returns when all have
// ended, or patience has. Who is late then is behind, and reports himself.
func (c *cursor) send(l fanout.Lane, work []fanout.Work) {
	if len(work) == 0 {
		c.after(l)
		return
	}
	p := &pass{c: c, lane: l, results: make(chan int, len(work))}
	nodes := make([]string, len(work))
	for i := range work {
		w := &work[i]
		to, err := c.target(w.Bucket)
		if err == nil && c.m.work.full(to.node) {
			err = fmt.Errorf("send to %s: %d batches are left there", to.node, leftPerNode)
		}
		nodes[i] = to.node
		if err != nil || !c.m.work.spawn(func() { p.bucket(i, w, to) }) {
			c.failed(w.Bucket)
			p.results <- i
		}
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	ended := make([]bool, len(work))
	for range work {
		select {
		case i := <-p.results:
			ended[i] = true
		case <-timer.C:
			p.leave(work, ended, nodes)
			c.after(l)
			return
		}
	}
	c.after(l)
}

// after wakes the other lane, if the round changed what it has to do.
func (c *cursor) after(l fanout.Lane) {
	if l == fanout.Behind {
		c.m.work.kick(c, fanout.Head) // a bucket may have caught up
		return
	}
	c.mu.Lock()
	behind := c.core.Behind()
	c.mu.Unlock()
	if behind {
		c.m.work.kick(c, fanout.Behind)
	}
}

// leave goes on without those that have not ended.
func (p *pass) leave(work []fanout.Work, ended []bool, nodes []string) {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	for {
		select {
		case i := <-p.results:
			ended[i] = true
			continue
		default:
		}
		break
	}
	p.left = true
	for i := range work {
		if !ended[i] {
			p.c.core.Leave(work[i].Bucket)
			p.c.m.work.leave(nodes[i], 1)
		}
	}
}

// bucket commits the work of one bucket, batch after batch.
func (p *pass) bucket(i int, w *fanout.Work, to target) {
	err := p.commitAll(w, to)
	if err != nil {
		p.c.failed(w.Bucket)
		p.c.m.cfg.Log.Debug("a child's partition is behind", "partition", p.c.ref.String(), "child", p.c.child.Name,
			"child_partition", w.Bucket, "err", err)
	}
	p.c.mu.Lock()
	left := p.left
	p.results <- i // it has room
	p.c.mu.Unlock()
	if !left {
		return
	}
	p.c.m.work.leave(to.node, -1)
	p.c.advance()
	p.c.m.work.kick(p.c, fanout.Behind)
	p.c.m.work.kick(p.c, fanout.Head)
}

func (p *pass) commitAll(w *fanout.Work, to target) error {
	for len(w.Records) > 0 {
		raw, n, err := p.c.build(w)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(p.c.ctx, commitBudget)
		res, err := to.at.Commit(ctx, &nodeapi.CommitRequest{Target: to.Target, Batch: raw})
		cancel()
		if err != nil {
			return err
		}
		p.c.m.metrics.copies.Add(float64(res.Appended))
		done := w.Rest(n)
		p.c.mu.Lock()
		p.c.core.Committed(w.Bucket, done)
		p.c.mu.Unlock()
	}
	return nil
}

// build encodes the next batch of a bucket.
func (c *cursor) build(w *fanout.Work) (raw []byte, n int, err error) {
	b, ok := c.m.builders.Get().(*record.Builder)
	if !ok {
		b = new(record.Builder)
	}
	defer c.m.builders.Put(b)
	if n, err = w.Build(b, c.stream); err != nil {
		return nil, 0, err
	}
	return bytes.Clone(b.Finish(record.CodecZstd)), n, nil
}

func (c *cursor) failed(bucket int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.core.Failed(bucket, c.m.cfg.Mono())
}

// target is the leader of one partition of the child.
type target struct {
	nodeapi.Target
	node string
	at   Committer
}

func (c *cursor) target(bucket int32) (to target, err error) {
	p, err := c.m.cfg.View.Assignments(c.child.Name)
	switch {
	case err != nil:
		return to, fmt.Errorf("find partition %d of %s: %w", bucket, c.child.Name, err)
	case p.Incarnation != c.child.Incarnation || int(bucket) >= len(p.List) || p.List[bucket].Leader == "":
		return to, fmt.Errorf("find partition %d of %s: %w", bucket, c.child.Name, errNoLeader)
	}
	a := &p.List[bucket]
	r, ok := a.ReplicaOn(a.Leader)
	if !ok {
		return to, fmt.Errorf("find partition %d of %s: %w", bucket, c.child.Name, errNoLeader)
	}
	to.node = a.Leader
	to.Target = nodeapi.Target{
		Ref:    topic.Ref{Topic: c.child.Name, Incarnation: c.child.Incarnation, Partition: bucket},
		DiskID: r.DiskID, Epoch: a.LeaderEpoch,
	}
	if to.at = c.m.cfg.Host; to.node != c.m.cfg.Self {
		to.at, err = c.m.cfg.Leaders(to.node)
	}
	return to, err
}
