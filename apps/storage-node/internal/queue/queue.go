package queue

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/lease"
	"github.com/narad-mq/narad/libs/topic"
)

// MaxPositions bounds the bytes of one position snapshot: the largest caps that
// a topic may have, a settled span and a lease for each.
const MaxPositions = 4 << 20

// ErrClosed is returned by a queue that has ended: its topic was deleted, or
// the node stops or no longer leads.
var ErrClosed = errors.New("queue is closed")

// Unreadable is a part of the log that this copy cannot read and never will.
type Unreadable struct {
	Next int64 // the first offset after it
	Err  error
}

// Error names the end of the damage.
func (e *Unreadable) Error() string {
	return fmt.Sprintf("unreadable up to offset %d: %v", e.Next, e.Err)
}

// Unwrap gives the cause.
func (e *Unreadable) Unwrap() error { return e.Err }

// Source is the partition below a queue. Safe for concurrent use.
type Source interface {
	// HighWatermark is the end of what may be handed out; it never moves back.
	HighWatermark() int64
	// LogStart is the first offset that retention has left.
	LogStart() int64
	// Batch returns the committed batch that holds off, or else the first one
	// after it. *Unreadable: damage; anything else may pass.
	Batch(off int64) (*batches.Batch, error)
	// SavePositions stores a snapshot, in place of the one before, and makes it
	// durable when sync is set. It may keep data.
	SavePositions(data []byte, sync bool) error
}

// Waker tells a gateway that a partition has something to give; it never waits.
type Waker interface {
	Ready(gateway string, r gatewayapi.Ready)
}

// Config is what a queue needs. All fields are required.
type Config struct {
	Ref       topic.Ref
	Epoch     topic.Epoch
	Source    Source
	Positions []byte // the snapshot that was stored last; empty: none
	// Others are snapshots that other copies had stored: what one of them knows to
	// be settled is settled.
	Others    [][]byte
	Now       func() int64 // Unix ms by a clock that is never stepped: leases run by it
	Waker     Waker
	Deadlines *alarm.Clock // on Now
	Flusher   *Flusher
	// Skipped is told of records that could not be read and were passed over.
	Skipped func(from, to int64, err error)
	// Hold, for tests only and nil otherwise, is called at the named moments and
	// may block there: what a purge that runs meanwhile must survive.
	Hold func(point string)
}

// The moments at which a test can hold what runs. At each of them something of a life
// was read or decided and is not stored yet.
const (
	HoldRebuild       = "rebuild"        // the files of a partition were read, its object is not in the table
	HoldReserve       = "reserve"        // before leases are written into the table
	HoldRead          = "read"           // leases are in the table, their records are not read
	HoldAckFlush      = "ack_flush"      // before positions are collected
	HoldPositionWrite = "position_write" // positions were collected, and are not written
)

func (q *Queue) hold(point string) {
	if q.cfg.Hold != nil {
		q.cfg.Hold(point)
	}
}

// Queue is the consume side of one partition under one opening. Safe for
// concurrent use. Close or Drop ends it.
type Queue struct {
	cfg      Config
	deadline alarm.Alarm // the earliest of a lease or a delay

	armed atomic.Int32 // len(waiting), so that a commit need not lock
	moved atomic.Bool  // the flusher knows that the high watermark moved

	mu      sync.Mutex // guards below; leaf locks of waker, deadlines and flusher are taken under it
	table   *lease.Table
	epoch   topic.Epoch
	lim     lease.Limits // as of the last call that named them
	waiting map[string]struct{}
	closed  bool
	marked  bool   // the flusher knows that something changed
	seen    uint64 // version of the table that marked stands for
	random  *rand.ChaCha8

	// flushMu orders writes of positions and is held across them, so that an
	// older snapshot never replaces a newer one. Taken before mu.
	flushMu sync.Mutex
}

// Open restores a queue from the positions that were stored, or starts at the
// log start without them. A damaged snapshot starts there too and is reported
// beside the queue: what was settled comes again, nothing is lost.
func Open(cfg Config, seed [32]byte) (*Queue, error) {
	q := &Queue{
		cfg: cfg, epoch: cfg.Epoch, waiting: map[string]struct{}{}, random: rand.NewChaCha8(seed),
	}
	q.deadline = alarm.Of(q.expire)
	start := cfg.Source.LogStart()
	q.table = lease.New(start)
	q.cfg.Positions, q.cfg.Others = nil, nil // not needed any more
	var errs []error
	hwm := cfg.Source.HighWatermark()
	if len(cfg.Positions) > 0 {
		table, err := lease.Restore(cfg.Positions, cfg.Now(), start, hwm)
		if err == nil {
			q.table = table
		}
		errs = append(errs, err)
	}
	for _, other := range cfg.Others {
		errs = append(errs, q.table.Merge(other, cfg.Now(), start, hwm))
	}
	if len(cfg.Others) == 0 {
		q.seen = q.table.Version() // what is stored is what it shows
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.afterLocked() // delays that a nack asked for are still due
	if err := errors.Join(errs...); err != nil {
		return q, fmt.Errorf("restore positions of %s: %w", cfg.Ref, err)
	}
	return q, nil
}

// Ref names the partition.
func (q *Queue) Ref() topic.Ref { return q.cfg.Ref }

// Committed tells that the high watermark moved, of a partition with several copies or not.
func (q *Queue) Committed(replicated bool) {
	if !q.moved.Load() && !q.moved.Swap(true) {
		q.cfg.Flusher.moved(q, replicated)
	}
	if q.armed.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wakeLocked()
}

// Arm asks for a wake-up of gateway as soon as there is something to give, and
// says what there is now: when it is lease.More, nothing was armed.
func (q *Queue) Arm(gateway string, lim lease.Limits) (lease.Left, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return lease.Empty, ErrClosed
	}
	q.lim = lim
	q.waiting[gateway] = struct{}{}
	q.armed.Store(int32(len(q.waiting)))
	left := q.leftLocked() // after the store: a commit either sees it or is seen here
	if left == lease.More {
		delete(q.waiting, gateway)
		q.armed.Store(int32(len(q.waiting)))
	}
	return left, nil
}

// Left says what there is to give now.
func (q *Queue) Left(lim lease.Limits) (lease.Left, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return lease.Empty, ErrClosed
	}
	q.lim = lim
	return q.leftLocked(), nil
}

func (q *Queue) leftLocked() lease.Left {
	q.table.Expire(q.cfg.Now())
	return q.table.Left(q.cfg.Source.HighWatermark(), q.lim)
}

// wakeLocked tells everybody who armed, if there is something to give.
func (q *Queue) wakeLocked() {
	if len(q.waiting) == 0 || q.closed || q.table.Left(q.cfg.Source.HighWatermark(), q.lim) != lease.More {
		return
	}
	for gateway := range q.waiting {
		q.cfg.Waker.Ready(gateway, gatewayapi.Ready{Ref: q.cfg.Ref, Epoch: q.epoch})
	}
	clear(q.waiting)
	q.armed.Store(0)
}

// afterLocked does what follows every change of the table.
func (q *Queue) afterLocked() {
	if q.closed { // nothing is due, saved or told any more
		return
	}
	if at, ok := q.table.NextDeadline(); ok {
		q.cfg.Deadlines.At(&q.deadline, at)
	}
	if v := q.table.Version(); v != q.seen {
		q.seen = v
		if !q.marked {
			q.marked = true
			q.cfg.Flusher.changed(q)
		}
	}
	q.wakeLocked()
}

// expire is called when the earliest deadline has come.
func (q *Queue) expire() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.table.Expire(q.cfg.Now())
	q.afterLocked()
}

// Advance tells that retention moved the log start, and returns how many
// records were not settled yet.
func (q *Queue) Advance() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.advanceLocked()
}

func (q *Queue) advanceLocked() int64 {
	if q.closed {
		return 0
	}
	lost := q.table.Advance(q.cfg.Now(), q.cfg.Source.LogStart())
	q.afterLocked()
	return lost
}

// NewEpoch ends all leases: another leadership began.
func (q *Queue) NewEpoch(epoch topic.Epoch) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.epoch == epoch || q.closed {
		return nil
	}
	q.epoch = epoch
	data := q.table.AppendSnapshot(nil, MaxPositions)
	table, err := lease.Restore(data, q.cfg.Now(), q.cfg.Source.LogStart(), q.cfg.Source.HighWatermark())
	if err != nil {
		return fmt.Errorf("end leases of %s: %w", q.cfg.Ref, err)
	}
	q.table, q.seen = table, table.Version()
	if !q.marked {
		q.marked = true
		q.cfg.Flusher.changed(q)
	}
	q.afterLocked()
	return nil
}

// Stats is the consume side as numbers.
type Stats struct {
	Frontier, SettledAhead, InFlight, Dropped int64
	Unsettled                                 bool // the record at Frontier waits to be settled
}

// Stats reports the queue at this moment.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.table.Expire(q.cfg.Now())
	_, unsettled := q.table.OldestUnsettled(q.cfg.Source.HighWatermark())
	return Stats{
		Frontier: q.table.Frontier(), SettledAhead: q.table.SettledAhead(), InFlight: int64(q.table.InFlight()),
		Dropped: q.table.Dropped(), Unsettled: unsettled,
	}
}

// Touch has the positions written soon although the queue's own have not changed:
// what the source stores beside them has.
func (q *Queue) Touch() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.marked && !q.closed {
		q.marked = true
		q.cfg.Flusher.changed(q)
	}
}

// flush writes the positions if the queue is still open.
func (q *Queue) flush(sync bool) error {
	q.hold(HoldAckFlush)
	q.flushMu.Lock()
	defer q.flushMu.Unlock()
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	q.marked = false
	q.moved.Store(false)
	data := q.table.AppendSnapshot(nil, MaxPositions)
	q.mu.Unlock()
	q.hold(HoldPositionWrite) // Drop waits for this write, and whoever moves the files for Drop
	if err := q.cfg.Source.SavePositions(data, sync); err != nil {
		return fmt.Errorf("save positions of %s: %w", q.cfg.Ref, err)
	}
	return nil
}

// Close saves everything, durably, and ends the queue.
func (q *Queue) Close() error {
	err := q.flush(true)
	q.Drop()
	return err
}

// Drop ends the queue and writes nothing any more: its files belong to a life
// that is over, or to somebody else. When it returns no write is in flight.
func (q *Queue) Drop() {
	q.mu.Lock()
	q.closed = true
	clear(q.waiting)
	q.armed.Store(0)
	q.mu.Unlock()
	q.cfg.Deadlines.End(&q.deadline)
	q.cfg.Flusher.forget(q)
	q.flushMu.Lock() // wait for a write in flight
	defer q.flushMu.Unlock()
}

// Dropped counts records that retention removed before they were settled.
func (q *Queue) Dropped() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.table.Dropped()
}
