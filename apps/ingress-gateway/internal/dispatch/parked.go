package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/wal"
)

// loadBytes bounds the bodies of one Load: one batch.
const loadBytes = 8 << 20

// parkedLogs holds the parked log of each queue that has one.
type parkedLogs struct {
	d     *Dispatcher
	mu    sync.Mutex // guards logs
	logs  map[wal.Queue]*parkedLog
	total atomic.Int64 // sum of left, which is asked for with each batch
}

// parkedLog is the parked log of one queue. Its file is open only while it is
// drained: ten thousand stuck queues must not need ten thousand descriptors.
type parkedLog struct {
	mu      sync.Mutex // held across the log's I/O: it is for one goroutine at a time
	log     *wal.Parked
	reading bool
	left    atomic.Int64 // records not committed
	bytes   atomic.Int64 // of their bodies
	oldest  atomic.Int64 // accept time of the first one, or earlier; Unix milliseconds, 0: not known
}

func (p *parkedLogs) init(d *Dispatcher) { p.d, p.logs = d, map[wal.Queue]*parkedLog{} }

func queueOf(k dispatchq.Key) wal.Queue {
	return wal.Queue{Incarnation: k.Incarnation, Partition: k.Partition, Pinned: k.Pinned}
}

func (p *parkedLogs) get(q wal.Queue) *parkedLog {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.logs[q]
	if l == nil {
		l = &parkedLog{}
		p.logs[q] = l
	}
	return l
}

func (p *parkedLogs) openLocked(q wal.Queue, l *parkedLog) error {
	if l.log != nil {
		return nil
	}
	log, err := wal.OpenParked(p.d.deps.FS, p.d.deps.Dir, q, wal.Options{OnDamage: p.d.onDamage})
	if err == nil {
		l.log = log
	}
	return err
}

func (l *parkedLog) closeLocked() error {
	if l.log == nil {
		return nil
	}
	err := l.log.Close()
	l.log, l.reading = nil, false
	return err
}

// left is how many parked records are not committed.
func (p *parkedLogs) left() int64 { return p.total.Load() }

// count adds to what a log holds; negative to take off.
func (p *parkedLogs) count(l *parkedLog, records, bytes int64) {
	l.bytes.Add(bytes)
	p.total.Add(records)
	l.left.Add(records)
}

// backlog is left, and the accept time of the oldest.
func (p *parkedLogs) backlog() (records, oldestMS int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.logs {
		n, at := l.left.Load(), l.oldest.Load()
		records += n
		if n > 0 && at != 0 && (oldestMS == 0 || at < oldestMS) {
			oldestMS = at
		}
	}
	return records, oldestMS
}

func (p *parkedLogs) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q, l := range p.logs {
		l.mu.Lock()
		if err := l.closeLocked(); err != nil {
			p.d.deps.Log.Warn("closing a parked log failed", "queue", q.String(), "error", err)
		}
		l.mu.Unlock()
	}
}

// append parks records, synced.
func (p *parkedLogs) append(q wal.Queue, recs []wal.Record) error {
	l := p.get(q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := p.openLocked(q, l); err != nil {
		return err
	}
	if err := l.log.Append(recs); err != nil {
		return err
	}
	if l.left.Load() == 0 {
		l.oldest.Store(recs[0].AcceptMS)
	}
	bytes := int64(0)
	for i := range recs {
		bytes += int64(len(recs[i].Body))
	}
	p.count(l, int64(len(recs)), bytes)
	if l.reading {
		return nil
	}
	return l.closeLocked()
}

func (p *parkedLogs) readAt(key dispatchq.Key, pos wal.Position, buf []byte) (wal.Record, error) {
	q := queueOf(key)
	l := p.get(q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := p.openLocked(q, l); err != nil {
		return wal.Record{}, err
	}
	return l.log.ReadAt(pos, buf)
}

// drained removes what is not needed any more, after records were counted off.
func (p *parkedLogs) drained(q wal.Queue, l *parkedLog, last wal.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	switch {
	case l.log == nil:
	case l.left.Load() <= 0:
		err = l.log.Remove()
		l.log, l.reading = nil, false
	default:
		err = l.log.Drained(last)
	}
	if err != nil {
		p.d.deps.Log.Warn("removing a drained parked log failed; its records are dropped as known after a restart",
			"queue", q.String(), "error", err)
	}
}

// next reads the next records of a parked log into a chunk. lost counts those
// that should be there and are not; their share of the space is given back.
func (p *parkedLogs) next(q wal.Queue, most int) (g gather, lost int64, err error) {
	l := p.get(q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := p.openLocked(q, l); err != nil {
		return g, 0, err
	}
	l.reading = true
	// Its place is kept, its files are not: thousands may be drained side by side.
	defer func() { err = errors.Join(err, l.log.ReleaseFiles()) }()
	for len(g.list) < most && len(g.buf) < loadBytes {
		rec, err := l.log.Next()
		if errors.Is(err, io.EOF) {
			if len(g.list) == 0 {
				lost = l.left.Load()
				p.d.deps.Space.Dispatched(q.Incarnation, int(l.bytes.Load()))
				p.count(l, -lost, -l.bytes.Load())
			}
			return g, lost, nil
		}
		if err != nil {
			return g, 0, err
		}
		if len(g.list) == 0 {
			l.oldest.Store(rec.AcceptMS)
		}
		g.add(&rec)
	}
	return g, 0, nil
}

// recoverParked tells the machine what earlier starts have parked. What is not a
// damaged log but a shortage, of descriptors or of luck with the disk, is tried
// again until ctx ends: nothing newer may be sent before.
func (d *Dispatcher) recoverParked(ctx context.Context) {
	done := map[wal.Queue]bool{}
	for {
		queues, err := wal.ListParked(d.deps.FS, d.deps.Dir)
		for _, q := range queues {
			if done[q] {
				continue
			}
			if qerr := d.recoverQueue(q); qerr != nil {
				err = errors.Join(err, fmt.Errorf("recover parked queue %s: %w", q, qerr))
				continue
			}
			done[q] = true
		}
		if err == nil {
			return
		}
		d.deps.Log.Error("parked queues cannot be read, and nothing is dispatched before; it is tried again", "error", err)
		if !pause(ctx, readRetry) {
			return
		}
	}
}

// recoverQueue counts what a parked log holds, and tells it to all who need it when
// all of it is known.
func (d *Dispatcher) recoverQueue(q wal.Queue) error {
	l := d.parked.get(q)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := d.parked.openLocked(q, l); err != nil {
		return err
	}
	first, highest := wal.Record{}, map[topic.ID64]uint64{}
	records, bytes := int64(0), int64(0)
	for {
		rec, err := l.log.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(err, l.closeLocked())
		}
		if records == 0 {
			first = rec
		}
		highest[rec.Identity] = max(highest[rec.Identity], rec.Seq)
		records++
		bytes += int64(len(rec.Body))
	}
	if records == 0 {
		err := l.log.Remove()
		l.log = nil
		return err
	}
	if err := l.closeLocked(); err != nil { // it is read again from its start when it is drained
		return err
	}
	l.oldest.Store(first.AcceptMS)
	d.parked.count(l, records, bytes)
	d.deps.Space.Recovered(first.Topic, q.Incarnation, int(bytes))
	d.machine.AddParked(d.now(), dispatchq.Key{
		Topic: first.Topic, Incarnation: q.Incarnation, Partition: q.Partition, Pinned: q.Pinned,
	}, records, highest)
	return nil
}

// park carries out a Park; few at a time, since each holds a batch in memory and
// files open, and a dead node may strand thousands of queues at once.
func (d *Dispatcher) park(ctx context.Context, p dispatchq.Park) {
	select {
	case d.parking <- struct{}{}:
		defer func() { <-d.parking }()
	case <-ctx.Done():
		return
	}
	n, err := d.copyToParked(p)
	if err != nil {
		d.deps.Log.Warn("parking a stuck queue failed; the rest stays in the write-ahead log", "topic", p.Key.Topic,
			"partition", p.Key.Partition, "parked", n, "records", len(p.Items), "error", err)
	} else {
		d.deps.Log.Warn("a queue that cannot be dispatched was parked", "topic", p.Key.Topic, "incarnation", p.Key.Incarnation.String(),
			"partition", p.Key.Partition, "records", n)
	}
	d.report(ctx, func(now time.Duration) {
		positions := make([]wal.Position, n)
		for i := range positions {
			positions[i] = wal.Position(p.Items[i].Pos)
			d.marks.done(&p.Items[i])
		}
		d.chunks.done(p.Items[:n])
		d.deps.WAL.Done(positions...)
		d.machine.Parked(now, p.Key, n)
	})
}

// copyToParked writes the records piece by piece, so that a long queue is not in
// memory at once, and returns how many are there for sure.
func (d *Dispatcher) copyToParked(p dispatchq.Park) (parked int, err error) {
	q := queueOf(p.Key)
	for items := p.Items; len(items) > 0; {
		n, bytes := 0, 0
		for n < len(items) && (n == 0 || bytes+int(items[n].Size) <= loadBytes) {
			bytes += int(items[n].Size)
			n++
		}
		if err := d.roomToPark(uint64(bytes)); err != nil {
			return parked, err
		}
		recs, err := d.fetch(p.Key, items[:n])
		if err == nil {
			err = d.parked.append(q, recs)
		}
		if err != nil {
			return parked, err
		}
		parked += n
		items = items[n:]
	}
	return parked, nil
}

// roomToPark refuses to fill the disk: a copy needs room before the WAL gives any.
func (d *Dispatcher) roomToPark(bytes uint64) error {
	total, free, err := d.deps.FS.Usage(d.deps.Dir)
	if err != nil {
		return fmt.Errorf("look for room to park: %w", err)
	}
	if keep := total / 100 * uint64(100-d.deps.ParkBelow); free < keep+bytes {
		return fmt.Errorf("%d bytes to park, and %d of %d free: %w", bytes, free, total, errNoRoom)
	}
	return nil
}

var errNoRoom = errors.New("the disk is too full to park")

// fetch returns whole records, from the window or from the WAL.
func (d *Dispatcher) fetch(key dispatchq.Key, items []dispatchq.Item) ([]wal.Record, error) {
	recs := make([]wal.Record, len(items))
	// An item does not know when it was accepted: not before the oldest one there.
	accepted := d.deps.WAL.Stats().OldestAcceptMS
	for i, body := range d.chunks.bodies(items) {
		if body == nil {
			rec, err := d.deps.WAL.ReadAt(wal.Position(items[i].Pos), nil)
			if err != nil {
				return nil, err
			}
			recs[i] = rec
			continue
		}
		recs[i] = wal.Record{ID: wal.ID{Identity: items[i].WAL, Seq: items[i].Seq}, Entry: wal.Entry{
			Topic: key.Topic, Incarnation: key.Incarnation, Partition: key.Partition, Pinned: key.Pinned, AcceptMS: accepted, Body: body,
		}}
	}
	return recs, nil
}

// load carries out a Load; few at a time, like park.
func (d *Dispatcher) load(ctx context.Context, l dispatchq.Load) {
	select {
	case d.loading <- struct{}{}:
		defer func() { <-d.loading }()
	case <-ctx.Done():
		return
	}
	g, lost, err := d.parked.next(queueOf(l.Key), l.Most)
	if err != nil {
		d.deps.Log.Warn("reading a parked queue failed; it is tried again", "topic", l.Key.Topic, "error", err)
	}
	if lost > 0 {
		d.deps.Log.Error("records of a parked queue are damaged and lost", "topic", l.Key.Topic, "partition", l.Key.Partition, "records", lost)
		d.metrics.lost.Add(float64(lost))
	}
	var list []added
	if len(g.list) > 0 {
		list = g.finish(&d.chunks)
	}
	items := make([]dispatchq.Item, len(list))
	for i := range list {
		items[i] = list[i].item
	}
	d.report(ctx, func(now time.Duration) { d.machine.Loaded(now, l.Key, items, lost) })
}
