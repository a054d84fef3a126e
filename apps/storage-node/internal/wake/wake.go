// Package wake tells gateways that partitions which they armed have something
// to give.
//
// Invariant: per gateway at most one call is in flight; what becomes ready
// meanwhile goes with the next one, once per partition. A wake-up is repeated
// while it fails and the member lives, because the gateway has no other reason
// to ask again; that of a member that is gone or dead is dropped. A gateway
// without news costs neither goroutine nor timer (TestIdleCostsNothing).
//
// A wake-up carries no right to anything: the gateway claims as always.
package wake

import (
	"context"
	"sync"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// callTimeout bounds one call: a gateway answers at once or is in trouble.
	callTimeout = 2 * time.Second
	// firstPause and lastPause are the waits between failed calls.
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
	// maxReady bounds what waits for one gateway; a node leads fewer partitions
	// than this, and what does not fit is dropped: the gateway's next claim of
	// that partition arms it anew.
	maxReady = 1 << 16
)

// Waker sends wake-ups. Safe for concurrent use. Close ends it.
type Waker struct {
	self     string
	gateways func(id string) (gatewayapi.Gateway, error)
	alive    func(id string) bool
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup

	mu      sync.Mutex // guards below
	closed  bool
	targets map[string]*target
}

// target is a gateway that something waits for; it exists while its sender runs.
type target struct {
	ready map[topic.Ref]topic.Epoch
}

// New returns a Waker of node self. gateways gives the client of a gateway;
// alive tells whether the member should still be told.
func New(self string, gateways func(string) (gatewayapi.Gateway, error), alive func(string) bool) *Waker {
	ctx, cancel := context.WithCancel(context.Background())
	return &Waker{self: self, gateways: gateways, alive: alive, ctx: ctx, cancel: cancel, targets: map[string]*target{}}
}

// Ready tells gateway that the partition has something to give. It never waits.
func (w *Waker) Ready(gateway string, r gatewayapi.Ready) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	t := w.targets[gateway]
	if t == nil {
		t = &target{ready: map[topic.Ref]topic.Epoch{}}
		w.targets[gateway] = t
		w.wg.Add(1)
		go w.send(gateway, t)
	}
	if len(t.ready) < maxReady {
		t.ready[r.Ref] = max(r.Epoch, t.ready[r.Ref])
	}
}

// Close drops what was not told and waits for calls in flight to end.
func (w *Waker) Close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.cancel()
	w.wg.Wait()
}

// send tells one gateway everything that becomes ready until nothing is left.
func (w *Waker) send(gateway string, t *target) {
	defer w.wg.Done()
	pause := firstPause
	for {
		req := w.take(gateway, t)
		if req == nil {
			return
		}
		if w.call(gateway, req) == nil {
			pause = firstPause
			continue
		}
		if !w.alive(gateway) || !w.wait(pause) {
			w.drop(gateway)
			return
		}
		pause = min(2*pause, lastPause)
		w.putBack(t, req)
	}
}

// take returns what waits for the gateway, or ends its sender.
func (w *Waker) take(gateway string, t *target) *gatewayapi.WakeRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(t.ready) == 0 || w.closed {
		delete(w.targets, gateway)
		return nil
	}
	req := &gatewayapi.WakeRequest{From: w.self, Ready: make([]gatewayapi.Ready, 0, len(t.ready))}
	for ref, epoch := range t.ready {
		req.Ready = append(req.Ready, gatewayapi.Ready{Ref: ref, Epoch: epoch})
	}
	clear(t.ready)
	return req
}

func (w *Waker) putBack(t *target, req *gatewayapi.WakeRequest) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range req.Ready {
		if len(t.ready) < maxReady {
			t.ready[r.Ref] = max(r.Epoch, t.ready[r.Ref])
		}
	}
}

func (w *Waker) drop(gateway string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.targets, gateway)
}

func (w *Waker) call(gateway string, req *gatewayapi.WakeRequest) error {
	gw, err := w.gateways(gateway)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.ctx, callTimeout)
	defer cancel()
	return gw.Wake(ctx, req)
}

// wait pauses; false when the Waker was closed meanwhile.
func (w *Waker) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}
