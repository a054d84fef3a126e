package fakebroker

import (
	"fmt"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
)

// number is the last record of a producer.
type number struct {
	seq    uint64
	answer api.Committed
}

// CanCommit implements api.Committer.
func (b *Broker) CanCommit() error { return nil }

// Commit implements api.Committer. Unpinned messages go to partition 0, and "Commit 1"
// fails those for partition 1. Numbers are kept per producer, whatever the partition.
func (b *Broker) Commit(req *api.CommitRequest) ([]api.Committed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Timeout = req.Timeout
	if err := b.fail["Commit"]; err != nil {
		return nil, err
	}
	last, known := b.numbers[req.Producer]
	switch next := last.seq + 1; {
	case req.Producer == "":
	case known && req.Seq == last.seq:
		return []api.Committed{last.answer}, nil
	case !known && req.Seq != 0, known && req.Seq != next:
		if !known {
			next = 0
		}
		return []api.Committed{{Refusal: problem.New(problem.OutOfSequence, "x").With("expected", next)}}, nil
	}
	out := make([]api.Committed, len(req.Messages))
	for i := range req.Messages {
		m := &req.Messages[i]
		p := max(0, m.Pin)
		if err, ok := b.fail[fmt.Sprintf("Commit %d", p)].(*problem.Problem); ok {
			out[i].Refusal = err
			continue
		}
		b.serial++
		l := b.logLocked(req.Topic, p)
		out[i] = api.Committed{ID: fmt.Sprintf("9c0f3b7a11d2e4f5.6-%d", b.serial), Partition: p, Offset: int64(len(l.records))}
		l.records = append(l.records, nodeapi.ReadRecord{
			Offset: out[i].Offset, CommitMS: CommitMS, ID: out[i].ID, Body: record.AppendBody(nil, &m.Message),
		})
	}
	if req.Producer != "" {
		b.numbers[req.Producer] = number{req.Seq, out[0]}
	}
	return out, nil
}
