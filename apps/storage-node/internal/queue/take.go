package queue

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/libs/lease"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// reserveAtOnce bounds what is leased before the first of it was read: as many
// may have to be given back when they do not fit into the taker's bytes.
const reserveAtOnce = 64

// Want is what one taker may still get.
type Want struct {
	Records      int
	Bytes        int  // payload bytes
	First        bool // nothing was handed out yet: the first record always fits
	VisibilityMS int64
}

// Take leases records for one taker, appends them to out, and reduces want by
// what it gave. It says what the queue has left; lease.More also when the next
// record did not fit. On an error nothing beyond out stays leased.
func (q *Queue) Take(want *Want, lim lease.Limits, out []nodeapi.Delivery) ([]nodeapi.Delivery, lease.Left, error) {
	var got [reserveAtOnce]lease.Lease
	for want.Records > 0 && want.Bytes > 0 {
		leases, epoch, left, err := q.reserve(got[:0], min(want.Records, reserveAtOnce), want.VisibilityMS, lim)
		if err != nil {
			return out, lease.Empty, err
		}
		q.hold(HoldRead)
		before := len(out)
		var full bool
		out, full, err = q.read(leases, want, out)
		for i := before; i < len(out); i++ {
			out[i].Epoch = epoch
		}
		if err != nil {
			return out, lease.Empty, err
		}
		if full {
			return out, lease.More, nil
		}
		if left != lease.More {
			return out, left, nil
		}
	}
	return out, lease.More, nil
}

func (q *Queue) reserve(buf []lease.Lease, n int, visibility int64, lim lease.Limits) ([]lease.Lease, topic.Epoch, lease.Left, error) {
	q.hold(HoldReserve)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, 0, lease.Empty, ErrClosed
	}
	q.lim = lim
	buf, left := q.table.Reserve(q.cfg.Now(), q.cfg.Source.HighWatermark(), n, visibility, lim, q.drawLocked, buf)
	q.afterLocked()
	return buf, q.epoch, left, nil
}

// drawLocked fills a nonce from a ChaCha8 generator with a random seed: nobody
// who sees nonces can tell the next one.
func (q *Queue) drawLocked(n *lease.Nonce) { _, _ = q.random.Read(n[:]) }

// read turns leases into deliveries. full: a record did not fit; it and those
// after it were given back.
func (q *Queue) read(leases []lease.Lease, want *Want, out []nodeapi.Delivery) (_ []nodeapi.Delivery, full bool, err error) {
	var b *batches.Batch
	passed := int64(0) // nothing is to be delivered below it
	for i := range leases {
		l := &leases[i]
		if l.Offset < passed {
			continue
		}
		if b == nil || l.Offset < b.Base || l.Offset >= b.End() {
			if b, passed, err = q.load(l.Offset); err != nil {
				q.giveBack(leases[i:])
				return out, false, err
			}
			if l.Offset < passed {
				continue
			}
		}
		body := b.Body(l.Offset)
		view, err := record.ParseBody(body)
		if err != nil {
			q.skip(l.Offset, l.Offset+1, err)
			continue
		}
		if len(view.Payload) > want.Bytes && !want.First {
			q.giveBack(leases[i:])
			return out, true, nil
		}
		want.First = false
		want.Bytes -= len(view.Payload)
		want.Records--
		out = append(out, nodeapi.Delivery{
			Partition: q.cfg.Ref.Partition, Offset: l.Offset, Nonce: nodeapi.Nonce(l.Nonce), CommitMS: b.CommitMS,
			DeliveryCount: l.Count, LeaseMS: want.VisibilityMS, ID: b.MessageID(l.Offset), Body: body,
		})
	}
	return out, false, nil
}

// load gets the batch for off. Offsets from off to passed hold nothing to
// deliver and were settled: damage, a gap, a control batch.
func (q *Queue) load(off int64) (b *batches.Batch, passed int64, err error) {
	b, err = q.cfg.Source.Batch(off)
	var damage *Unreadable
	switch {
	case errors.As(err, &damage):
		q.skip(off, damage.Next, damage.Err)
		return nil, max(damage.Next, off+1), nil
	case err != nil:
		return nil, 0, fmt.Errorf("read offset %d of %s: %w", off, q.cfg.Ref, err)
	case b.Control && b.Base <= off:
		q.pass(off, b.End())
		return nil, b.End(), nil
	case b.Base > off:
		q.pass(off, b.Base)
		return nil, b.Base, nil
	}
	return b, 0, nil
}

// skip passes over records that cannot be read, and says so.
func (q *Queue) skip(from, to int64, err error) {
	to = max(to, from+1)
	q.pass(from, to)
	q.cfg.Skipped(from, to, err)
}

// pass settles offsets that hold nothing to deliver.
func (q *Queue) pass(from, to int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if start := q.cfg.Source.LogStart(); from < start {
		q.advanceLocked() // retention was faster: dropped, and counted as that
	}
	q.table.Skip(from, min(to, q.cfg.Source.HighWatermark()))
	q.afterLocked()
}

// giveBack undoes reservations that nobody was told of.
func (q *Queue) giveBack(leases []lease.Lease) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.cfg.Now()
	for i := range leases {
		q.table.Undo(now, leases[i].Offset, leases[i].Nonce)
	}
	q.afterLocked()
}

// GiveBack undoes deliveries whose answer nobody waits for any more.
func (q *Queue) GiveBack(ds []nodeapi.Delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.cfg.Now()
	for i := range ds {
		if ds[i].Epoch == q.epoch {
			q.table.Undo(now, ds[i].Offset, lease.Nonce(ds[i].Nonce))
		}
	}
	q.afterLocked()
}

// Settle settles leases of this partition: one status per op, in order.
func (q *Queue) Settle(ops []nodeapi.SettleOp, out []nodeapi.SettleStatus) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.cfg.Now()
	for i := range ops {
		out[i] = q.settleLocked(now, &ops[i])
	}
	q.afterLocked()
}

func (q *Queue) settleLocked(now int64, op *nodeapi.SettleOp) nodeapi.SettleStatus {
	if q.closed {
		return nodeapi.SettleUnavailable
	}
	if op.Epoch != q.epoch {
		return nodeapi.SettleLost // of another leadership: its leases have ended
	}
	st := lease.Lost
	switch n := lease.Nonce(op.Nonce); op.Kind {
	case nodeapi.SettleAck:
		st = q.table.Ack(now, op.Offset, n)
	case nodeapi.SettleExtend:
		st = q.table.Extend(now, op.Offset, n, op.ArgMS)
	case nodeapi.SettleNack:
		st = q.table.Nack(now, op.Offset, n, op.ArgMS)
	case nodeapi.SettleRelease:
		st = q.table.Release(now, op.Offset, n)
	}
	if st == lease.Lost {
		return nodeapi.SettleLost
	}
	return nodeapi.SettleOK
}
