package dispatch

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/wal"
)

const (
	// confirmBudget ends one question to the metastore leader: its barrier of 5 s, and
	// a walk to a leader that has just changed.
	confirmBudget = 10 * time.Second
	// maxTold bounds the lives whose end was logged; beyond it one may be logged again.
	maxTold = 10_000
)

// Confirm asks the metastore leader about incarnations. What it does not answer is unknown.
type Confirm func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error)

// confirming is what the loop remembers of its questions about held records.
type confirming struct {
	asking bool // one question is under way
	told   map[dispatchq.Life]metaapi.Verdict
}

// confirmHeld has the leader asked about lives whose records are held. That this
// replica does not show a topic proves nothing: one that was restored from a
// snapshot lacks every topic created after it (bug 3 of the lifecycle page). So it
// is asked only while the replica is caught up, and only what the leader calls gone
// is discarded.
func (d *Dispatcher) confirmHeld(ctx context.Context, now time.Duration) {
	if d.held.asking || !d.deps.CaughtUp() {
		return
	}
	lives := d.machine.Held(now, metaapi.MaxQuestions)
	if len(lives) == 0 {
		return
	}
	ids := make([]topic.Incarnation, len(lives))
	for i, l := range lives {
		ids[i] = l.Incarnation
	}
	d.held.asking = true
	d.start(func() {
		call, cancel := context.WithTimeout(ctx, confirmBudget)
		defer cancel()
		verdicts, err := d.deps.Confirm(call, ids)
		if err != nil && ctx.Err() == nil {
			d.deps.Log.Warn("the metastore leader did not confirm the end of topics; their records are kept", "lives", len(ids), "error", err)
		}
		d.report(ctx, func(time.Duration) {
			d.held.asking = false
			for _, l := range lives {
				d.judged(ctx, l, verdicts[l.Incarnation])
			}
		})
	})
}

// judged acts on one verdict; anything but gone keeps the records.
func (d *Dispatcher) judged(ctx context.Context, l dispatchq.Life, v metaapi.Verdict) {
	if v != metaapi.VerdictGone {
		d.metrics.unconfirmed.Inc()
		if v == metaapi.VerdictUnknown && d.tell(l, v) {
			d.deps.Log.Warn("records are held of a topic that the metastore does not know; they are kept until an operator decides",
				"topic", l.Topic, "incarnation", l.Incarnation.String())
		}
		return
	}
	records := 0
	for _, q := range d.machine.Discard(l) {
		records += d.discard(ctx, &q)
	}
	if records > 0 {
		d.metrics.discarded.Add(float64(records))
		if d.tell(l, v) {
			d.deps.Log.Info("accepted records of a deleted topic are discarded; the metastore leader has confirmed its end",
				"topic", l.Topic, "incarnation", l.Incarnation.String(), "records", records)
		}
	}
}

// tell notes that something is logged, and whether it was not before.
func (d *Dispatcher) tell(l dispatchq.Life, v metaapi.Verdict) bool {
	if d.held.told[l] == v {
		return false
	}
	if d.held.told == nil || len(d.held.told) >= maxTold {
		d.held.told = map[dispatchq.Life]metaapi.Verdict{}
	}
	d.held.told[l] = v
	return true
}

// discard takes the records of one queue off the WAL and removes its parked log. It
// returns how many there were.
func (d *Dispatcher) discard(ctx context.Context, q *dispatchq.Discarded) int {
	d.done(q.Items, q.Key)
	if !q.Parked {
		return len(q.Items)
	}
	d.chunks.done(q.Window)
	key, queue := q.Key, queueOf(q.Key)
	log := d.parked.get(queue)
	records, bytes := d.parked.take(log)
	d.deps.Space.Dispatched(q.Key.Incarnation, int(bytes))
	d.start(func() {
		d.parked.discard(queue, log)
		d.report(ctx, func(time.Duration) { d.machine.Removed(key) })
	})
	return len(q.Items) + int(records)
}

// take counts everything off that a log holds.
func (p *parkedLogs) take(l *parkedLog) (records, bytes int64) {
	records, bytes = l.left.Swap(0), l.bytes.Swap(0)
	p.total.Add(-records)
	return records, bytes
}

// discard removes the log of a queue whose records were given up. If that fails
// they are held, and confirmed, again after a restart.
func (p *parkedLogs) discard(q wal.Queue, l *parkedLog) {
	l.mu.Lock()
	err := p.openLocked(q, l)
	if err == nil {
		err = l.log.Remove()
		l.log, l.reading = nil, false
	}
	l.mu.Unlock()
	if err != nil {
		p.d.deps.Log.Warn("removing the parked log of a deleted topic failed", "queue", q.String(), "error", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.logs[q] == l && l.left.Load() == 0 {
		delete(p.logs, q)
	}
}
