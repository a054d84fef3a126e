package route

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// callPartitions bounds what one call names, far below the 4 MiB of a request: a
// partition takes about 15 bytes, and a taker less.
const callPartitions = 50_000

// node is what this gateway sends to one storage node.
type node struct {
	r  *Router
	id string

	mu     sync.Mutex // guards what follows; no call is made under it
	wants  []*life
	listed map[*life]bool // in wants
	calls  inFlight       // claims under way
	settle settleQueue
}

// call is one claim under way.
type call struct {
	asked []asked
	over  atomic.Bool // answered or failed: it is not overdue any more
}

// want notes that a life wants something of this node. It is asked within moments, or
// with the next call when enough are under way; then the answer is false. waiters is
// how many want it.
func (n *node) want(l *life, waiters int) (soon bool) {
	if n.r.ctx.Err() != nil {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.listed[l] {
		if n.listed == nil {
			n.listed = map[*life]bool{}
		}
		n.listed[l] = true
		n.wants = append(n.wants, l)
	}
	begins, soon := n.calls.begin(claimsPerNode, waiters, n.claimMore)
	if begins {
		n.r.work.Add(1)
		go n.claim()
	}
	return soon
}

// claimMore begins the next call when the ones under way have not returned soon.
func (n *node) claimMore() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls.armed = false
	if len(n.wants) == 0 || n.r.ctx.Err() != nil {
		return
	}
	if begins, _ := n.calls.begin(claimsPerNode, enough, n.claimMore); begins {
		n.r.work.Add(1)
		go n.claim()
	}
}

// take gives the lives that want something now; none ends the caller's turn.
func (n *node) take() []*life {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.wants) == 0 || n.r.ctx.Err() != nil {
		n.calls.n--
		return nil
	}
	n.calls.last = time.Now()
	take := min(len(n.wants), nodeapi.MaxClaims/2)
	lives := append([]*life(nil), n.wants[:take]...)
	n.wants = append(n.wants[:0], n.wants[take:]...)
	for _, l := range lives {
		delete(n.listed, l)
	}
	return lives
}

// claim makes calls as long as there is something to ask.
func (n *node) claim() {
	defer n.r.work.Done()
	for lives := n.take(); lives != nil; lives = n.take() {
		c := &call{}
		partitions := 0
		for i, l := range lives {
			if partitions > callPartitions || len(c.asked) >= nodeapi.MaxClaims/2 {
				for _, later := range lives[i:] {
					n.want(later, enough)
				}
				break
			}
			for _, a := range l.claims(n.id, c) {
				partitions += len(a.claim.Partitions)
				c.asked = append(c.asked, a)
			}
		}
		if len(c.asked) > 0 {
			n.do(c)
		}
	}
}

// do makes one call and hands out what it brings.
func (n *node) do(c *call) {
	req := &nodeapi.ClaimRequest{Gateway: n.r.cfg.GatewayID}
	for i := range c.asked {
		req.Claims = append(req.Claims, c.asked[i].claim)
	}
	late := time.AfterFunc(overdue, func() {
		for i := range c.asked {
			c.asked[i].fail(c, true)
		}
	})
	ctx, cancel := context.WithTimeout(n.r.ctx, claimBudget)
	defer cancel()
	var res *nodeapi.ClaimResult
	if wire := n.r.deps.Node(n.id); wire != nil {
		var err error
		if res, err = wire.Claim(ctx, req); err != nil {
			res = nil
		}
	}
	c.over.Store(true)
	late.Stop()
	for i := range c.asked {
		if res == nil || len(res.Claims) != len(c.asked) {
			c.asked[i].fail(c, false)
			continue
		}
		c.asked[i].answer(c, &res.Claims[i])
	}
}

// fail lets go of the takers: the node could not be asked, or (late) has not
// answered yet. What is asked late is not asked again before the call is over: a
// node that is only slow must not be made slower.
func (a *asked) fail(c *call, late bool) {
	l := a.life
	l.mu.Lock()
	if late && c.over.Load() {
		l.mu.Unlock()
		return
	}
	for i, cp := range a.claim.Partitions {
		p := &l.list[cp.Partition]
		if p.epoch != cp.Epoch {
			continue
		}
		p.slow = late
		if late {
			p.ask = false
		} else {
			p.ask, p.down = p.wakes != a.wakes[i], true
		}
	}
	a.letGoLocked(c)
	l.armRetryLocked()
	l.mu.Unlock()
	l.pump()
}

func (a *asked) letGoLocked(c *call) {
	for _, w := range a.takers {
		if w.call == c {
			w.call = nil
			if !w.done {
				w.lane.free++
			}
		}
	}
}

// answer notes what the node said of its partitions and gives the deliveries to
// those who wait.
func (a *asked) answer(c *call, ans *nodeapi.ClaimAnswer) {
	l := a.life
	gone := make([]bool, len(a.takers))
	for i, w := range a.takers { // asked before the lock: it may look at a socket
		gone[i] = i < len(ans.Deliveries) && len(ans.Deliveries[i]) > 0 && w.req.Gone != nil && w.req.Gone()
	}
	var back []nodeapi.Delivery
	l.mu.Lock()
	a.statusLocked(ans)
	for i, w := range a.takers {
		if w.call == c && !w.done && i < len(ans.Deliveries) && len(ans.Deliveries[i]) > 0 {
			w.call = nil
			w.lane.free++
			if gone[i] {
				l.finishLocked(w, outcome{result: &api.ConsumeResult{}})
				continue
			}
			l.deliverLocked(w, ans.Deliveries[i])
			ans.Deliveries[i] = nil
		}
	}
	a.letGoLocked(c)
	for i, w := range a.takers {
		if i < len(ans.Deliveries) && len(ans.Deliveries[i]) > 0 && !l.passOnLocked(w, ans.Deliveries[i]) {
			back = append(back, ans.Deliveries[i]...)
		}
	}
	l.mu.Unlock()
	if len(back) > 0 {
		l.r.Release(&topic.Topic{Name: l.name, Incarnation: l.id}, back)
	}
	l.pump()
}

// statusLocked takes over what the node said of each partition. A wake-up that came
// meanwhile may be younger than the answer: then it is worth asking again.
func (a *asked) statusLocked(ans *nodeapi.ClaimAnswer) {
	given, now := false, time.Now()
	for _, ds := range ans.Deliveries {
		given = given || len(ds) > 0
	}
	for i, cp := range a.claim.Partitions {
		p := &a.life.list[cp.Partition]
		if p.epoch != cp.Epoch || i >= len(ans.Partitions) {
			continue
		}
		woken := p.wakes != a.wakes[i]
		p.later, p.slow, p.heard = false, false, now
		switch ans.Partitions[i] {
		case nodeapi.ClaimMore:
			p.ask, p.down, p.later = given || woken, false, !given
		case nodeapi.ClaimEmpty, nodeapi.ClaimCapped:
			p.ask, p.down = woken, false
		default:
			p.ask, p.down = woken, true
		}
	}
	a.life.armRetryLocked()
}

func (l *life) deliverLocked(w *waiter, ds []nodeapi.Delivery) {
	down := 0
	for i := range l.list {
		if l.list[i].missed(w) && w.lane.covers(i) {
			down++
		}
	}
	l.finishLocked(w, outcome{result: &api.ConsumeResult{Deliveries: ds, Unavailable: down}})
}

// passOnLocked gives what came for a waiter that is not there any more to another
// one that asked for the same.
func (l *life) passOnLocked(from *waiter, ds []nodeapi.Delivery) bool {
	if l.ended {
		return false
	}
	ln := l.lanes[from.lane.pin]
	if ln == nil {
		return false
	}
	for e := ln.list.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter)
		if w.call == nil && w.req.Max >= len(ds) && w.req.MaxBytes >= from.req.MaxBytes && w.req.VisibilityMS == from.req.VisibilityMS {
			l.deliverLocked(w, ds)
			return true
		}
	}
	return false
}
