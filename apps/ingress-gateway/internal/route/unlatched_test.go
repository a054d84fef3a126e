package route

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
)

// TestNothingIsConsumedBeforeTheLatch: a consume and a replay are refused at once, as
// not ready and not as if the topic were gone or its partitions were down.
func TestNothingIsConsumedBeforeTheLatch(t *testing.T) {
	run(t, 2, func(f *fixture) {
		f.meta.SetState(true, false)
		f.nodes[0].put(0, 1)
		for _, wait := range []time.Duration{0, 10 * time.Second} {
			if a := f.consume(wait); !problem.HasCode(a.err, problem.NotReady) || a.took != 0 {
				t.Errorf("consume with a wait of %s: %+v, %v after %s", wait, a.res, a.err, a.took)
			}
		}
		if _, err := f.r.Read(context.Background(), f.t, 0, nodeapi.ReadRequest{}); !problem.HasCode(err, problem.NotReady) {
			t.Errorf("replay: %v", err)
		}
		if claims, _, _ := f.nodes[0].count(); claims != 0 {
			t.Errorf("%d claims", claims)
		}
		f.meta.SetState(true, true)
		f.expect(f.consume(0), 1)
	})
}

// TestAWaiterOutlivesAViewWithoutAnswers: a view that says nothing is no view without
// the topic. Those who wait go on, by what was known before.
func TestAWaiterOutlivesAViewWithoutAnswers(t *testing.T) {
	run(t, 1, func(f *fixture) {
		w := f.start(f.request(30 * time.Second))
		synctest.Wait()
		f.meta.SetState(true, false)
		synctest.Wait()
		f.nodes[0].put(0, 1)
		a := <-w
		f.expect(a, 1)
		if a.took > time.Second {
			t.Errorf("after %s", a.took)
		}
	})
}
