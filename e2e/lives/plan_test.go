package lives

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is what a step does.
type kind uint8

const (
	create kind = iota
	remove
	recreate
	produce
	consume
	ack
	forgeAck
	kill
	stop
	start
	armKill
	holdBack
	letGo
	install
	purge
	forge
	silence
	holdPoint
	release
	killGateway
	restoreWAL
	behind
	outage
	sweep
	killSweep
	audit
	wait
	hour
	kinds
)

var kindNames = [kinds]string{
	"create", "delete", "recreate", "produce", "consume", "ack", "forge an ack", "kill", "stop", "start", "kill at a write",
	"hold a replica back", "let replicas go", "install a snapshot", "purge late", "forge a purge", "silence the leader", "hold a point", "release",
	"kill a gateway", "copy or restore a WAL", "records behind an end", "outage", "sweep", "kill a sweeper", "audit", "wait", "an hour",
}

// weights say how often each kind is drawn.
var weights = [kinds]int{
	create: 6, remove: 5, recreate: 6, produce: 18, consume: 20, ack: 16, forgeAck: 3, kill: 3, stop: 1, start: 14, armKill: 3,
	holdBack: 3, letGo: 6, install: 2, purge: 3, forge: 3, silence: 2, holdPoint: 4, release: 5, killGateway: 4, restoreWAL: 4, behind: 4, outage: 4, sweep: 4, killSweep: 1,
	audit: 4, wait: 5, hour: 1,
}

// step is one thing that happens; a, b and c choose among what there is then.
type step struct {
	kind    kind
	a, b, c uint32
}

func (s step) String() string {
	return fmt.Sprintf("%s %d %d %d", kindNames[s.kind], s.a%100, s.b%100, s.c%1000)
}

// config is one run: a function of its seed, but for bug.
type config struct {
	seed     uint64
	bug      bug
	nodes    int
	names    int
	deceived bool // a restored snapshot is believed to be current at once
	hours    bool // time enough passes for ends to be forgotten
	parks    bool // gateways park what is stuck for seconds
	noSweeps bool // of the nodes themselves: the sweeper has to find everything
	steps    []step
}

// newConfig draws a run.
func newConfig(seed uint64, b bug, steps int) config {
	rng := rand.New(rand.NewPCG(seed, 0x11fe))
	c := config{seed: seed, bug: b, nodes: 2, names: 2, deceived: rng.IntN(2) == 0, noSweeps: rng.IntN(2) == 0}
	c.hours = !c.deceived && rng.IntN(2) == 0 // who believes an old snapshot may remember a life that is forgotten
	c.parks = rng.IntN(2) == 0
	total := 0
	for _, w := range weights {
		total += w
	}
	for range steps {
		at := rng.IntN(total)
		k := kind(0)
		for at >= weights[k] {
			at -= weights[k]
			k++
		}
		if k == hour && !c.hours {
			k = wait
		}
		c.steps = append(c.steps, step{k, rng.Uint32(), rng.Uint32(), rng.Uint32()})
	}
	return c
}

// shrink looks for the fewest steps with which fails is still true, for a while.
func shrink(c config, limit time.Duration, fails func(config) bool) config {
	end := time.Now().Add(limit)
	for size := len(c.steps) / 2; size >= 1; {
		smaller := false
		for at := 0; at+size <= len(c.steps) && time.Now().Before(end); {
			try := c
			try.steps = slices.Delete(slices.Clone(c.steps), at, at+size)
			if fails(try) {
				c, smaller = try, true
			} else {
				at += size
			}
		}
		if time.Now().After(end) {
			break
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return c
}

func (c config) trace() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %d steps, deceived %t, parks %t, own sweeps %t:", c.seed, len(c.steps), c.deceived, c.parks, !c.noSweeps)
	for _, s := range c.steps {
		b.WriteString("\n\t" + s.String())
	}
	return b.String()
}

// fate is a number that depends on nothing but the seed and what it is for, so that
// goroutines need no order to draw it.
func (c config) fate(for_ ...uint64) uint64 {
	x := c.seed
	for _, v := range for_ {
		x = (x ^ v) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}
