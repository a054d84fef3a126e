package storage_test

import (
	"context"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/vfs"
)

// Where cursors stand goes to the other copies and is there after an election, an
// ordered move and a move whose source is dead: nobody sends the children again what
// they have, and none of it depends on them.
func TestCursorsOutliveElectionsAndMoves(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFeud(t, 1)
		f.lossy = 0
		ref := f.ref(parentName, 0)
		for range 20 {
			f.produce(10)
		}
		f.settle()
		pass(3 * time.Second) // positions are stored and fetched
		for round := range 6 {
			a := f.assignment(ref)
			switch {
			case round%3 == 2:
				f.moves[ref] = f.beginMove(ref)
			case round%3 == 1:
				n := f.nodes[a.Leader]
				f.collect(n)
				f.end(n, (*vfs.Mem).Copy)
				f.start(n)
			default:
				for _, r := range a.Replicas {
					if r.Node != a.Leader && f.handOver(ref, r.Node) == nil {
						break
					}
				}
			}
			f.settle()
			pass(3 * time.Second)
			f.standing(200)
		}
		for _, id := range kinNodes {
			f.collect(f.nodes[id])
			f.end(f.nodes[id], nil)
		}
		if f.did.Repeats > 0 {
			t.Errorf("%d records were sent to children again", f.did.Repeats)
		}
	})
}

// standing checks that every cursor of the parent is at its end.
func (f *feud) standing(records int64) {
	f.t.Helper()
	ref := f.ref(parentName, 0)
	_, n := f.target(ref)
	res, err := n.role.Fanout().Cursors(context.Background(), &nodeapi.CursorsRequest{Topic: ref.Topic, Incarnation: ref.Incarnation, Partitions: []int32{0}})
	if err != nil || len(res.Partitions) != 1 || len(res.Partitions[0].Cursors) != len(f.children) {
		f.t.Fatalf("%+v, %v", res, err)
	}
	p := res.Partitions[0]
	for _, c := range p.Cursors {
		if c.NextOffset != p.HighWatermark || p.HighWatermark < records || c.Dropped != 0 {
			f.t.Fatalf("of %d: %+v", p.HighWatermark, c)
		}
	}
}
