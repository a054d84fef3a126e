package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
)

const (
	// openLimit bounds one open, the metastore's answer about a stale directory included.
	openLimit = 30 * time.Second
	// retryOpen is how long a failed open is remembered, so that requests do not
	// hammer a disk, or a metastore, in trouble.
	retryOpen = time.Second
)

var errClosing = errors.New("the node is closing")

// slot is one generation of one partition of one life: what holds its memory and
// uses its files. It leaves the table only when neither is true any more.
type slot struct {
	open atomic.Pointer[partition.Partition] // nil until it is open

	mu      sync.Mutex // guards below; held while the slot decides, never across I/O
	work    *opening   // what is being opened, or led under another epoch
	failed  error
	tried   role // that failed
	retryAt time.Time
	ended   chan struct{} // not nil: it was dropped, nothing is opened any more; closed when nothing of it is left
}

// role is what an assignment gives a node to do.
type role struct {
	epoch   topic.Epoch
	leader  string
	version uint64
}

func roleOf(a *topic.Assignment) role { return role{a.LeaderEpoch, a.Leader, a.ConfigVersion} }

// opening is one open in flight.
type opening struct {
	role role
	stop context.CancelFunc // of what waits for others; disk work goes on to its end
	done chan struct{}
	err  error // valid when done is closed
}

func asSlot(v any) *slot {
	s, _ := v.(*slot)
	return s
}

// peek returns the partition if it is open.
func (n *Node) peek(ref topic.Ref) *partition.Partition {
	v, ok := n.slots.Load(ref)
	if !ok {
		return nil
	}
	return asSlot(v).open.Load()
}

// partition returns the partition, opened and led under the epoch of a, and
// waits for that at most as long as ctx allows; the work itself goes on.
func (n *Node) partition(ctx context.Context, ref topic.Ref, a *topic.Assignment) (*partition.Partition, error) {
	v, ok := n.slots.Load(ref)
	if !ok {
		v, _ = n.slots.LoadOrStore(ref, &slot{})
	}
	s := asSlot(v)
	if p := s.open.Load(); p != nil && p.Epoch() == a.LeaderEpoch {
		return p, nil
	}
	return n.assumed(ctx, s, ref, a)
}

// take begins to open the partition in the role that a gives it, or joins what is
// under way with it.
func (n *Node) take(ref topic.Ref, a *topic.Assignment) (*opening, error) {
	v, ok := n.slots.Load(ref)
	if !ok {
		v, _ = n.slots.LoadOrStore(ref, &slot{})
	}
	return n.begin(asSlot(v), ref, a)
}

// assumed returns the partition, opened and in the role that a gives it. Work in
// flight for another assignment is waited for, and then done for this one.
func (n *Node) assumed(ctx context.Context, s *slot, ref topic.Ref, a *topic.Assignment) (*partition.Partition, error) {
	for {
		w, err := n.begin(s, ref, a)
		if err != nil {
			return nil, err
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("open %s: %w", ref, ctx.Err())
		}
		if w.role != roleOf(a) {
			continue
		}
		if w.err != nil {
			return nil, w.err
		}
		break
	}
	p := s.open.Load()
	if p == nil {
		return nil, fmt.Errorf("open %s: %w", ref, queue.ErrClosed)
	}
	return p, nil
}

// begin starts the work on a slot, or joins what is in flight.
func (n *Node) begin(s *slot, ref topic.Ref, a *topic.Assignment) (*opening, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ended != nil:
		return nil, fmt.Errorf("open %s: %w", ref, queue.ErrClosed)
	case s.work != nil:
		return s.work, nil
	case s.failed != nil && s.tried == roleOf(a) && time.Now().Before(s.retryAt):
		return nil, s.failed
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return nil, errClosing
	}
	n.opens.Add(1)
	ctx, stop := context.WithTimeout(context.Background(), openLimit)
	w := &opening{role: roleOf(a), stop: stop, done: make(chan struct{})}
	s.work = w
	go n.work(ctx, s, w, ref, a)
	return w, nil
}

// work opens the partition if it is not, and gives it its role. It runs once per
// slot. A replica that cannot lead now stays open: it can be fenced and follow.
func (n *Node) work(ctx context.Context, s *slot, w *opening, ref topic.Ref, a *topic.Assignment) {
	defer n.opens.Done()
	defer w.stop()
	p := s.open.Load()
	fresh := p == nil
	var err error
	if fresh {
		p, err = n.openPartition(ctx, ref, a)
	}
	if err == nil && p.Predates(a.Reset) {
		err = fmt.Errorf("open %s: %w", ref, partition.ErrBeforeReset)
		if fresh {
			err = errors.Join(err, p.Drop())
			p = nil
		}
	}
	if err == nil {
		if err = p.Assume(partition.SetOf(a)); err != nil && fresh && !a.Replicated() {
			err = errors.Join(err, p.Drop())
			p = nil
		}
	}
	if n.cfg.Hold != nil && fresh && p != nil {
		n.cfg.Hold(queue.HoldRebuild, ref)
	}
	n.finish(s, w, p, fresh && p != nil, err)
}

// finish publishes what work did, unless the life has ended meanwhile.
func (n *Node) finish(s *slot, w *opening, p *partition.Partition, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(w.done)
	s.work, s.failed, s.tried, w.err = nil, err, w.role, err
	if err != nil {
		s.retryAt = time.Now().Add(retryOpen)
		n.log.Warn("a partition cannot be served", "error", err)
	}
	switch {
	case fresh && s.ended != nil:
		w.err = queue.ErrClosed
		if err := p.Drop(); err != nil {
			n.log.Warn("close of a partition whose topic ended", "error", err)
		}
	case fresh:
		s.open.Store(p)
		n.metrics.OpenPartitions.Inc()
	}
}

// openPartition finds or makes the directory and opens the log in it.
func (n *Node) openPartition(ctx context.Context, ref topic.Ref, a *topic.Assignment) (*partition.Partition, error) {
	if err := n.gates.enter(ctx, ref.Topic, ref.Incarnation); err != nil {
		return nil, err
	}
	defer n.gates.leave(ref.Topic)
	if j := judge(n.view, n.self, n.disk, ref); j.standing != leads && !j.holds(n.self) {
		return nil, fmt.Errorf("open %s: %w", ref, queue.ErrClosed) // it ended while we waited
	}
	n.dropOthers(ref.Topic, ref.Incarnation)
	dir, err := n.directory(ctx, ref.Topic, ref.Incarnation)
	if err != nil {
		return nil, fmt.Errorf("open the directory of %s: %w", ref, err)
	}
	return partition.Open(n.shared, ref, topicdir.PartitionDir(dir, ref.Partition), partition.SetOf(a))
}

// close ends a partition in order and leaves its slot empty, to be opened again.
func (n *Node) close(s *slot) (*partition.Partition, error) {
	s.mu.Lock()
	p := s.open.Swap(nil)
	s.mu.Unlock()
	if p == nil {
		return nil, nil
	}
	n.metrics.OpenPartitions.Dec()
	return p, p.Close()
}

func (n *Node) peekSlot(ref topic.Ref) *slot {
	v, ok := n.slots.Load(ref)
	if !ok {
		return nil
	}
	return asSlot(v)
}

func (s *slot) hasEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil
}

// drop ends a slot, in memory only, without waiting: the channel is closed when
// nothing of it can touch its files any more. A rebuild in flight is waited for, and
// what it made is dropped with it.
func (n *Node) drop(ref topic.Ref, s *slot) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return s.ended
	}
	s.ended = make(chan struct{})
	if s.work != nil {
		s.work.stop()
	}
	n.drops.Add(1)
	go n.end(ref, s, s.open.Swap(nil), s.work)
	return s.ended
}

func (n *Node) end(ref topic.Ref, s *slot, p *partition.Partition, w *opening) {
	defer n.drops.Done()
	defer close(s.ended)
	if p != nil {
		n.metrics.OpenPartitions.Dec()
		if err := p.Drop(); err != nil {
			n.log.Warn("close of a partition whose topic ended", "partition", ref.String(), "error", err)
		}
	}
	if w != nil {
		<-w.done
	}
	n.slots.CompareAndDelete(ref, s)
}
