//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	linearLoad    = 15 * time.Second
	linearNames   = 6 // so few that the workers meet at each name
	linearWorkers = 6
	linearPause   = 25 * time.Millisecond // of a worker between two operations: the checker's work grows fast
	linearCheck   = 30 * time.Second
	linearLies    = 10 // histories with a lost change: each is missed now and then, all of them never
)

// life is what a name holds at one moment. Without an incarnation there is no topic,
// and version is the last that one of its topics had: the next begins above it. An
// incarnation that starts with "?" is one that a create of unknown outcome drew; its
// version is the lowest that it can have.
type life struct {
	incarnation string
	version     uint64
	retention   int64
}

// The operations on a name.
const (
	opCreate = "create"
	opAlter  = "alter"
	opDelete = "delete"
	opRead   = "read" // confirmed: of one that finds nothing
)

// change is the input of an operation; expect is the zero value without If-Match.
type change struct {
	name, kind string
	number     int
	retention  int64
	expect     life
}

// The outcomes: done changed something, or changed it perhaps; exists and stale are
// refusals that the leader decided, and that a read's topic is missing is its answer.
const (
	done    = "done"
	unknown = "unknown"
	exists  = "topic_exists"
	stale   = "precondition_failed"
	missing = "topic_not_found"
)

// outcome is the output of an operation; got is the topic that the answer carried.
type outcome struct {
	kind string
	got  life
}

// history gathers the operations of all workers.
type history struct {
	begin   time.Time
	names   int
	mu      sync.Mutex // guards all below
	ops     []porcupine.Operation
	last    map[string]life // what an answer said last of a name, to choose an If-Match by
	created map[string]bool // incarnations that answers to successful creates told
	counts  map[string]int
}

// TestTopicsAreLinearizable creates, alters and deletes few topics through both
// gateways while voters are killed, and looks for an order of all operations, each
// within its time, that explains every answer of the leader. Lists are local reads:
// they only never go back at one gateway.
func TestTopicsAreLinearizable(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	h := newHistory(linearNames)
	loading, stop := context.WithTimeout(ctx, linearLoad)
	defer stop()
	var running sync.WaitGroup
	for gateway, u := range c.URLs() {
		cl, err := client.New(client.Config{URL: u, Retry: client.Retry{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		for w := range linearWorkers / len(c.URLs()) {
			running.Go(func() { h.work(loading, cl, gateway*linearWorkers+w) })
		}
		running.Go(func() { readsNeverGoBack(loading, t, u, cl) })
	}
	kills := 0
	for loading.Err() == nil {
		victim := c.IDs(harness.Voter)[rand.IntN(3)]
		if leader := leaderNow(loading, c); leader != "" && kills%3 != 2 {
			victim = leader // two of three kills
		}
		old := c.Node(victim).PID
		c.Kill(victim)
		kills++
		c.WaitReady(victim, old)
		select {
		case <-loading.Done():
		case <-time.After(500 * time.Millisecond): // some operations with everybody there
		}
	}
	running.Wait()
	t.Logf("%d kills", kills)
	if kills < 2 {
		t.Error("too little happened to show anything")
	}
	h.check(t)
}

func newHistory(names int) *history {
	return &history{begin: time.Now(), names: names, last: map[string]life{}, created: map[string]bool{}, counts: map[string]int{}}
}

// check looks for the order, and that the history is one in which the check would miss
// a change that was lost and a read that showed what was over.
func (h *history) check(t *testing.T) {
	t.Helper()
	t.Log(h.counts)
	if h.counts[opCreate+" "+done] < 20 || h.counts[opAlter+" "+done] < 20 || h.counts[opDelete+" "+done] < 20 {
		t.Errorf("too little happened to show anything: %v", h.counts)
	}
	begin := time.Now()
	if got, _ := porcupine.CheckOperationsVerbose(h.model(), h.ops, linearCheck); got != porcupine.Ok {
		t.Errorf("%d operations are not linearizable: %s", len(h.ops), got)
		h.explain(t)
		return
	}
	t.Logf("the order of %d operations was found in %s", len(h.ops), time.Since(begin))
	if !h.tellsLies() {
		t.Errorf("histories with a lost write pass too, %d of them: the check shows nothing", linearLies)
	}
	for _, kind := range []string{missing, exists} {
		read, ok := h.staleRead(kind)
		if !ok {
			t.Errorf("too little happened to tell a stale read (%s)", kind)
		} else if got, _ := porcupine.CheckOperationsVerbose(h.model(), append(slices.Clone(h.ops), read), linearCheck); got != porcupine.Illegal {
			t.Errorf("a history with a stale read passes too: %s: %+v: the check shows nothing", got, read)
		}
	}
}

// staleRead makes a read that no order explains: one that misses a topic between its
// create and a change of the same life, or shows it as it was before a change that had
// been answered.
func (h *history) staleRead(kind string) (read porcupine.Operation, ok bool) {
	before := map[string]string{missing: opCreate, exists: opAlter}[kind]
	for _, a := range h.ops {
		was, in := a.Output.(outcome), a.Input.(change)
		if in.kind != before || was.kind != done {
			continue
		}
		for _, b := range h.ops {
			is := b.Output.(outcome)
			if b.Input.(change).kind != opAlter || is.kind != done || is.got.incarnation != was.got.incarnation || b.Call < a.Return+2 {
				continue
			}
			if kind == missing {
				return porcupine.Operation{Input: change{name: in.name, kind: opRead}, Call: a.Return + 1, Output: outcome{kind: missing}, Return: b.Call - 1}, true
			}
			return porcupine.Operation{Input: change{name: in.name, kind: opCreate}, Call: b.Return + 1, Output: outcome{exists, was.got}, Return: b.Return + 2}, true
		}
	}
	return read, false
}

// tellsLies tells whether the check finds that an acknowledged change is missing in the
// history, of any of some: one whose place an operation of unknown outcome can take, or
// after which nobody looked, is rightly not missed.
func (h *history) tellsLies() bool {
	tried := 0
	for i := len(h.ops) / 2; i < len(h.ops) && tried < linearLies; i++ {
		if op := h.ops[i]; op.Input.(change).kind != opAlter || op.Output.(outcome).kind != done {
			continue
		}
		tried++
		if got, _ := porcupine.CheckOperationsVerbose(h.model(), slices.Delete(slices.Clone(h.ops), i, i+1), linearCheck); got == porcupine.Illegal {
			return true
		}
	}
	return false
}

// leaderNow asks once; empty: nobody knows.
func leaderNow(ctx context.Context, c *harness.Cluster) string {
	cl, err := client.New(client.Config{URLs: c.URLs(), Retry: client.Retry{Attempts: 1}})
	if err != nil {
		return ""
	}
	defer cl.Close()
	if q, err := cl.Quorum(ctx); err == nil && q.LeaderID != nil {
		return *q.LeaderID
	}
	return ""
}

// work does one operation after the other; those under way are finished.
func (h *history) work(ctx context.Context, cl *client.Client, worker int) {
	harness.Every(ctx, linearPause, func(int) { h.one(cl, worker) })
}

// one chooses an operation, does it and notes what is certain of its outcome.
func (h *history) one(cl *client.Client, worker int) {
	h.mu.Lock()
	h.counts["begun"]++
	number := h.counts["begun"]
	in := change{
		name: linearName(rand.IntN(h.names)), kind: opAlter, number: number,
		retention: time.Hour.Milliseconds() + int64(number),
	}
	last := h.last[in.name]
	h.mu.Unlock()
	switch r := rand.IntN(10); {
	case r < 3 || last == life{}:
		in.kind = opCreate
	case r < 5:
		in.kind, in.expect = opDelete, last
	case r < 8:
		in.expect = last
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	call := time.Since(h.begin)
	topic, err := do(ctx, cl, in)
	end := time.Since(h.begin)
	out := judge(topic, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[in.kind+" "+out.kind]++
	switch out.kind {
	case done, exists:
		h.last[in.name] = out.got // of a delete: nothing
		if in.kind == opCreate && out.kind == done {
			h.created[out.got.incarnation] = true
		}
	case unknown:
		end = math.MaxInt64
	case stale:
	default: // nothing was changed, and a gateway's own replica decided: no part of the order
		return
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: worker, Input: in, Call: int64(call), Output: out, Return: int64(end)})
}

func do(ctx context.Context, cl *client.Client, in change) (client.Topic, error) {
	etag := ""
	if (in.expect != life{}) {
		etag = client.Topic{Incarnation: in.expect.incarnation, Version: in.expect.version}.ETag()
	}
	switch in.kind {
	case opCreate:
		return cl.CreateTopic(ctx, client.TopicSpec{Name: in.name, Partitions: 1, RetentionMS: &in.retention})
	case opAlter:
		return cl.UpdateTopic(ctx, in.name, client.TopicChange{RetentionMS: &in.retention}, etag)
	default:
		return client.Topic{}, cl.DeleteTopic(ctx, in.name, etag)
	}
}

// judge sorts an answer. Of the refusals only those that the leader decided when it
// applied the entry are confirmed: what the gateway's own replica refuses is a local read.
func judge(topic client.Topic, err error) outcome {
	got := func(t client.Topic) life { return life{t.Incarnation, t.Version, t.RetentionMS} }
	if err == nil {
		return outcome{done, got(topic)}
	}
	var e *client.Error
	if !errors.As(err, &e) || e.Applied != client.AppliedNo {
		return outcome{kind: unknown}
	}
	if e.Code == client.CodeTopicExists && e.Member("topic", &topic) {
		return outcome{exists, got(topic)}
	}
	if e.Code == client.CodePreconditionFailed && strings.Contains(e.Detail, "another version") {
		return outcome{kind: stale}
	}
	return outcome{kind: fmt.Sprintf("refused: %d %s", e.Status, e.Code)}
}

// model is one name: what each operation may answer in a state, and what it leaves.
func (h *history) model() porcupine.Model {
	return porcupine.Model{
		Partition: func(ops []porcupine.Operation) (parts [][]porcupine.Operation) {
			byName := map[string][]porcupine.Operation{}
			for _, op := range ops {
				name := op.Input.(change).name
				byName[name] = append(byName[name], op)
			}
			for _, part := range byName {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() any { return life{} },
		Step: func(state, input, output any) (bool, any) {
			return h.step(state.(life), input.(change), output.(outcome))
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

// step is the sequential topic. An operation of unknown outcome does what it can: that
// it did nothing is the case in which it comes after all others.
func (h *history) step(s life, in change, out outcome) (bool, life) {
	there := s.incarnation != ""
	matches := in.expect == life{} || h.same(s, in.expect)
	switch {
	case out.kind == exists:
		return there && h.same(s, out.got) && s.retention == out.got.retention, bind(s, out.got)
	case out.kind == missing:
		return !there, s
	case out.kind == stale: // an unconditional one met a change between its gateway's read and its entry
		return in.expect == life{} || !there || s.incarnation != in.expect.incarnation || s.version != in.expect.version, s
	case in.kind == opCreate && out.kind == done:
		return !there && out.got.version > s.version && out.got.retention == in.retention, out.got
	case in.kind == opCreate:
		if there {
			return true, s
		}
		return true, life{fmt.Sprintf("?%d", in.number), s.version + 1, in.retention}
	case in.kind == opAlter && out.kind == done:
		before := life{incarnation: out.got.incarnation, version: out.got.version - 1}
		return there && matches && h.same(s, before) && out.got.retention == in.retention, out.got
	case in.kind == opAlter:
		if !there || !matches {
			return true, s
		}
		after := bind(s, in.expect)
		after.version++
		after.retention = in.retention
		return true, after
	case out.kind == done: // deleted
		return there && matches, life{version: bind(s, in.expect).version}
	case there && matches: // deleted perhaps
		return true, life{version: bind(s, in.expect).version}
	}
	return true, s
}

// same tells whether a state may be the topic that an answer told: one that a create
// of unknown outcome made can have any incarnation that no answered create has.
func (h *history) same(s, told life) bool {
	if s.incarnation == told.incarnation {
		return s.incarnation != "" && s.version == told.version
	}
	return strings.HasPrefix(s.incarnation, "?") && !h.created[told.incarnation] && told.version >= s.version
}

// bind gives a state of unknown incarnation the one that was told, and its version.
func bind(s, told life) life {
	if strings.HasPrefix(s.incarnation, "?") && told.incarnation != "" {
		s.incarnation, s.version = told.incarnation, told.version
	}
	return s
}

// explain logs, per name that has no order, its operations in the order of their begin.
func (h *history) explain(t *testing.T) {
	m := h.model()
	for _, part := range m.Partition(h.ops) {
		if got, info := porcupine.CheckOperationsVerbose(m, part, linearCheck); got != porcupine.Ok {
			longest := 0
			for _, p := range info.PartialLinearizationsOperations() {
				for _, l := range p {
					longest = max(longest, len(l))
				}
			}
			t.Logf("%s: %s; the longest order explains %d of %d operations", part[0].Input.(change).name, got, longest, len(part))
			for _, op := range part {
				t.Logf("  %s..%s %s", time.Duration(op.Call), time.Duration(op.Return), m.DescribeOperation(op.Input, op.Output))
			}
		}
	}
}

// readsNeverGoBack lists at one gateway, one list after the other: a topic's version
// never shrinks, and a life that another one or nothing followed never comes again.
func readsNeverGoBack(ctx context.Context, t *testing.T, gateway string, cl *client.Client) {
	current, ended := map[string]client.Topic{}, map[string]bool{}
	lists := 0
	defer func() { t.Logf("%s: %d lists, %d lives ended", gateway, lists, len(ended)) }()
	for ctx.Err() == nil {
		now := map[string]client.Topic{}
		var failed error
		for topic, err := range cl.Topics(ctx, "linear-") {
			if failed = err; err == nil {
				now[topic.Name] = topic
			}
		}
		if failed != nil {
			if ctx.Err() == nil {
				t.Errorf("%s: list: %v: a local read needs no leader", gateway, failed)
			}
			return
		}
		lists++
		for name, old := range current {
			if now[name].Incarnation != old.Incarnation {
				ended[old.Incarnation] = true
			}
		}
		for name, topic := range now {
			if old := current[name]; ended[topic.Incarnation] || old.Incarnation == topic.Incarnation && topic.Version < old.Version {
				t.Errorf("%s went back: %s %s after %s, ended %v", gateway, name, topic.ETag(), old.ETag(), ended[topic.Incarnation])
			}
		}
		current = now
		wait(ctx, 5*time.Millisecond)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
