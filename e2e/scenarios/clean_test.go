//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// sweptLimit is for two sweeps that nobody has hastened, one a minute, and their work: the
	// first may come when something cannot be judged.
	sweptLimit = 150 * time.Second
	// sweepStarts is how often the nodes that have something are started for a sweep: what
	// is led by a node that has just started cannot be judged.
	sweepStarts = 3
	// sweepTakes is more than a sweep takes of a few small copies.
	sweepTakes = 2 * time.Second
)

// ending is a cluster whose scenario is over, and how it has to be left: nothing moves or
// waits to, and no node has a copy of a partition that it does not hold.
type ending struct {
	t      *testing.T
	ctx    context.Context
	cl     *client.Client
	dir    string // of all nodes
	topics []string
	// restart ends a node and waits until it is ready again: a sweep comes with a start,
	// and the next one a minute later.
	restart func(id string)
	// interrupted tells whether a node may have set copies aside: whoever was killed, or
	// cut off while it led, may have records that were never committed, and nobody can
	// tell them from committed ones.
	interrupted func(id string) bool

	aside  map[string]bool // copies that such nodes have set aside
	starts int
}

// clean waits until the cluster is as it has to be left. It is for the end of the load: it
// commits records of its own.
func (e *ending) clean() {
	e.t.Helper()
	e.aside = map[string]bool{}
	began := time.Now()
	for round := range sweepStarts {
		e.rests()
		if round > 0 { // those that have just started sweep now
			_ = harness.Until(e.ctx, sweepTakes, func() bool { return len(e.known()) == 0 })
		}
		nodes := map[string]bool{}
		for _, d := range e.known() {
			nodes[e.node(d)] = true
		}
		for _, id := range slices.Sorted(maps.Keys(nodes)) {
			e.restart(id)
			e.starts++
			e.known() // what it leads proves itself, for the next one
		}
	}
	var left []string
	if err := harness.Until(e.ctx, sweptLimit, func() bool {
		stray, unknown := e.stray()
		left = slices.Concat(stray, unknown, e.moving())
		return len(left) == 0
	}); err != nil {
		e.t.Errorf("copies that nobody holds, or moves: %v; in %s", left, e.dir)
		return
	}
	e.t.Logf("at rest and without an old copy after %s and %d starts; set aside where one was interrupted: %v",
		time.Since(began).Round(time.Millisecond), e.starts, slices.Sorted(maps.Keys(e.aside)))
}

// rests waits until nothing moves.
func (e *ending) rests() {
	e.t.Helper()
	var last []string
	if err := harness.Until(e.ctx, moveLimit, func() bool { last = e.moving(); return len(last) == 0 }); err != nil {
		e.t.Errorf("the planner does not come to rest within %s: %v; in %s", moveLimit, last, e.dir)
	}
}

func (e *ending) moving() (out []string) {
	m, err := e.cl.Moves(e.ctx)
	if err != nil {
		return []string{err.Error()}
	}
	for _, x := range m.Moves {
		out = append(out, fmt.Sprintf("%s/%d is %s", x.Topic, x.Partition, x.Phase))
	}
	if m.Waiting > 0 {
		out = append(out, fmt.Sprintf("%d moves wait", m.Waiting))
	}
	return out
}

// known lists the stray copies once it is known who leads and has replicas.
func (e *ending) known() (stray []string) {
	e.t.Helper()
	var unknown []string
	if err := harness.Until(e.ctx, moveLimit, func() bool { stray, unknown = e.stray(); return len(unknown) == 0 }); err != nil {
		e.t.Errorf("after %s: %v; in %s", moveLimit, unknown, e.dir)
	}
	return stray
}

// node is the node whose directory a path is in.
func (e *ending) node(path string) string {
	return strings.Split(strings.TrimPrefix(path, e.dir+"/"), "/")[0]
}

// stray lists directories of partitions on members that have no replica of them, and what
// keeps it from telling. What removed nodes have is theirs: they are to be wiped.
func (e *ending) stray() (dirs, unknown []string) {
	members, err := e.cl.Members(e.ctx)
	if err != nil {
		return nil, []string{err.Error()}
	}
	storage := map[string]bool{}
	for _, m := range members.Members {
		storage[m.ID] = m.Role == harness.Storage
	}
	for _, name := range e.topics {
		info, err := e.cl.Topic(e.ctx, name)
		if err != nil {
			return nil, []string{err.Error()}
		}
		for _, p := range info.PartitionDetails {
			if p.Leader == nil || len(p.Replicas) == 0 {
				unknown = append(unknown, fmt.Sprintf("%s/%d has no leader", name, p.Index))
			}
		}
		all, err := filepath.Glob(filepath.Join(e.dir, "*", "topics", name, "p*"))
		if err != nil {
			return nil, []string{err.Error()}
		}
		for _, d := range all {
			if id := e.node(d); storage[id] && e.isStray(info.PartitionDetails, name, id, filepath.Base(d)) {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs, unknown
}

// isStray tells whether a directory of a node is a copy that does not belong there.
func (e *ending) isStray(list []client.PartitionDetails, name, id, dir string) bool {
	number, aside, isAside := strings.Cut(strings.TrimPrefix(dir, "p"), ".")
	at, err := strconv.Atoi(number)
	if err != nil || at >= len(list) {
		return true
	}
	if strings.HasPrefix(aside, "quarantine-") && e.interrupted(id) {
		e.aside[filepath.Join(id, name, dir)] = true
		return false
	}
	p := list[at]
	if !isAside && (p.Leader == nil || slices.ContainsFunc(p.Replicas, func(r client.Replica) bool { return r.ID == id })) {
		return false
	}
	// A lone copy that restarted proves itself with its next record.
	one, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	_, _ = e.cl.Produce(one, name, client.Message{Payload: []byte("x"), Partition: client.Pin(p.Index)}, client.ProduceOptions{Committed: true})
	return true
}

// restarts is how an ending restarts nodes of a cluster.
func restarts(c *harness.Cluster) func(id string) {
	return func(id string) {
		pid := c.Node(id).PID
		c.Terminate(id)
		c.WaitReady(id, pid)
	}
}
