package api

import (
	"bytes"
	"context"
	"strconv"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Moves is the part of Cluster that is about moves of partitions. Refusals are
// those of metaapi.Moves.
type Moves interface {
	// Moves lists what is under way; without a leader as this gateway's replica has
	// it, with no progress. At most 3 s.
	Moves(ctx context.Context) (*metaapi.MovesResult, error)
	StartMove(ctx context.Context, req *metaapi.StartMoveRequest) (*metaapi.MoveRow, error)
	AbortMove(ctx context.Context, req *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error)
}

// The fields of a move that a caller sends: all of them.
const (
	moveTopic = iota
	movePartition
	moveFrom
	moveTo
)

func moveFields() []string { return []string{"topic", "partition", "from", "to"} }

// listMoves: GET /v1/cluster/moves.
func (c *call) listMoves() error {
	ctx, cancel := c.within(detailsBudget)
	defer cancel()
	res, err := c.api.deps.Cluster.Moves(ctx)
	if err != nil {
		return err
	}
	c.json(200)
	c.out = append(c.out, `{"moves":[`...)
	for i := range res.Moves {
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendMove(c.out, &res.Moves[i])
	}
	c.out = append(c.out, ']')
	c.out = appendNumber(c.out, "running", int64(res.Running))
	c.out = appendNumber(c.out, "limit", int64(res.Limit))
	c.out = append(appendNumber(c.out, "waiting", int64(res.Waiting)), '}')
	return nil
}

// startMove: POST /v1/cluster/moves.
func (c *call) startMove() error {
	r, err := c.jsonDocument(MaxJSONBytes)
	if err != nil {
		return err
	}
	var req metaapi.StartMoveRequest
	given := 0
	err = r.object("body", moveFields(), 0, func(i int) error {
		given |= 1 << i
		return readMove(r, i, &req)
	})
	if err != nil {
		return err
	}
	if err := r.end(); err != nil {
		return err
	}
	for i, name := range moveFields() {
		if given>>i&1 == 0 {
			return badParameter(name, "a move needs its %s", name)
		}
	}
	if err := topic.ValidateName(req.Topic); err != nil {
		return problem.New(problem.InvalidTopicName, "%s", err.Error())
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	row, err := c.api.deps.Cluster.StartMove(ctx, &req)
	if err != nil {
		return err
	}
	c.json(202)
	c.out = appendMove(c.out, row)
	return nil
}

func readMove(r *jsonReader, field int, req *metaapi.StartMoveRequest) error {
	if field == movePartition {
		n, err := r.integer("partition")
		if err == nil && (n < 0 || n >= topic.MaxPartitions) {
			err = badParameter("partition", "must be 0 to %d", topic.MaxPartitions-1)
		}
		req.Partition = int32(n)
		return err
	}
	b, err := r.str(moveFields()[field], nil)
	switch field {
	case moveTopic:
		req.Topic = string(b)
	case moveFrom:
		req.From = string(b)
	case moveTo:
		req.To = string(b)
	}
	return err
}

// abortMove: DELETE /v1/cluster/moves/{topic}/{partition}?started_at=..
func (c *call) abortMove() error {
	p, err := strconv.ParseUint(string(c.params[1]), 10, 31)
	if err != nil || p >= topic.MaxPartitions || len(c.params[1]) > 1 && bytes.HasPrefix(c.params[1], []byte("0")) {
		return badParameter("partition", "must be 0 to %d", topic.MaxPartitions-1)
	}
	req := metaapi.AbortMoveRequest{Topic: c.topic, Partition: int32(p)}
	if req.StartedMS, err = c.startedAt(); err != nil {
		return err
	}
	ctx, cancel := c.within(metadataBudget)
	defer cancel()
	row, err := c.api.deps.Cluster.AbortMove(ctx, &req)
	if err != nil {
		return err
	}
	c.json(202)
	c.out = appendMove(c.out, row)
	return nil
}

// startedAt names a move by its start, as its row shows it; 0: none is named.
func (c *call) startedAt() (ms int64, err error) {
	v, given, err := c.query.text("started_at", nil)
	if err != nil || !given {
		return 0, err
	}
	at, err := time.Parse(time.RFC3339, string(v))
	if err != nil || at.UnixMilli() <= 0 {
		return 0, badParameter("started_at", "started_at is that of the move's row, like 2026-11-29T20:04:05.123Z")
	}
	return at.UnixMilli(), nil
}

func appendMove(dst []byte, m *metaapi.MoveRow) []byte {
	dst = append(dst, `{"topic":`...)
	dst = appendString(dst, m.Topic)
	dst = append(dst, `,"incarnation":`...)
	dst = appendString(dst, m.Incarnation.String())
	dst = appendNumber(dst, "partition", int64(m.Partition))
	dst = append(dst, `,"from":`...)
	dst = appendString(dst, m.From)
	dst = append(dst, `,"to":`...)
	dst = appendString(dst, m.To)
	dst = append(dst, `,"phase":`...)
	dst = appendString(dst, string(m.Phase))
	dst = appendNumber(dst, "copied_bytes", m.CopiedBytes)
	dst = appendNumber(dst, "total_bytes", m.TotalBytes)
	dst = appendNumber(dst, "bytes_per_second", m.BytesPerSecond)
	dst = append(dst, `,"started_at":`...)
	dst = appendTime(dst, m.StartedMS)
	dst = append(dst, `,"blocked":`...)
	dst = appendOptional(dst, string(m.Blocked))
	dst = append(dst, `,"last_error":`...)
	return append(appendOptional(dst, m.LastError), '}')
}
