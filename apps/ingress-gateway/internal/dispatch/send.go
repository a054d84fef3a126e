package dispatch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/wal"
)

func newBuilder() any { return &record.Builder{} }

// send carries out one batch and reports what became of it. The call ends with own
// at the latest, and its outcome is unknown then.
func (d *Dispatcher) send(ctx, own context.Context, b dispatchq.Batch, oldest record.Oldest) {
	started := time.Now()
	builder := d.batches.Get().(*record.Builder)
	defer d.batches.Put(builder)
	bad, err := d.build(builder, b, oldest)
	if bad != nil {
		d.deps.Log.Error("a record of the write-ahead log cannot be read any more and is lost",
			"topic", b.Key.Topic, "partition", b.Key.Partition, "wal", bad.WAL.String(), "number", bad.Seq, "error", err)
		d.metrics.lost.Inc()
		d.report(ctx, func(now time.Duration) {
			d.answered(b.ID)
			d.done(d.machine.Drop(now, b.ID, bad.Pos), b.Key)
		})
		return
	}
	out := dispatchq.Refused
	if err == nil {
		out = d.commit(own, builder, b)
	} else {
		d.deps.Log.Warn("reading a batch again failed; it is tried again", "topic", b.Key.Topic, "error", err)
	}
	if ctx.Err() != nil {
		return
	}
	if out == dispatchq.Committed {
		d.metrics.batch.Observe(float64(len(b.Items)))
		d.metrics.seconds.Observe(time.Since(started).Seconds())
	}
	d.report(ctx, func(now time.Duration) {
		d.answered(b.ID)
		d.done(d.machine.Answer(now, b.ID, out), b.Key)
	})
}

// build encodes the batch. bad is a record that is damaged for good; an error
// without it is a shortage, and the same may be tried again.
func (d *Dispatcher) build(builder *record.Builder, b dispatchq.Batch, oldest record.Oldest) (bad *dispatchq.Item, err error) {
	kind := record.StreamWAL
	if b.Key.Pinned {
		kind = record.StreamWALPinned
	}
	builder.Reset(record.Stream{Kind: kind, ID: b.Items[0].WAL, A: uint32(b.Key.Partition)}, 0, oldest)
	bodies := d.chunks.bodies(b.Items)
	var buf []byte
	for i := range b.Items {
		it := &b.Items[i]
		body := bodies[i]
		if body == nil {
			rec, err := d.reread(b.Key, it, buf)
			if errors.Is(err, seglog.ErrDamaged) {
				return it, err
			}
			if err != nil {
				return nil, err
			}
			body, buf = rec.Body, rec.Body[:0]
		}
		err := builder.Add(it.Seq, body)
		if errors.Is(err, record.ErrBody) {
			return it, err
		}
		if err != nil {
			return nil, fmt.Errorf("build batch of %s/%d: %w", b.Key.Topic, b.Key.Partition, err)
		}
	}
	return nil, nil
}

func (d *Dispatcher) reread(key dispatchq.Key, it *dispatchq.Item, buf []byte) (wal.Record, error) {
	if it.Parked {
		return d.parked.readAt(key, wal.Position(it.Pos), buf)
	}
	return d.deps.WAL.ReadAt(wal.Position(it.Pos), buf)
}

// commit sends the batch and judges the answer.
func (d *Dispatcher) commit(ctx context.Context, builder *record.Builder, b dispatchq.Batch) dispatchq.Outcome {
	node := d.deps.Node(b.Target.Leader)
	if node == nil {
		return dispatchq.Refused
	}
	ctx, cancel := context.WithTimeout(ctx, d.budget)
	defer cancel()
	_, err := node.Commit(ctx, &nodeapi.CommitRequest{Target: target(b.Key, b.Target), Batch: builder.Finish(record.CodecZstd)})
	return outcome(err)
}

// target names the partition. The records of a rerouted queue go to another
// partition than they were accepted for.
func target(key dispatchq.Key, to dispatchq.Target) nodeapi.Target {
	return nodeapi.Target{
		Ref:    topic.Ref{Topic: key.Topic, Incarnation: key.Incarnation, Partition: to.Partition},
		DiskID: to.DiskID, Epoch: to.Epoch,
	}
}

// outcome is the one place that tells what an error of Commit means: anything
// that does not surely say "nothing was done" is unknown.
func outcome(err error) dispatchq.Outcome {
	var refused *problem.Problem
	var transport *rpc.TransportError
	switch {
	case err == nil:
		return dispatchq.Committed
	case errors.As(err, &refused):
		switch {
		case refused.Code == problem.IncarnationMismatch:
			return dispatchq.Mismatch
		case refused.Applied == problem.AppliedNo:
			return dispatchq.Refused
		}
	case errors.As(err, &transport) && !transport.Sent:
		return dispatchq.Refused
	}
	return dispatchq.Unknown
}

// done marks records as committed, or given up.
func (d *Dispatcher) done(items []dispatchq.Item, key dispatchq.Key) {
	if len(items) == 0 {
		return
	}
	bytes := 0
	positions := make([]wal.Position, 0, len(items))
	for i := range items {
		bytes += int(items[i].Size)
		d.marks.done(&items[i])
		if !items[i].Parked {
			positions = append(positions, wal.Position(items[i].Pos))
		}
	}
	d.chunks.done(items)
	d.deps.Space.Dispatched(key.Incarnation, bytes)
	d.deps.WAL.Done(positions...)
	if n := len(items) - len(positions); n > 0 { // a batch is parked as a whole or not at all
		last, q := wal.Position(items[len(items)-1].Pos), queueOf(key)
		log := d.parked.get(q)
		d.parked.count(log, -int64(n), -int64(bytes))
		d.start(func() { d.parked.drained(q, log, last) })
	}
}

// probe asks the leader of a partition whether it serves, without any record.
func (d *Dispatcher) probe(ctx context.Context, p dispatchq.Probe) {
	serves := false
	if node := d.deps.Node(p.Target.Leader); node != nil {
		call, cancel := context.WithTimeout(ctx, ProbeBudget)
		res, err := node.Details(call, &nodeapi.DetailsRequest{
			Topic: p.Key.Topic, Incarnation: p.Key.Incarnation, Partitions: []int32{p.Target.Partition},
		})
		cancel()
		if err == nil {
			for i := range res.Partitions {
				row := &res.Partitions[i]
				serves = serves || row.Partition == p.Target.Partition && row.Problem == nil && row.Epoch == p.Target.Epoch
			}
		}
	}
	d.report(ctx, func(now time.Duration) { d.machine.Probed(now, p.Key, serves) })
}
