package sim

import (
	"testing"

	"github.com/narad-mq/narad/libs/testkit/race"
)

// storms are where a mistake that needs several things to meet is looked for.
// The mistakes not named here are found in any weather.
func storms() map[Bug]Storm {
	elections := []string{"crash", "hurryElection", "deafen", "drop"}
	return map[Bug]Storm{
		NoEpochRule:              {3, 20, []string{"crash", "hurryElection"}, nil},
		ChangeJudgedByOldHWM:     {3, 40, []string{"drop"}, manyChanges},
		WipedFences:              {3, 25, []string{"wipe", "crash", "hurryElection"}, nil},
		WipedLeads:               {3, 15, []string{"wipe", "change", "crash"}, nil},
		OldDiskCounts:            {5, 20, []string{"drop"}, diskLostAhead},
		ReadmitBelowInheritedHWM: {3, 15, []string{"change", "crash"}, leaderLost},
		FenceLost:                {3, 50, []string{"drop"}, fencedAndCut},
		NumbersKept:              {3, 25, elections, nil},
	}
}

// manyChanges: two observers are close behind, a replica and they stop fetching,
// and the controller goes on changing.
func manyChanges(w *world, _ *node, f []*node) {
	late := []*node{f[1]}
	s := *w.meta.now()
	for _, n := range w.nodes[3:5] {
		s.observers = append(s.observers, n.name)
		late = append(late, n)
	}
	s.set.Version++
	w.meta.propose(s)
	w.weather.later(700, func() {
		for _, n := range late {
			n.idleUntil = 1000
		}
	})
	for step := 701; step < 1000; step += 2 {
		w.weather.later(step, func() {
			set := w.meta.now().set.Replicas
			w.askVouch()
			for _, r := range w.control.vouch.Near {
				w.changeTo(append(set[:len(set):len(set)], r))
			}
		})
	}
}

// diskLostAhead: three of five fetch nothing; the one that does is ahead of the
// HWM, loses its disk, and comes back at the HWM.
func diskLostAhead(w *world, l *node, f []*node) {
	for _, n := range f[1:] {
		n.idleUntil = 1000
	}
	f[1].idleUntil = 300
	w.weather.later(100, func() {
		l.persist()
		l.disk.log.retain(l.disk.hwm)
		f[0].crash()
		f[0].disk, f[0].downUntil, f[0].deafUntil = disk{id: w.id()}, 0, 0
	})
	for step := 110; step < 200; step += 5 {
		w.weather.later(step, w.readmit)
	}
	w.weather.later(151, func() { f[0].idleUntil = 500 })
}

// leaderLost: one follower lags, then the leader loses its disk.
func leaderLost(w *world, l *node, f []*node) {
	f[0].idleUntil = 400
	w.weather.later(100, func() { l.wipe() })
}

// fencedAndCut: the leader does not hear of the election, and the first to promise
// loses power afterwards.
func fencedAndCut(w *world, l *node, f []*node) {
	l.deafUntil = 400
	w.begin(f[1].self())
	f[0].onFence(&message{epoch: w.control.epoch})
	f[0].storeFence()
	shown := f[0].at
	f[0].crash()
	f[0].at, f[0].downUntil, f[0].deafUntil = shown, 10, 400
}

// bugSeeds bounds the search for each mistake: ten times what the rarest needs.
const bugSeeds = 2000

func TestEveryBugIsCaught(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: the race detector finds nothing here and costs ten times as long")
	}
	for _, b := range Bugs() {
		t.Run(b.String(), func(t *testing.T) {
			for seed := uint64(1); seed <= bugSeeds; seed++ {
				opt := Options{Steps: runSteps, Bug: b, Storm: storms()[b]}
				if _, f := Run(seed, opt); f != nil {
					t.Logf("seed %d, step %d: %s", seed, f.Step, f.What)
					return
				}
			}
			t.Errorf("not found in %d seeds", bugSeeds)
		})
	}
}

// The storms are hard for bugs only: without one, every invariant holds in them.
func TestStormsAloneBreakNothing(t *testing.T) {
	for b, storm := range storms() {
		for seed := uint64(1); seed <= 10; seed++ {
			if _, f := Run(seed, Options{Steps: runSteps, Storm: storm}); f != nil {
				t.Errorf("storm of %q: %v", b, Shrink(f))
			}
		}
	}
}
