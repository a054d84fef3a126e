package fakebroker

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// theMove is the one that StartMove begins, as the reference shows it.
func theMove(req *metaapi.StartMoveRequest) *metaapi.MoveRow {
	return &metaapi.MoveRow{
		Move: topic.Move{
			Ref:  topic.Ref{Topic: req.Topic, Incarnation: 0x3f9a17c4e2b08d51, Partition: req.Partition},
			From: req.From, To: req.To, StartedMS: CommitMS,
		},
		Phase: metaapi.MoveCopying, CopiedBytes: 1 << 20, TotalBytes: 70 << 20, BytesPerSecond: 50 << 20,
	}
}

// Moves implements api.Moves.
func (b *Broker) Moves(context.Context) (*metaapi.MovesResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	res := &metaapi.MovesResult{Limit: metaapi.MaxRunningMoves, Waiting: 3}
	if b.move != nil {
		res.Moves, res.Running = append(res.Moves, *b.move), 1
	}
	return res, b.fail["Moves"]
}

// StartMove implements api.Moves.
func (b *Broker) StartMove(_ context.Context, req *metaapi.StartMoveRequest) (*metaapi.MoveRow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["StartMove"]; err != nil {
		return nil, err
	}
	b.move = theMove(req)
	return b.move, nil
}

// AbortMove implements api.Moves: the one that runs waits for its source.
func (b *Broker) AbortMove(_ context.Context, req *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["AbortMove"]; err != nil {
		return nil, err
	}
	if req.StartedMS != 0 && req.StartedMS != b.move.StartedMS {
		return nil, problem.New(problem.MoveNotInFlight, "the move that was named has ended")
	}
	row := *b.move
	row.Phase, row.Blocked = metaapi.MoveJoined, metaapi.BlockedSourceDead
	return &row, nil
}
