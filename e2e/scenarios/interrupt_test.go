//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// movePhases in their order; the first is right after the answer to who began the
// move, the last when it is over and the source has a copy to give up.
var movePhases = []string{"pending", "copying", "joined", "electing", "removing", "over"}

// interrupted is a cluster whose moves are interrupted.
type interrupted struct {
	*testing.T
	ctx    context.Context
	c      *harness.Cluster
	cl     *client.Client
	watch  *watch
	random *rand.Rand
	moves  int
	hit    map[string]int // interruptions, by phase, victim and kind
}

// interruption is what happens to one move.
type interruption struct {
	phase  string
	victim string // source, destination, controller, voter
	freeze bool   // else kill -9
}

// all begins moves of topics in turn and interrupts each in one way, until the time is
// up: every phase, victim and kind, in random order, and again.
func (m *interrupted) all(names []string) {
	m.Helper()
	limit := killFor
	if s := os.Getenv("NARAD_E2E_MOVEKILL_SECONDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			m.Fatal(err)
		}
		limit = time.Duration(n) * time.Second
	}
	var list []interruption
	for _, phase := range movePhases {
		for _, victim := range []string{"source", "destination", "controller", "voter"} {
			list = append(list, interruption{phase, victim, false}, interruption{phase, victim, true})
		}
	}
	var thaws sync.WaitGroup
	defer thaws.Wait()
	for end := time.Now().Add(limit); time.Now().Before(end); m.moves++ {
		if m.moves%len(list) == 0 {
			m.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		name := names[m.moves%len(names)]
		have, from, to := awaitPlaces(m.ctx, m.T, m.c, m.cl, name)
		if m.moves%4 == 3 { // a replica that does not lead moves, too
			from = have[m.random.IntN(len(have))]
		}
		if _, err := m.cl.StartMove(m.ctx, name, 0, from, to); err != nil {
			m.Logf("start of a move of %s from %s to %s: %v", name, from, to, err)
			continue
		}
		m.interrupt(list[m.moves%len(list)], name, from, to, &thaws)
	}
}

// interrupt does one thing to one process when the move is in a phase, or in a later
// one when it is faster than the looks.
func (m *interrupted) interrupt(i interruption, name, from, to string, thaws *sync.WaitGroup) {
	m.Helper()
	phase := reach(m.ctx, m.cl, name, i.phase)
	victim := map[string]string{"source": from, "destination": to}[i.victim]
	if victim == "" {
		victim = leadingVoter(m.ctx, m.cl)
	}
	if i.victim == "voter" {
		victim = another(m.c, victim)
	}
	if victim == "" {
		return
	}
	what := "killed"
	over := func() {}
	if i.victim == "source" || i.victim == "destination" {
		over = m.watch.crashed(victim)
	}
	if i.freeze {
		what = "frozen"
		thaw := m.c.Freeze(victim)
		thaws.Go(func() {
			<-time.After(frozenFor)
			thaw()
			over()
		})
	} else {
		m.c.Kill(victim)
	}
	m.hit[phase]++
	m.hit[i.victim+" "+what]++
}

// reach waits until the move of a topic is in a phase or a later one, and says in which.
func reach(ctx context.Context, cl *client.Client, name, phase string) (now string) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(4 * time.Second); time.Now().Before(end) && ctx.Err() == nil; <-tick.C {
		list, err := cl.Moves(ctx)
		if err != nil {
			continue
		}
		at := slices.IndexFunc(list.Moves, func(x client.Move) bool { return x.Topic == name })
		if at < 0 {
			return "over"
		}
		now = list.Moves[at].Phase
		if slices.Index(movePhases, now) >= slices.Index(movePhases, phase) {
			return now
		}
	}
	return now // an earlier interruption holds it
}

// awayAndBack moves the leader of a topic away, kills its first node before that has
// given up the old copy, and moves it back there.
func (m *interrupted) awayAndBack(name string) {
	m.Helper()
	first, away := beginMove(m.ctx, m.T, m.c, m.cl, name)
	// Frozen sooner, the first node would still be needed. A move may be slow, and be taken
	// back when the machine stands still: then another one begins.
	if err := harness.Until(m.ctx, moveLimit, func() bool {
		switch reach(m.ctx, m.cl, name, "removing") {
		case "removing":
			return true
		case "over":
			nodes, leader := replicasOf(m.ctx, m.cl, name, 0)
			if leader != "" && !slices.Contains(nodes, first) {
				return true
			}
			first, away = beginMove(m.ctx, m.T, m.c, m.cl, name)
		}
		return false
	}); err != nil {
		m.Fatalf("the move of %s from %s to %s does not get to its last phase; logs in %s", name, first, away, m.c.Dir)
	}
	dir := filepath.Join(m.c.Dir, first, "topics", name, fmt.Sprintf("p%05d", 0))
	pid, over := m.c.Node(first).PID, m.watch.crashed(first)
	thaw := m.c.Freeze(first) // it hears of nothing any more
	defer thaw()
	if err := harness.Until(m.ctx, moveLimit, func() bool {
		nodes, leader := replicasOf(m.ctx, m.cl, name, 0)
		return leader != "" && !slices.Contains(nodes, first)
	}); err != nil {
		m.Fatalf("%s does not move away from %s; logs in %s", name, first, m.c.Dir)
	}
	m.c.Kill(first)
	over()
	_, err := os.Stat(dir)
	m.Logf("%s moved from %s to %s, the old copy is still there: %v", name, first, away, err == nil)
	awaitOn(m.ctx, m.T, m.c, m.cl, name, moveFactors[name], away, first) // begins while it is down
	m.c.WaitReady(first, pid)
	atRest(m.ctx, m.T, m.c, m.cl, moveLimit)
}
