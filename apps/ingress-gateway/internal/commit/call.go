package commit

import (
	"context"
	"errors"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/route"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/release"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// ordersByKind is the release from which on storage nodes know which streams have an
// order: an older one would take a batch that was overtaken for a duplicate.
const ordersByKind = "0.2.0"

var errTooOld = errors.New("the leader's release is too old")

// leader is whom to send to. Errors mean that nobody is there now.
func (c *Committer) leader(ref topic.Ref) (nodeapi.Target, string, error) {
	t := topic.Topic{Name: ref.Topic, Incarnation: ref.Incarnation}
	target, id, err := route.Leader(c.deps.View, &t, ref.Partition)
	if err != nil {
		return target, "", err
	}
	if m := c.deps.View.Members().ByID[id]; m == nil || !release.Has(m.Release, ordersByKind) {
		return target, "", errTooOld
	}
	return target, id, nil
}

// call sends units of one stream as one batch, and tells each how it ended.
func (c *Committer) call(ref topic.Ref, units []*unit) {
	v := c.send(ref, units)
	at := v
	for _, u := range units {
		u.verdict = at
		at.base += int64(len(u.bodies))
		at.first.Seq += uint64(len(u.bodies))
		close(u.done)
	}
}

func (c *Committer) send(ref topic.Ref, units []*unit) verdict {
	target, id, err := c.leader(ref)
	var node nodeapi.Node
	if err == nil {
		node = c.deps.Node(id)
	}
	if node == nil {
		return verdict{refusal: unavailable(ref)}
	}
	builder := c.builds.Get().(*record.Builder)
	defer c.builds.Put(builder)
	v, batch, err := c.build(builder, units)
	if err != nil {
		return verdict{outcome: final, refusal: problem.New(problem.InvalidRequest, "a message is beyond the limits")}
	}
	until := units[0].deadline
	for _, u := range units {
		if u.deadline.After(until) {
			until = u.deadline
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	count := builder.Count()
	res, err := node.Commit(ctx, &nodeapi.CommitRequest{Target: target, Batch: batch})
	c.metrics.batch.Observe(float64(count))
	if err == nil && (res.BaseOffset < 0 || res.Appended+res.Duplicates != count) {
		err = errOddAnswer
	}
	if err != nil {
		v.outcome, v.refusal = judge(ref, err)
		return v
	}
	v.outcome, v.base = committed, res.BaseOffset
	return v
}

var errOddAnswer = errors.New("the answer does not fit the batch")

// build encodes the batch of a call and says under which numbers.
func (c *Committer) build(b *record.Builder, units []*unit) (v verdict, batch []byte, err error) {
	if u := units[0]; u.numbered {
		v.stream, v.first = u.stream, record.Number{Seq: u.seq}
	} else {
		n := uint64(0)
		for _, u := range units {
			n += uint64(len(u.bodies))
		}
		v.stream, v.first = own(c.deps.ID), record.Number{Seq: c.next.Add(n) - n + 1}
	}
	b.Reset(v.stream, 0, record.Oldest{})
	seq := v.first.Seq
	for _, u := range units {
		for _, body := range u.bodies {
			if err := b.Add(seq, body); err != nil {
				return v, nil, err
			}
			seq++
		}
	}
	return v, b.Finish(record.CodecZstd), nil
}

// judge is the one place that tells what an error of a commit means: what does not
// surely say that nothing was stored is unknown.
func judge(ref topic.Ref, err error) (outcome, *problem.Problem) {
	var told *problem.Problem
	var transport *rpc.TransportError
	switch {
	case errors.As(err, &told) && told.Applied == problem.AppliedNo:
		switch told.Code {
		case problem.OutOfSequence:
			return final, problem.New(problem.OutOfSequence, "this is not the next number of the producer").With("expected", told.Members["expected"])
		case problem.DiskFull:
			return refused, problem.New(problem.DiskFull, "the disk under the leader of partition %d is full", ref.Partition).With("partition", ref.Partition)
		case problem.Overloaded:
			return refused, problem.New(problem.Overloaded, "the leader of partition %d is overloaded", ref.Partition).With("partition", ref.Partition)
		}
		return refused, unavailable(ref)
	case errors.As(err, &transport) && !transport.Sent:
		return refused, unavailable(ref)
	}
	return unknown, problem.New(problem.OutcomeUnknown, "the leader of partition %d did not say whether it has committed this", ref.Partition).
		With("partition", ref.Partition)
}

func unavailable(ref topic.Ref) *problem.Problem {
	return problem.New(problem.PartitionUnavailable, "partition %d of %q has no leader that takes it now", ref.Partition, ref.Topic).
		With("partition", ref.Partition)
}

func asProblem(err error) *problem.Problem {
	var p *problem.Problem
	if errors.As(err, &p) {
		return p
	}
	return problem.New(problem.Internal, "internal error")
}
