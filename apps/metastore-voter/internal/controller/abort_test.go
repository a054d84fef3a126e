package controller

import (
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
)

// An abort that is repeated, because its answer was lost, takes back no later move of that
// partition: the one that it names has ended.
func TestARepeatedAbortTakesNoLaterMoveBack(t *testing.T) {
	r := movers(t, 1, "s1", "s2")
	from := r.parts(t)[0].Leader
	to := map[string]string{"s1": "s2", "s2": "s1"}[from]
	begin := func() *metaapi.MoveRow {
		t.Helper()
		r.wall.Add(1)
		row, err := r.StartMove(t.Context(), &metaapi.StartMoveRequest{Topic: "orders", From: from, To: to})
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	r.nodes.hush(to, true) // what goes there does not arrive
	first := begin()
	abort := &metaapi.AbortMoveRequest{Topic: "orders", StartedMS: first.StartedMS}
	if row, err := r.AbortMove(t.Context(), abort); err != nil || !row.Aborted {
		t.Fatalf("%+v, %v", row, err)
	}
	testkit.Poll(t, patience, "it is taken back", func() bool { return len(r.moving(t).Moves) == 0 })
	if _, err := r.AbortMove(t.Context(), abort); !problem.HasCode(err, problem.MoveNotInFlight) {
		t.Errorf("of a move that has ended: %v", err)
	}
	if next := begin(); next.StartedMS == first.StartedMS {
		t.Fatalf("two moves began at %d", next.StartedMS)
	}
	if _, err := r.AbortMove(t.Context(), abort); !problem.HasCode(err, problem.MoveNotInFlight) {
		t.Errorf("while the next one runs: %v", err)
	}
	r.nodes.hush(to, false)
	testkit.Poll(t, patience, "the next one arrives", func() bool {
		return len(r.moving(t).Moves) == 0 && r.parts(t)[0].Leader == to
	})
}
