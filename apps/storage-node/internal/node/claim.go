package node

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/lease"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// claimBytes bounds the payload of one claim's answer: what one consumer may
	// ask for at most, so that a claim for many never builds more in memory.
	claimBytes = 16 << 20
	// openWait bounds how long a claim waits for a partition that is being
	// opened: a directory check may ask the metastore, and others wait in this claim.
	openWait = 300 * time.Millisecond
	// takeTime is when a claim stops to take more and answers with what it has: a
	// tenth of what the gateway waits for, so that a slow disk costs a late answer
	// and never leases whose answer comes too late.
	takeTime = 500 * time.Millisecond
)

// Claim implements nodeapi.Node.
func (n *Node) Claim(ctx context.Context, req *nodeapi.ClaimRequest) (*nodeapi.ClaimResult, error) {
	res := &nodeapi.ClaimResult{Claims: make([]nodeapi.ClaimAnswer, len(req.Claims))}
	budget, until := claimBytes, time.Now().Add(takeTime)
	claims := make([]claim, len(req.Claims))
	for i := range req.Claims {
		claims[i] = claim{n: n, req: &req.Claims[i], answer: &res.Claims[i], gateway: req.Gateway, budget: &budget, until: until}
		claims[i].run(ctx)
	}
	if err := ctx.Err(); err != nil { // the caller is gone: these leases have no taker
		for i := range claims {
			claims[i].undo()
		}
		return nil, err
	}
	return res, nil
}

// claim serves one Claim.
type claim struct {
	n       *Node
	req     *nodeapi.Claim
	answer  *nodeapi.ClaimAnswer
	gateway string
	budget  *int      // payload bytes that the whole answer may still take
	until   time.Time // after which nothing more is taken

	lim        lease.Limits
	visibility int64
	queues     []*queue.Queue // by partition of the claim; nil: not to be asked
}

func (c *claim) run(ctx context.Context) {
	c.answer.Partitions = make([]nodeapi.ClaimStatus, len(c.req.Partitions))
	c.answer.Deliveries = make([][]nodeapi.Delivery, len(c.req.Takers))
	c.queues = make([]*queue.Queue, len(c.req.Partitions))
	t, err := c.n.view.Topic(c.req.Topic)
	if err != nil || t.Incarnation != c.req.Incarnation {
		for i := range c.req.Partitions {
			c.expect(c.ref(i))
		}
		t, err = c.n.view.Topic(c.req.Topic) // it may have come in between
	}
	if err != nil || t.Incarnation != c.req.Incarnation {
		c.all(c.absent(err))
		return
	}
	c.lim = lease.Limits{MaxInFlight: t.MaxInFlight, MaxAckedAhead: t.MaxAckedAhead}
	c.visibility = t.VisibilityTimeoutMS
	c.open(ctx)
	c.serve(ctx)
	c.arm()
}

// absent is the status of all partitions of a topic that is not the live one.
func (c *claim) absent(err error) nodeapi.ClaimStatus {
	known := err == nil || errors.Is(err, metastate.ErrNoTopic)
	if known && c.n.view.Latched() && c.n.view.Ended(c.req.Incarnation) {
		return nodeapi.ClaimGone
	}
	return nodeapi.ClaimUnavailable
}

func (c *claim) all(st nodeapi.ClaimStatus) {
	for i := range c.answer.Partitions {
		c.answer.Partitions[i] = st
	}
}

// open finds the queues to ask and decides the status of the others.
func (c *claim) open(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	for i := range c.req.Partitions {
		early := c.look(ctx, i)
		if early && c.expect(c.ref(i)) {
			c.look(ctx, i) // it may have begun to serve in between
		}
	}
}

func (c *claim) ref(i int) topic.Ref {
	return topic.Ref{Topic: c.req.Topic, Incarnation: c.req.Incarnation, Partition: c.req.Partitions[i].Partition}
}

// expect has the gateway woken when the partition is served here; false when the
// gateway does not want that.
func (c *claim) expect(ref topic.Ref) bool {
	if c.req.Arm {
		c.n.expecting.add(ref, c.gateway)
	}
	return c.req.Arm
}

// look finds the queue of one partition, or its status; early tells that this node
// may be about to serve it.
func (c *claim) look(ctx context.Context, i int) (early bool) {
	p, ref := c.req.Partitions[i], c.ref(i)
	j := judge(c.n.view, c.n.self, c.n.disk, ref)
	st := nodeapi.ClaimUnavailable
	switch {
	case j.standing == gone:
		st = nodeapi.ClaimGone
	case j.standing == notLeader:
		st = nodeapi.ClaimNotLeader
	case j.standing == leads && (p.Epoch < j.a.LeaderEpoch || p.DiskID != c.n.disk):
		st = nodeapi.ClaimNotLeader
	case j.standing == leads && p.Epoch == j.a.LeaderEpoch:
		if part, err := c.n.partition(ctx, ref, j.a); err == nil {
			if c.queues[i] = part.Queue(); c.queues[i] != nil {
				c.answer.Partitions[i] = nodeapi.ClaimMore // until it was asked
				return false
			}
		}
		early = true
	}
	c.answer.Partitions[i] = st
	return early || p.DiskID == c.n.disk && j.behind(p.Epoch)
}

// serve gives each taker records from the partitions in turn: every taker, and
// every claim, begins at another one, so that none is drained before others.
func (c *claim) serve(ctx context.Context) {
	k := len(c.queues)
	if k == 0 {
		return
	}
	turn := int(c.n.turn.Add(1) % uint64(k))
	for i := range c.req.Takers {
		if ctx.Err() != nil || time.Now().After(c.until) {
			return
		}
		t := &c.req.Takers[i]
		want := queue.Want{
			Records: min(max(t.Max, 0), maxTake), Bytes: min(max(t.MaxBytes, 1), *c.budget), First: true, VisibilityMS: t.VisibilityMS,
		}
		if want.VisibilityMS <= 0 {
			want.VisibilityMS = c.visibility
		}
		before := want.Bytes
		for s := 0; s < k && want.Records > 0 && want.Bytes > 0; s++ {
			c.take((turn+i+s)%k, i, &want)
		}
		*c.budget -= before - want.Bytes
		if *c.budget <= 0 {
			return
		}
	}
}

// undo gives back what was taken.
func (c *claim) undo() {
	at := make(map[int32]*queue.Queue, len(c.queues))
	for i, q := range c.queues {
		at[c.req.Partitions[i].Partition] = q
	}
	for _, ds := range c.answer.Deliveries {
		for from := 0; from < len(ds); {
			to := from + 1
			for to < len(ds) && ds[to].Partition == ds[from].Partition {
				to++
			}
			if q := at[ds[from].Partition]; q != nil {
				q.GiveBack(ds[from:to])
			}
			from = to
		}
	}
}

// maxTake is the most records that one consumer may ask for (api.md, section 12).
const maxTake = 1000

// take serves taker t from partition p, if that may have something.
func (c *claim) take(p, t int, want *queue.Want) {
	q := c.queues[p]
	if q == nil || c.answer.Partitions[p] != nodeapi.ClaimMore {
		return
	}
	got, left, err := q.Take(want, c.lim, c.answer.Deliveries[t])
	c.answer.Deliveries[t] = got
	if err != nil {
		c.answer.Partitions[p] = nodeapi.ClaimUnavailable
		return
	}
	c.answer.Partitions[p] = statusOf(left)
}

func statusOf(left lease.Left) nodeapi.ClaimStatus {
	switch left {
	case lease.Empty:
		return nodeapi.ClaimEmpty
	case lease.Capped:
		return nodeapi.ClaimCapped
	}
	return nodeapi.ClaimMore
}

// arm says what each partition has left, and leaves a wake-up where it is
// nothing. It looks anew: something may have come meanwhile.
func (c *claim) arm() {
	for i, q := range c.queues {
		if q == nil || c.answer.Partitions[i] == nodeapi.ClaimUnavailable { // said already
			continue
		}
		look := func() (lease.Left, error) { return q.Left(c.lim) }
		if c.req.Arm {
			look = func() (lease.Left, error) { return q.Arm(c.gateway, c.lim) }
		}
		left, err := look()
		if err != nil {
			c.answer.Partitions[i] = nodeapi.ClaimUnavailable
			continue
		}
		c.answer.Partitions[i] = statusOf(left)
	}
}
