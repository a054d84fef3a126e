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

// slot is one partition of one life in the table of the node.
type slot struct {
	open atomic.Pointer[partition.Partition] // nil until it is open

	mu      sync.Mutex // guards below; held while the slot decides, never across I/O
	work    *opening   // what is being opened, or led under another epoch
	failed  error
	retryAt time.Time
	dropped bool // the life has ended: nothing is opened any more
}

// opening is one open in flight.
type opening struct {
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

// assumed returns the partition, opened and in the role that a gives it.
func (n *Node) assumed(ctx context.Context, s *slot, ref topic.Ref, a *topic.Assignment) (*partition.Partition, error) {
	w, err := n.begin(s, ref, a)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("open %s: %w", ref, ctx.Err())
	}
	if w.err != nil {
		return nil, w.err
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
	case s.dropped:
		return nil, fmt.Errorf("open %s: %w", ref, queue.ErrClosed)
	case s.work != nil:
		return s.work, nil
	case s.failed != nil && n.cfg.Now().Before(s.retryAt):
		return nil, s.failed
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing {
		return nil, errClosing
	}
	n.opens.Add(1)
	w := &opening{done: make(chan struct{})}
	s.work = w
	go n.work(s, w, ref, a)
	return w, nil
}

// work opens the partition if it is not, and gives it its role. It runs once per
// slot. A replica that cannot lead now stays open: it can be fenced and follow.
func (n *Node) work(s *slot, w *opening, ref topic.Ref, a *topic.Assignment) {
	defer n.opens.Done()
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	p := s.open.Load()
	fresh := p == nil
	var err error
	if fresh {
		p, err = n.openPartition(ctx, ref, a)
	}
	if err == nil {
		if err = p.Assume(partition.SetOf(a)); err != nil && fresh && !replicated(a) {
			err = errors.Join(err, p.Drop())
			p = nil
		}
	}
	n.finish(s, w, p, fresh && p != nil, err)
}

// finish publishes what work did, unless the life has ended meanwhile.
func (n *Node) finish(s *slot, w *opening, p *partition.Partition, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(w.done)
	s.work, s.failed, w.err = nil, err, err
	if err != nil {
		s.retryAt = n.cfg.Now().Add(retryOpen)
		n.log.Warn("a partition cannot be served", "error", err)
	}
	switch {
	case fresh && s.dropped:
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

// drop ends a partition whose life is over: in memory only.
func (n *Node) drop(ref topic.Ref, s *slot) {
	s.mu.Lock()
	s.dropped = true
	p := s.open.Swap(nil)
	s.mu.Unlock()
	n.slots.CompareAndDelete(ref, s)
	if p == nil {
		return
	}
	n.metrics.OpenPartitions.Dec()
	if err := p.Drop(); err != nil {
		n.log.Warn("close of a partition whose topic ended", "partition", ref.String(), "error", err)
	}
}
