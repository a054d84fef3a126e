package fanout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// slabBytes and slabRecords are where a read for a round ends: enough that a
	// backlog costs few fsyncs of a child, little enough that many rounds fit into
	// memory. A batch is read whole.
	slabBytes   = 1 << 20
	slabRecords = 4096
	// lookAgainMS is after how long a cursor looks again whose parent may not serve,
	// or could not be read.
	lookAgainMS = 200
)

// cursor is one cursor that runs.
type cursor struct {
	m      *Manager
	ref    topic.Ref   // of the parent partition
	epoch  topic.Epoch // of the leadership
	parent Parent
	child  topic.Child
	count  int // partitions of the child
	stream record.Stream
	ctx    context.Context // of its sends
	stop   context.CancelFunc

	waiting atomic.Bool // the head has to be told of the next commit

	turns  [fanout.Lanes]turn // guarded by mu of the schedule
	alarms [fanout.Lanes]alarm.Alarm

	mu     sync.Mutex // guards below; a leaf but for positions of the parent
	core   *fanout.Cursor
	ended  bool
	warned bool // that retention has overtaken it
}

func newCursor(m *Manager, l *led, child topic.Child, count int, from fanout.Position) *cursor {
	c := &cursor{
		m: m, ref: l.ref, epoch: l.epoch, parent: l.p, child: child, count: count,
		stream: fanout.Stream(child.AttachEpoch, l.ref.Partition, count),
		core: fanout.New(fanout.Config{
			Attach: child.AttachEpoch, Partition: l.ref.Partition, DelayMS: child.DelayMS, Count: count,
		}, from),
	}
	for i := range c.alarms {
		c.alarms[i] = alarm.Of(func() { m.work.kick(c, fanout.Lane(i)) })
	}
	c.ctx, c.stop = context.WithCancel(m.work.context())
	return c
}

// end stops the cursor: nothing of it moves a position any more.
func (c *cursor) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.stop()
}

// retry has buckets that failed tried at once.
func (c *cursor) retry() {
	c.mu.Lock()
	behind := c.core.Behind()
	if behind {
		c.core.Retry()
	}
	c.mu.Unlock()
	if behind {
		c.m.work.kick(c, fanout.Behind)
	}
}

// round runs one round of a lane.
func (c *cursor) round(l fanout.Lane) next {
	r, ok, idle := c.begin(l)
	// After the high watermark was read: whoever attaches the child anew begins at one
	// that is read once this view shows the detach, and would copy what is in between
	// again.
	if !c.attached() || !c.parent.Serving(c.epoch) {
		return c.lookAgain()
	}
	if !ok {
		return idle
	}
	slab, waitMS, err := c.read(r)
	if err != nil {
		return c.unreadable(r, err)
	}
	if slab.To == r.From { // not due
		c.waiting.Store(false)
		return next{at: c.m.cfg.Mono() + waitMS}
	}
	c.mu.Lock()
	work := c.core.Take(r, &slab)
	c.mu.Unlock()
	if slab.Unreadable > 0 {
		c.m.metrics.dropped.Add(float64(slab.Unreadable))
	}
	c.send(l, work)
	c.advance()
	return next{more: true}
}

// attached tells whether the view still shows the attachment: what is committed after
// a detach is not copied, although the cursor is only stopped a moment later.
func (c *cursor) attached() bool {
	t, err := c.m.cfg.View.Topic(c.ref.Topic)
	if err != nil || t.Incarnation != c.ref.Incarnation {
		return false
	}
	now, ok := t.ChildNamed(c.child.Name)
	return ok && now.AttachEpoch == c.child.AttachEpoch
}

func (c *cursor) lookAgain() next {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return next{}
	}
	return next{at: c.m.cfg.Mono() + lookAgainMS}
}

// begin asks the core for a round; idle is what to do without one.
func (c *cursor) begin(l fanout.Lane) (r fanout.Round, ok bool, idle next) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return r, false, next{}
	}
	if l == fanout.Head {
		c.waiting.Store(true) // before the high watermark is read, so that no commit falls between
	}
	if r, ok = c.core.Begin(l, c.parent.HighWatermark(), c.m.cfg.Mono()); ok {
		return r, true, next{}
	}
	if l == fanout.Behind {
		if at, waits := c.core.RetryAt(); waits {
			return r, false, next{at: max(at, c.m.cfg.Mono()+1)}
		}
	}
	return r, false, next{}
}

// read collects the records of a round, as far as they are due. waitMS is when the
// first one is that is not.
func (c *cursor) read(r fanout.Round) (s fanout.Slab, waitMS int64, err error) {
	s.To = r.From
	clock, bytes := int64(0), 0
	if c.child.DelayMS > 0 {
		clock = c.parent.Clock()
	}
	for s.To < r.Limit && bytes < slabBytes && len(s.Records) < slabRecords {
		b, err := c.parent.Batch(s.To)
		if err != nil {
			if s.To > r.From {
				return s, 0, nil // first what there is
			}
			return s, 0, err
		}
		if c.child.DelayMS > 0 {
			if waitMS = c.core.Wait(b.CommitMS, clock); waitMS > 0 {
				return s, waitMS, nil
			}
		}
		end := min(b.End(), r.Limit)
		for off := max(s.To, b.Base); off < end && !b.Control; off++ {
			body := b.Body(off)
			bytes += len(body)
			s.Records = append(s.Records, fanout.Record{Offset: off, Epoch: b.Epoch, Body: body})
		}
		s.To = end
	}
	return s, 0, nil
}

// unreadable passes over what is gone for good; everything else may pass.
func (c *cursor) unreadable(r fanout.Round, err error) next {
	from, to := int64(0), int64(0)
	var damage *queue.Unreadable
	switch {
	case errors.Is(err, partlog.ErrGone):
		to = c.parent.LogStart()
	case errors.As(err, &damage):
		from, to = r.From, max(damage.Next, r.From+1)
	case errors.Is(err, queue.ErrClosed):
		return c.lookAgain()
	default:
		c.m.cfg.Log.Warn("a cursor cannot read its parent", "partition", c.ref.String(), "child", c.child.Name, "offset", r.From, "error", err)
		return c.lookAgain()
	}
	c.mu.Lock()
	missed := c.core.Skip(r.Lane, from, to)
	first := !c.warned && missed > 0
	c.warned = c.warned || first
	c.mu.Unlock()
	c.m.metrics.dropped.Add(float64(missed))
	if first {
		c.m.cfg.Log.Error("records of a parent were gone before they were copied; they are counted from now on",
			"partition", c.ref.String(), "child", c.child.Name, "from", r.From, "to", to, "records", missed)
	}
	c.advance()
	return next{more: true}
}

// advance stores where the cursor stands.
func (c *cursor) advance() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	if !c.parent.SetCursor(c.epoch, c.child.AttachEpoch, c.core.Position()) {
		c.ended = true // the leadership is over; the next look over the view starts what follows
		c.stop()
	}
}

// standing is where the cursor stands, and for how long the record there is due.
func (c *cursor) standing() (at fanout.Position, dueMS int64) {
	c.mu.Lock()
	at = c.core.Position()
	c.mu.Unlock()
	if at.Next >= c.parent.HighWatermark() {
		return at, 0
	}
	b, err := c.parent.Batch(at.Next)
	if err != nil {
		return at, 0
	}
	return at, max(c.parent.Clock()-b.CommitMS-c.child.DelayMS, 0)
}
