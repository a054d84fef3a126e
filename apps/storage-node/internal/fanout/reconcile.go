package fanout

import (
	"context"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// wanted is a partition that this node leads and whose topic has, or had, children.
type wanted struct {
	a *topic.Assignment
	t *topic.Topic
}

// reconcile starts and stops cursors so that they are those of the view, and tells
// whether it has to look again although nothing changes. Before the latch nothing
// is decided.
func (m *Manager) reconcile(ctx context.Context) (again bool) {
	list, err := m.cfg.View.AssignmentsOf(m.cfg.Self)
	if err != nil || !m.cfg.View.Latched() {
		return false
	}
	want := map[topic.Ref]wanted{}
	for i := range list {
		a := &list[i]
		if a.Leader != m.cfg.Self {
			continue
		}
		t, err := m.cfg.View.Topic(a.Topic)
		if err == nil && t.Incarnation == a.Incarnation && (len(t.Children) > 0 || m.known(a.Ref)) {
			want[a.Ref] = wanted{a, t}
		}
	}
	for _, l := range m.snapshot() {
		if w, ok := want[l.ref]; !ok || w.a.LeaderEpoch != l.epoch {
			m.release(l)
		}
	}
	again = m.enter(ctx, want)
	var open questions
	for _, l := range m.snapshot() {
		if m.sync(l, want[l.ref].t, &open) {
			again = true
		}
	}
	if open.any() && m.ask(ctx, &open) {
		again = true
	}
	return again
}

// enter opens the partitions that are led and have no record here yet; again when
// one cannot be served yet.
func (m *Manager) enter(ctx context.Context, want map[topic.Ref]wanted) (again bool) {
	slots := make(chan struct{}, openers)
	var all sync.WaitGroup
	var mu sync.Mutex // guards again
	for ref, w := range want {
		if m.known(ref) {
			continue
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			p, err := m.cfg.Host.Lead(ctx, w.a)
			if err != nil || !p.Serving(w.a.LeaderEpoch) {
				mu.Lock()
				defer mu.Unlock()
				again = true
				return
			}
			l := &led{ref: ref, epoch: w.a.LeaderEpoch, p: p, cursors: map[topic.ID64]*cursor{}, asked: map[topic.ID64]time.Time{}}
			l.list.Store(&[]*cursor{})
			p.Tap(func() { m.tapped(l) })
			m.mu.Lock()
			defer m.mu.Unlock()
			m.led[ref] = l
		})
	}
	all.Wait()
	return again
}

// questions are what only the metastore leader can answer.
type questions struct {
	begin []begin
	over  []over
}

// begin is a cursor that has no position yet.
type begin struct {
	l     *led
	child topic.Child
	count int
}

// over is a position of an attachment that the view does not show.
type over struct {
	l      *led
	attach topic.ID64
}

func (q *questions) any() bool { return len(q.begin)+len(q.over) > 0 }

// sync makes the cursors of one partition those of its topic's children.
func (m *Manager) sync(l *led, t *topic.Topic, open *questions) (again bool) {
	at := l.p.Cursors(l.epoch)
	if at == nil {
		m.release(l) // the leadership ended meanwhile, or began anew: the next look finds which
		return true
	}
	attached := make(map[topic.ID64]bool, len(t.Children))
	for _, child := range t.Children {
		attached[child.AttachEpoch] = true
		ct, err := m.cfg.View.Topic(child.Name)
		if err != nil || ct.Incarnation != child.Incarnation {
			again = true // the view is between two changes
			continue
		}
		c := l.cursors[child.AttachEpoch]
		if c != nil && c.count == ct.Partitions {
			c.retry()
			continue
		}
		if c != nil {
			m.end(l, child.AttachEpoch, c) // its buckets are others now: another stream, from where it stands
			at = l.p.Cursors(l.epoch)
		}
		if from, known := at[child.AttachEpoch]; known {
			m.begin(l, child, ct.Partitions, from)
		} else {
			open.begin = append(open.begin, begin{l, child, ct.Partitions})
		}
	}
	for attach, c := range l.cursors {
		if !attached[attach] {
			m.end(l, attach, c)
		}
	}
	if len(t.Children) == 0 && len(at) == 0 {
		m.release(l)
	}
	for attach := range at {
		if asked, ok := l.asked[attach]; !attached[attach] && (!ok || time.Since(asked) >= askAgain) {
			open.over = append(open.over, over{l, attach})
		}
	}
	return again
}

// begin starts a cursor where it stands, or at the end of what is committed: a
// partition that lost its end has offsets below the position that are new.
func (m *Manager) begin(l *led, child topic.Child, count int, from fanout.Position) {
	if hwm := l.p.HighWatermark(); from.Next > hwm {
		m.cfg.Log.Warn("a cursor stood above what its partition has; it goes on at the end",
			"partition", l.ref.String(), "child", child.Name, "stood_at", from.Next, "high_watermark", hwm)
		from.Next = hwm
	}
	c := newCursor(m, l, child, count, from)
	m.mu.Lock()
	l.cursors[child.AttachEpoch] = c
	l.publishLocked()
	m.mu.Unlock()
	m.work.kick(c, fanout.Head)
}

// ask has the leader say which attachments live and which have ended; again when
// it did not answer everything.
func (m *Manager) ask(ctx context.Context, open *questions) (again bool) {
	var epochs []topic.ID64
	for _, b := range open.begin {
		epochs = append(epochs, b.child.AttachEpoch)
	}
	for _, o := range open.over {
		epochs = append(epochs, o.attach)
	}
	ctx, cancel := context.WithTimeout(ctx, confirmLimit)
	defer cancel()
	verdicts, err := m.cfg.Confirm(ctx, epochs)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.Debug("nobody confirms attachments; they are asked about again", "attachments", len(epochs), "err", err)
	}
	for _, b := range open.begin {
		if verdicts[b.child.AttachEpoch] != metaapi.VerdictLive || !m.anchor(b) {
			again = true
		}
	}
	for _, o := range open.over {
		switch v, said := verdicts[o.attach]; {
		case !said:
			again = true
		case v == metaapi.VerdictGone:
			o.l.p.DropCursor(o.l.epoch, o.attach)
		default:
			o.l.asked[o.attach] = time.Now()
			again = again || v == metaapi.VerdictLive // this replica lags
		}
	}
	return again
}

// anchor starts a cursor of a living attachment at its attach point.
func (m *Manager) anchor(b begin) bool {
	at, err := m.cfg.View.Attachment(b.child.AttachEpoch)
	if err != nil || at == nil {
		return false
	}
	from := b.l.p.LogStart()
	if int(b.l.ref.Partition) < len(at.Points) {
		from = min(at.Points[b.l.ref.Partition], b.l.p.HighWatermark())
	}
	pos := fanout.Position{Next: from}
	if !b.l.p.SetCursor(b.l.epoch, b.child.AttachEpoch, pos) {
		return false
	}
	m.cfg.Log.Info("fan-out begins", "partition", b.l.ref.String(), "child", b.child.Name,
		"attach_epoch", b.child.AttachEpoch.String(), "from", from)
	m.begin(b.l, b.child, b.count, pos)
	return true
}
