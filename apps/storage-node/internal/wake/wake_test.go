package wake_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/wake"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/topic"
)

type fake struct {
	mu     sync.Mutex
	fail   bool
	delay  time.Duration
	calls  int
	flying int
	most   int
	ready  map[topic.Ref]int
}

func (f *fake) Wake(ctx context.Context, req *gatewayapi.WakeRequest) error {
	f.mu.Lock()
	f.calls++
	f.flying++
	f.most = max(f.most, f.flying)
	delay, fail := f.delay, f.fail
	f.mu.Unlock()
	var err error
	if delay > 0 {
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flying--
	if fail {
		return errors.New("no answer")
	}
	if err == nil {
		for _, r := range req.Ready {
			f.ready[r.Ref]++
		}
	}
	return err
}

func ready(part int32) gatewayapi.Ready {
	return gatewayapi.Ready{Ref: topic.Ref{Topic: "t", Incarnation: 1, Partition: part}, Epoch: 1}
}

func TestCoalescesOneCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{delay: time.Second, ready: map[topic.Ref]int{}}
		w := wake.New("storage-1", func(string) (gatewayapi.Gateway, error) { return f, nil }, func(string) bool { return true })
		defer w.Close()
		w.Ready("g", ready(0))
		synctest.Wait()
		for range 10 {
			for part := range int32(5) {
				w.Ready("g", ready(part))
			}
		}
		<-time.After(5 * time.Second)
		synctest.Wait()
		if f.calls != 2 || f.most != 1 || f.ready[ready(0).Ref] != 2 || f.ready[ready(4).Ref] != 1 {
			t.Fatalf("%+v", f)
		}
	})
}

func TestRetriesWhileTheMemberLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{fail: true, ready: map[topic.Ref]int{}}
		alive := true
		w := wake.New("storage-1", func(string) (gatewayapi.Gateway, error) { return f, nil }, func(string) bool { return alive })
		defer w.Close()
		w.Ready("g", ready(0))
		<-time.After(time.Minute)
		synctest.Wait()
		if f.calls < 30 || f.calls > 120 {
			t.Fatalf("%d calls in a minute", f.calls)
		}
		f.mu.Lock()
		f.fail = false
		f.mu.Unlock()
		<-time.After(2 * time.Second)
		synctest.Wait()
		if f.ready[ready(0).Ref] != 1 {
			t.Fatalf("%+v", f)
		}
	})
}

func TestIdleCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{ready: map[topic.Ref]int{}}
		before := runtime.NumGoroutine()
		w := wake.New("storage-1", func(string) (gatewayapi.Gateway, error) { return f, nil }, func(string) bool { return true })
		w.Ready("g", ready(0))
		synctest.Wait()
		if n := runtime.NumGoroutine(); n != before {
			t.Fatalf("%d goroutines, %d before", n, before)
		}
		w.Close()
		w.Ready("g", ready(1))
		synctest.Wait()
		if f.calls != 1 {
			t.Fatalf("%d calls, one of them after Close", f.calls)
		}
	})
}
