package node

import (
	"context"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/topic"
)

// After an election everybody hears of it at about the same time, and whoever hears
// before the new leader asks it too early. Nobody is sent away with a pause for
// that: a fetch and a commit wait here until the replica shows what the caller has
// seen, and a gateway whose claim came too early is woken.

const (
	// behindWait bounds what a request waits for this node's replica of the metastore:
	// an entry reaches all replicas within some ms of each other, and one that is cut
	// off from Raft must refuse, so that its callers look elsewhere.
	behindWait = 200 * time.Millisecond
	// maxExpected bounds the partitions whose claims came too early; beyond it those
	// before are forgotten: a gateway asks again by itself.
	maxExpected = 4096
)

// behind tells whether a caller that names this epoch may have seen more of the
// metastore than this node's replica shows.
func (j judgement) behind(epoch topic.Epoch) bool {
	if j.a == nil {
		return j.standing == unknown
	}
	return epoch > j.a.LeaderEpoch || epoch == j.a.LeaderEpoch && j.a.Leader == ""
}

// judgeFor judges by a replica that shows what a caller has seen, or has not come to
// it within behindWait.
func (n *Node) judgeFor(ctx context.Context, ref topic.Ref, epoch topic.Epoch) judgement {
	j := judge(n.view, n.self, n.disk, ref)
	if !j.behind(epoch) {
		return j
	}
	timer := time.NewTimer(behindWait)
	defer timer.Stop()
	for {
		changed := n.view.Changed() // before the look, so that no change falls between
		if j = judge(n.view, n.self, n.disk, ref); !j.behind(epoch) {
			return j
		}
		select {
		case <-changed:
		case <-timer.C:
			return j
		case <-ctx.Done():
			return j
		}
	}
}

// early is the partitions of a fetch that this node does not lead yet.
type early struct {
	over    chan struct{}   // closed when the fetch ends
	changed <-chan struct{} // of the view, taken before it was looked at
	waits   []bool          // by index: not led here yet, and waited for
	tried   []bool          // by index: its leadership was waited for; once is enough
	behind  []int           // indexes that wait for the metastore replica
}

func newEarly(changed <-chan struct{}, n int) early {
	flags := make([]bool, 2*n)
	return early{over: make(chan struct{}), changed: changed, waits: flags[:n], tried: flags[n:]}
}

// news is closed when what waits for the metastore replica has to be looked at again.
func (e *early) news() <-chan struct{} {
	if len(e.behind) == 0 {
		return nil
	}
	return e.changed
}

// await keeps a partition in the fetch until this node leads it under the epoch that
// the fetch names: false when it will not, as far as it knows.
func (f *fetch) await(i int, j judgement) bool {
	q := &f.req.Partitions[i]
	if q.DiskID != f.n.disk {
		return false
	}
	if j.behind(q.Epoch) {
		f.early.behind = append(f.early.behind, i)
		f.early.waits[i] = f.req.WaitMS > 0
		return f.early.waits[i]
	}
	if j.standing != leads || q.Epoch != j.a.LeaderEpoch || f.early.tried[i] {
		return false
	}
	w, err := f.n.take(q.Ref, j.a)
	if err != nil || f.req.WaitMS == 0 {
		return false
	}
	f.early.waits[i], f.early.tried[i] = true, w.role == roleOf(j.a)
	go func() {
		select {
		case <-w.done:
			f.watcher.Tell(i)
		case <-f.early.over:
		}
	}()
	return true
}

// caughtUp looks again at what waited for the metastore replica.
func (f *fetch) caughtUp() {
	f.early.changed = f.n.view.Changed() // before the look, so that no change falls between
	list := f.early.behind
	f.early.behind = nil
	for _, i := range list {
		f.again(i)
	}
}

// again looks again at a partition that was waited for.
func (f *fetch) again(i int) {
	if f.early.waits[i] {
		f.early.waits[i] = false
		f.begin(i)
	}
}

// tooEarly refuses, at the end of a fetch, what is not led here yet.
func (f *fetch) tooEarly() {
	for i, waits := range f.early.waits {
		if waits {
			f.refuse(i, judge(f.n.view, f.n.self, f.n.disk, f.req.Partitions[i].Ref))
		}
	}
}

// expecting is the gateways whose claims came before this node served what they
// asked for.
type expecting struct {
	mu sync.Mutex // guards by; a leaf
	by map[topic.Ref]map[string]struct{}
}

// add notes a gateway; the partition has to be looked at again after it.
func (e *expecting) add(ref topic.Ref, gateway string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.by == nil || len(e.by) >= maxExpected {
		e.by = map[topic.Ref]map[string]struct{}{}
	}
	if e.by[ref] == nil {
		e.by[ref] = map[string]struct{}{}
	}
	e.by[ref][gateway] = struct{}{}
}

// take forgets and returns the gateways of a partition.
func (e *expecting) take(ref topic.Ref) map[string]struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := e.by[ref]
	delete(e.by, ref)
	return list
}

// serving tells gateways that came too early that the partition may be asked now.
func (n *Node) serving(ref topic.Ref, epoch topic.Epoch) {
	for gateway := range n.expecting.take(ref) {
		n.waker.Ready(gateway, gatewayapi.Ready{Ref: ref, Epoch: epoch})
	}
}
