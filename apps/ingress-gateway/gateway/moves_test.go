package gateway

import (
	"context"
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

func (f *fakeClusterLeader) ListMoves(context.Context) (*metaapi.MovesResult, error) {
	if f.err != nil {
		return nil, f.err
	}
	return &metaapi.MovesResult{Moves: []metaapi.MoveRow{{Phase: metaapi.MoveCopying}}, Running: 1, Limit: 8}, nil
}

func (f *fakeClusterLeader) StartMove(context.Context, *metaapi.StartMoveRequest) (*metaapi.MoveRow, error) {
	return &metaapi.MoveRow{}, f.err
}

func (f *fakeClusterLeader) AbortMove(context.Context, *metaapi.AbortMoveRequest) (*metaapi.MoveRow, error) {
	return &metaapi.MoveRow{}, f.err
}

// The list of moves is a cluster read: it answers without a leader too.
func TestMovesWithAndWithoutALeader(t *testing.T) {
	leader := &fakeClusterLeader{}
	c := &cluster{leader: leader, moves: func() ([]topic.Move, error) { return []topic.Move{{From: "s1"}, {From: "s2"}}, nil }}
	res, err := c.Moves(t.Context())
	if err != nil || len(res.Moves) != 1 || res.Moves[0].Phase != metaapi.MoveCopying {
		t.Fatalf("%+v, %v", res, err)
	}
	leader.err = context.DeadlineExceeded
	res, err = c.Moves(t.Context())
	if err != nil || len(res.Moves) != 2 || res.Moves[1].From != "s2" || res.Moves[1].LastError == "" {
		t.Fatalf("without a leader: %+v, %v", res, err)
	}
}
