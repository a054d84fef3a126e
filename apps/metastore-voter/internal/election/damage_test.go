package election

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
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
