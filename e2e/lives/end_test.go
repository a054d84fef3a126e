package lives

import (
	"context"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
)

// finish ends all trouble and judges what is left.
func (w *world) finish() {
	w.leader.silence(false)
	for _, m := range w.machines {
		if m.proc == nil {
			w.startMachine(m)
		}
		m.proc.disk.arm(0, nil)
		m.proc.letGo()
	}
	for _, r := range w.replicas() {
		r.hold(false)
		r.catchUp(1000)
	}
	synctest.Wait()
	w.goOnBehindHeld()
	w.awaitPending(func(accepted) bool { return true })
	for _, g := range w.gateways {
		for _, a := range g.pending() {
			w.violate("%s: record %s of %s is accepted and goes nowhere; it lives: %t", g.id, a.rec, a.key.Topic, w.leader.live(a.key.Incarnation))
		}
	}
	for _, m := range w.machines {
		w.audit(m.proc, true)
	}
	for _, r := range w.records {
		if !r.lost && w.leader.live(r.life) && !w.present[r.String()] {
			w.violate("record %s was accepted and is lost", r)
		}
	}
	before, _ := metastate.Endings(w.leader.state, 0, 10000)
	var err error
	for range 3 { // what a purge under way holds is asked for again
		if err = w.onePass(context.Background(), true); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	if err != nil {
		w.violate("the last sweep: %v", err)
	}
	after, _ := metastate.Endings(w.leader.state, 0, 10000)
	w.sum.forgotten += len(before) - len(after)
	synctest.Wait()
	for _, m := range w.machines {
		for _, left := range m.leftovers() {
			w.violate("left after the last sweep: %s", left)
		}
	}
}

// awaitPending waits, not for ever, until no gateway has a record for which is says true.
func (w *world) awaitPending(is func(accepted) bool) {
	for range 20 {
		for _, r := range w.replicas() { // a sweep may still change the metastore
			r.catchUp(1000)
		}
		time.Sleep(30 * time.Second)
		left := false
		for _, g := range w.gateways {
			for _, a := range g.pending() {
				left = left || is(a)
			}
		}
		if !left {
			return
		}
	}
}

func (w *world) shutDown() {
	for _, cancel := range w.passes {
		cancel()
	}
	for _, g := range w.gateways {
		g.kill()
	}
	for _, m := range w.machines {
		switch {
		case m.proc == nil:
		case m.proc.dead.Load():
			m.bury()
		default:
			m.stop()
		}
	}
	_ = w.voter.Close()
	w.work.Wait()
	time.Sleep(10 * time.Second) // whoever is on his way to somebody who has ended arrives
}
