package sim

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// action is what a step may do; false: there was nothing to do.
type action func(w *world) bool

// weather is how a run is: how many replicas, how often what happens. Some
// faults are absent from some runs, so that others reach deep.
type weather struct {
	replicas int
	faultIn  int            // one step of so many is a fault
	calm     int            // turns without faults at the beginning
	due      map[int]func() // by step
	begin    func(w *world, leader *node, followers []*node)
	usual    table
	faults   table
}

// Storm narrows the weather of a run down, to look for one thing.
type Storm struct {
	Replicas int      // 0: any
	FaultIn  int      // 0: any
	Faults   []string // none: any
	// Begin is how a run begins, once the partition is served: it sets the scene
	// in which the thing can happen.
	Begin func(w *world, leader *node, followers []*node)
}

// later has something happen at a step.
func (v *weather) later(step int, do func()) {
	if v.due == nil {
		v.due = map[int]func(){}
	}
	v.due[step] = do
}

func newWeather(rng *rand.Rand, storm Storm) weather {
	v := weather{
		replicas: [...]int{3, 3, 3, 3, 3, 3, 5, 5, 4, 2, 1}[rng.IntN(11)],
		faultIn:  [...]int{12, 25, 50, 100, 200}[rng.IntN(5)],
		calm:     [...]int{0, 10, 20, 40}[rng.IntN(4)],
	}
	for _, a := range usual() {
		v.usual.add(a.do, a.weight*[...]int{1, 2, 4, 8}[rng.IntN(4)])
	}
	for _, a := range faults() {
		often := [...]int{0, 1, 1, 8}[rng.IntN(4)]
		if storm.Faults != nil {
			often = [...]int{1, 2, 4, 8}[rng.IntN(4)]
		}
		if storm.Faults == nil || slices.Contains(storm.Faults, a.name) {
			v.faults.add(a.do, a.weight*often)
		}
	}
	v.replicas = cmp.Or(storm.Replicas, v.replicas)
	v.faultIn = cmp.Or(storm.FaultIn, v.faultIn)
	if v.begin = storm.Begin; v.begin != nil {
		v.calm = 20
	}
	return v
}

// table draws actions by weight.
type table struct {
	actions []action
	weights []int // cumulated
}

func (t *table) add(do action, weight int) {
	if weight == 0 {
		return
	}
	total := weight
	if n := len(t.weights); n > 0 {
		total += t.weights[n-1]
	}
	t.actions, t.weights = append(t.actions, do), append(t.weights, total)
}

func (t *table) pick(d *draw) action {
	if len(t.weights) == 0 {
		return func(*world) bool { return false }
	}
	x := d.n(t.weights[len(t.weights)-1])
	i := 0
	for t.weights[i] <= x {
		i++
	}
	return t.actions[i]
}

type weighted struct {
	name   string
	weight int
	do     action
}

// usual is what always goes on.
func usual() []weighted {
	return []weighted{
		{"deliverAny", 50, (*world).deliverAny},
		{"fetch", 40, onNode((*node).fetch)},
		{"sync", 40, onNode((*node).sync)},
		{"persist", 4, onNode((*node).persist)},
		{"view", 40, onNode((*node).view)},
		{"storeFence", 40, onNode((*node).storeFence)},
		{"boot1", 16, onNode((*node).boot1)},
		{"produceAny", 8, (*world).produceAny},
		{"read", 2, onNode((*node).read)},
		{"startElection", 4, (*world).startElection},
		{"sendFences", 4, (*world).sendFences},
		{"choose", 20, (*world).choose},
		{"askVouch", 3, (*world).askVouch},
	}
}

// faults are what a run may be spared.
func faults() []weighted {
	return []weighted{
		{"drop", 8, (*world).drop},
		{"repeat", 8, (*world).repeat},
		{"crash", 8, onTarget((*node).crash)},
		{"deafen", 6, onTarget((*node).deafen)},
		{"idle", 6, onNode((*node).idle)},
		{"wipe", 2, onTarget((*node).wipe)},
		{"failSync", 8, onNode((*node).failSync)},
		{"retain", 4, onNode((*node).retain)},
		{"change", 24, (*world).change},
		{"observe", 4, (*world).observe},
		{"hurryElection", 8, (*world).hurryElection},
		{"handOver", 3, (*world).handOver},
		{"forget", 1, (*world).forget},
		{"rot", 3, onTarget((*node).rot)},
	}
}

func onNode(do func(n *node) bool) action {
	return func(w *world) bool { return do(w.nodes[w.draw.n(len(w.nodes))]) }
}

// onTarget likes nodes at which a fault hurts: the one that leads or is to lead,
// and those that have promised what they have not seen.
func onTarget(do func(n *node) bool) action {
	return func(w *world) bool {
		n := w.nodes[w.draw.n(len(w.nodes))]
		switch w.draw.n(4) {
		case 0:
			if l := w.node(w.meta.now().lead.Leader); l != nil {
				n = l
			}
		case 1:
			for _, m := range w.nodes {
				if m.up && m.fence.Promised() > m.shown().lead.Epoch {
					n = m
				}
			}
		}
		return do(n)
	}
}
