package route

import (
	"container/list"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// outcome is what a waiter gets: exactly one.
type outcome struct {
	result *api.ConsumeResult
	err    error
}

// waiter is one consume.
type waiter struct {
	req    *api.ConsumeRequest
	life   *life
	lane   *lane
	at     *list.Element
	call   *call // whose taker it is now; nil: none's
	done   bool
	since  time.Time
	result chan outcome // room for the one outcome
}

// lane is the waiters of one pin, first come first.
type lane struct {
	pin  int32
	list list.List // of *waiter
	free int       // waiters that are nobody's taker
}

// partition is what this gateway knows of one.
type partition struct {
	leader string
	alive  bool
	epoch  topic.Epoch
	disk   topic.ID64
	ask    bool // it may have something: worth a claim
	down   bool // the last try could not ask it
	slow   bool // a claim has not been answered in time, and is not over
	heard  time.Time
	later  bool // it had more, and gave nothing: not at once again
	wakes  uint32
}

// life is one life of a topic.
type life struct {
	r    *Router
	id   topic.Incarnation
	name string

	mu      sync.Mutex // guards what follows; no call is made under it
	parts   *metastate.Partitions
	members *metastate.MemberTable
	seen    bool // the view has shown it
	ended   bool
	dropped bool // not in Router.lives any more: look again
	list    []partition
	lanes   map[int32]*lane
	waiters int
	turn    int
	pumps   int // rounds of asking
	used    time.Time
	retry   *time.Timer // nil: not armed
}

func newLife(r *Router, t *topic.Topic) *life {
	l := &life{r: r, id: t.Incarnation, name: t.Name, lanes: map[int32]*lane{}, list: make([]partition, t.Partitions), used: time.Now()}
	for i := range l.list {
		l.list[i].down = true // until the view shows a leader
	}
	return l
}

// refresh takes over what the view shows now.
func (l *life) refresh() {
	view := l.r.deps.View
	parts, err := view.Assignments(l.name)
	if errors.Is(err, metastate.ErrUnavailable) {
		return
	}
	members := view.Members()
	l.mu.Lock()
	if l.parts == parts && l.members == members && parts != nil {
		l.mu.Unlock()
		return
	}
	switch {
	case err == nil && parts.Incarnation == l.id:
		l.seen, l.parts, l.members = true, parts, members
		l.leadersLocked()
	case l.seen || view.Ended(l.id):
		l.endLocked()
	}
	l.mu.Unlock()
	l.pump()
}

// leadersLocked compares partitions with what was known; a new leader or epoch
// has armed nothing here.
func (l *life) leadersLocked() {
	for len(l.list) < len(l.parts.List) {
		l.list = append(l.list, partition{})
	}
	for i := range l.parts.List {
		a := &l.parts.List[i]
		m := l.members.ByID[a.Leader]
		next := partition{leader: a.Leader, epoch: a.LeaderEpoch, alive: m != nil && m.Status == topic.StatusAlive}
		if rep, ok := a.ReplicaOn(a.Leader); ok {
			next.disk = rep.DiskID
		}
		p := &l.list[i]
		if p.leader == next.leader && p.epoch == next.epoch && p.disk == next.disk && p.alive == next.alive {
			continue
		}
		next.wakes = p.wakes + 1 // an answer under way is about the old one
		next.ask = next.leader != "" && next.alive
		next.down = !next.ask
		*p = next
	}
	l.armRetryLocked()
}

// endLocked ends every waiter: the topic is gone.
func (l *life) endLocked() {
	l.ended = true
	for _, ln := range l.lanes {
		for e := ln.list.Front(); e != nil; e = ln.list.Front() {
			l.finishLocked(e.Value.(*waiter), outcome{err: problem.New(problem.TopicNotFound, "there is no topic %q any more", l.name)})
		}
	}
	l.dropLocked()
}

func (l *life) dropLocked() {
	l.dropped = true
	l.r.lives.CompareAndDelete(l.id, l)
	if l.retry != nil {
		l.retry.Stop()
	}
}

// enter adds a waiter; false: this life was dropped, look again. A waiter of an
// ended life has its outcome.
func (l *life) enter(w *waiter) bool {
	l.mu.Lock()
	w.since = time.Now()
	l.used = w.since
	if l.ended {
		w.done = true
		w.result <- outcome{err: problem.New(problem.TopicNotFound, "there is no topic %q", l.name)}
		l.mu.Unlock()
		return true
	}
	if l.dropped {
		l.mu.Unlock()
		return false
	}
	ln := l.lanes[w.req.Partition]
	if ln == nil {
		ln = &lane{pin: w.req.Partition}
		l.lanes[ln.pin] = ln
	}
	w.lane = ln
	w.at = ln.list.PushBack(w)
	ln.free++
	l.waiters++
	if w.req.Wait == 0 { // it asks for what is there now: what was heard before does not count
		for i := range l.list {
			if p := &l.list[i]; ln.covers(i) && !p.down && !p.slow {
				p.ask = true
			}
		}
	}
	l.armRetryLocked()
	l.mu.Unlock()
	l.pump()
	return true
}

func (ln *lane) covers(partition int) bool {
	return ln.pin == api.AnyPartition || int(ln.pin) == partition
}

// leave ends a waiter without a delivery. Unless forced it does not while a call
// is under way for it.
func (l *life) leave(w *waiter, forced bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.done {
		return true
	}
	if w.call != nil && !forced {
		return false
	}
	l.emptyLocked(w)
	return true
}

// missed tells whether a waiter has not heard of the partition: it could not be
// asked, nobody came to ask it in time, or it was asked and has not answered since the
// waiter came. One that answers slowly, again and again, is not missed.
func (p *partition) missed(w *waiter) bool {
	return p.down || (p.ask || p.slow) && p.heard.Before(w.since)
}

// emptyLocked ends a waiter with nothing: its wait is over, or all were asked.
func (l *life) emptyLocked(w *waiter) {
	down, all := 0, 0
	for i := range l.list {
		if w.lane.covers(i) {
			all++
			if l.list[i].missed(w) {
				down++
			}
		}
	}
	out := outcome{result: &api.ConsumeResult{Unavailable: down}}
	if down == all {
		out = outcome{err: problem.New(problem.PartitionUnavailable, "no partition of %q could be asked", l.name)}
		if w.lane.pin != api.AnyPartition {
			out.err = problem.New(problem.PartitionUnavailable, "partition %d of %q could not be asked", w.lane.pin, l.name).With("partition", w.lane.pin)
		}
	}
	l.finishLocked(w, out)
}

func (l *life) finishLocked(w *waiter, out outcome) {
	if w.done {
		return
	}
	w.done = true
	w.lane.list.Remove(w.at)
	if w.call == nil {
		w.lane.free--
	}
	l.waiters--
	if w.lane.list.Len() == 0 {
		delete(l.lanes, w.lane.pin)
	}
	w.result <- out
}

// woken takes a wake-up in; pump follows.
func (l *life) woken(partition int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if int(partition) < len(l.list) && partition >= 0 {
		p := &l.list[partition]
		p.wakes++
		p.ask = p.leader != "" && !p.slow
	}
}

// askAgain makes up for lost wake-ups and drops a life that nobody uses.
func (l *life) askAgain(now time.Time) {
	l.mu.Lock()
	if l.waiters == 0 {
		if now.Sub(l.used) > idleLife {
			l.dropLocked()
		}
		l.mu.Unlock()
		return
	}
	for i := range l.list {
		if p := &l.list[i]; p.leader != "" && !p.slow {
			p.ask = true
		}
	}
	l.mu.Unlock()
	l.pump()
}

// armRetryLocked makes partitions that could not be asked be asked again, while
// somebody waits. A leader that the view calls dead is tried too: the verdict may
// be old.
func (l *life) armRetryLocked() {
	if l.retry != nil || l.waiters == 0 || l.ended {
		return
	}
	for i := range l.list {
		if p := &l.list[i]; (p.down || p.later) && !p.ask && !p.slow && p.leader != "" {
			l.retry = time.AfterFunc(retryDown, l.retryDown)
			return
		}
	}
}

func (l *life) retryDown() {
	l.mu.Lock()
	l.retry = nil
	if l.waiters > 0 {
		for i := range l.list {
			if p := &l.list[i]; (p.down || p.later) && p.leader != "" && !p.slow {
				p.ask = true
			}
		}
	}
	l.mu.Unlock()
	l.pump()
}

// pump asks the nodes that have something to be asked for those who wait, and
// ends those who do not wait when there is nothing left to ask.
func (l *life) pump() {
	var ask []string
	free := 0
	l.mu.Lock()
	for _, ln := range l.lanes {
		if ln.free == 0 {
			continue
		}
		found := false
		for i := range l.list {
			at := (i + l.turn) % len(l.list) // another node first each time
			if p := &l.list[at]; p.ask && ln.covers(at) {
				found = true
				ask = appendNew(ask, p.leader)
			}
		}
		if !found {
			l.endZeroLocked(ln)
		}
		free += ln.free
	}
	if l.pumps++; l.pumps%suspectsInTurn != 0 {
		ask = suspectsLast(ask, l.r.deps.Suspected)
	}
	l.armRetryLocked()
	l.mu.Unlock()
	for _, id := range ask {
		// No more nodes than takers: the rest is asked when these have answered. A
		// node whose calls are all under way does not count: it may hang.
		if l.r.node(id).want(l, free) {
			free--
		}
		if free <= 0 {
			return
		}
	}
}

// endZeroLocked ends the waiters that asked for what is there now.
func (l *life) endZeroLocked(ln *lane) {
	for e := ln.list.Front(); e != nil; {
		w := e.Value.(*waiter)
		e = e.Next()
		if w.req.Wait == 0 && w.call == nil {
			l.emptyLocked(w)
		}
	}
}

// suspectsLast puts nodes that are probably dead behind the others, in their order.
func suspectsLast(ids []string, suspected func(id string) bool) []string {
	if !slices.ContainsFunc(ids, suspected) {
		return ids
	}
	slices.SortStableFunc(ids, func(a, b string) int {
		switch sa, sb := suspected(a), suspected(b); {
		case sa == sb:
			return 0
		case sb:
			return -1
		}
		return 1
	})
	return ids
}

func appendNew(list []string, s string) []string {
	for _, have := range list {
		if have == s {
			return list
		}
	}
	return append(list, s)
}

// asked is one claim of a call and what to do with its answer.
type asked struct {
	life   *life
	claim  nodeapi.Claim
	takers []*waiter
	wakes  []uint32 // of each partition when it was asked
}

// claims builds what this life wants of a node now, and makes the waiters takers
// of c. Free waiters are shared out over the nodes that are worth asking.
func (l *life) claims(node string, c *call) (out []asked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ln := range l.lanes {
		if ln.free == 0 {
			continue
		}
		a := asked{life: l, claim: nodeapi.Claim{Topic: l.name, Incarnation: l.id, Arm: true}}
		var nodes []string
		for i := range l.list {
			at := (i + l.turn) % len(l.list)
			p := &l.list[at]
			if !p.ask || !ln.covers(at) {
				continue
			}
			nodes = appendNew(nodes, p.leader)
			if p.leader == node {
				a.claim.Partitions = append(a.claim.Partitions, nodeapi.ClaimPartition{Partition: int32(at), DiskID: p.disk, Epoch: p.epoch})
				a.wakes = append(a.wakes, p.wakes)
			}
		}
		if len(a.claim.Partitions) == 0 {
			continue
		}
		share := min((ln.free+len(nodes)-1)/len(nodes), nodeapi.MaxTakers)
		for e := ln.list.Front(); e != nil && len(a.takers) < share; e = e.Next() {
			w := e.Value.(*waiter)
			if w.call != nil {
				continue
			}
			w.call = c
			ln.free--
			a.takers = append(a.takers, w)
			a.claim.Takers = append(a.claim.Takers, nodeapi.Taker{
				Max: max(w.req.Max, 1), MaxBytes: w.req.MaxBytes, VisibilityMS: w.req.VisibilityMS,
			})
		}
		out = append(out, a)
		l.turn++
	}
	return out
}
