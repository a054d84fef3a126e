package election

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// tardy is a cluster in which s3 answers a fence after the others.
type tardy struct{ *cluster }

func (c *tardy) Fence(ctx context.Context, node string, items []Fence) ([]Promise, error) {
	if node == "s3" {
		if !wait(ctx, 50*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
	return c.cluster.Fence(ctx, node, items)
}

// A damaged leader of a pair promises, and the other one leads if it is known to have
// everything; else nobody does, and it says why.
func TestDamagedCopyPromises(t *testing.T) {
	for name, c := range map[string]struct {
		damaged, other Promise
		want           string
	}{
		"equal":                 {Promise{LastEpoch: 1, LEO: 10}, Promise{LastEpoch: 1, LEO: 10}, "s2@2"},
		"it counted less":       {Promise{LastEpoch: 1, LEO: 10, Settled: 1, HWM: 8}, Promise{LastEpoch: 1, LEO: 8}, "s2@2"},
		"it may have committed": {Promise{LastEpoch: 1, LEO: 10, HWM: 8}, Promise{LastEpoch: 1, LEO: 8}, "@2"},
	} {
		cl := newCluster(t)
		cl.topic("a", 1, "s1")
		a := &cl.topics["a"][0]
		a.Replicas = a.Replicas[:2]
		cl.publishLocked("a")
		c.damaged.OK, c.damaged.Damaged, c.other.OK = true, true, true
		cl.has[key("s1", a.Ref)], cl.has[key("s2", a.Ref)] = c.damaged, c.other
		r := cl.runner(Timing{})
		r.turn.Lock()
		r.elect(t.Context(), []*contest{{a: *a, wanted: "s1"}}, "suspected")
		r.turn.Unlock()
		if got := cl.leader("a", 0); got != c.want {
			t.Errorf("%s: led by %s, want %s", name, got, c.want)
		}
		if told := r.told[a.Ref] == 2; told != (c.want == "@2") {
			t.Errorf("%s: told %v", name, r.told)
		}
		if got := testutil.ToFloat64(r.metrics.elections.WithLabelValues("suspected", "damaged")); (got == 1) != (c.want == "@2") {
			t.Errorf("%s: counted %v", name, got)
		}
	}
}

// A majority that may not choose is not enough to stop waiting for the others: the
// slow one decides.
func TestTheThirdIsWaitedForBesideDamage(t *testing.T) {
	cl := newCluster(t)
	cl.topic("a", 1, "s1")
	a := &cl.topics["a"][0]
	cl.has[key("s1", a.Ref)] = Promise{OK: true, LastEpoch: 1, LEO: 10, Damaged: true}
	cl.has[key("s2", a.Ref)] = Promise{OK: true, LastEpoch: 1, LEO: 8}
	cl.has[key("s3", a.Ref)] = Promise{OK: true, LastEpoch: 1, LEO: 9}
	r := cl.runner(Timing{Grace: time.Nanosecond, Call: time.Minute})
	r.cfg.Nodes = &tardy{cl}
	r.turn.Lock()
	r.elect(t.Context(), []*contest{{a: *a, wanted: "s1"}}, "suspected")
	r.turn.Unlock()
	cl.want("a", 0, "s3@2")
}

// Only the copy that is meant promises, and only the epoch that was asked for; of a
// damaged one everything is kept that others are judged by.
func TestPromiseOf(t *testing.T) {
	asked := &Fence{Epoch: 7, Replica: topic.Replica{Node: "s1", CopyID: 3}}
	whole := nodeapi.FenceAnswer{
		Status: nodeapi.FencePromised, PromisedEpoch: 7, LastEpoch: 6, LEO: 50, HWM: 40, Settled: 5, CopyID: 3, PositionGeneration: 2, Position: []byte("p"),
	}
	want := Promise{OK: true, LastEpoch: 6, LEO: 50, HWM: 40, Settled: 5, Generation: 2, Positions: []byte("p")}
	if got := promiseOf(asked, &whole); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	damaged := whole
	damaged.Status = nodeapi.FenceDamaged
	want.Damaged = true
	if got := promiseOf(asked, &damaged); !reflect.DeepEqual(got, want) {
		t.Errorf("damaged: %+v", got)
	}
	for name, spoil := range map[string]func(a *nodeapi.FenceAnswer){
		"another copy":  func(a *nodeapi.FenceAnswer) { a.CopyID = 4 },
		"another epoch": func(a *nodeapi.FenceAnswer) { a.PromisedEpoch = 8 },
		"stale":         func(a *nodeapi.FenceAnswer) { a.Status = nodeapi.FenceStale },
		"not here":      func(a *nodeapi.FenceAnswer) { a.Status = nodeapi.FenceNotHere },
		"lost":          func(a *nodeapi.FenceAnswer) { a.Status = nodeapi.FenceLost },
		"unavailable":   func(a *nodeapi.FenceAnswer) { a.Status = nodeapi.FenceUnavailable },
	} {
		a := whole
		if spoil(&a); promiseOf(asked, &a).OK {
			t.Errorf("%s promises", name)
		}
	}
}
