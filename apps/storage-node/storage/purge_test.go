package storage_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
	"github.com/narad-mq/narad/libs/vfs"
)

// names lists the topic directories.
func names(t testing.TB, fs vfs.FS) string {
	t.Helper()
	return namesIn(t, fs, "data/topics")
}

func namesIn(t testing.TB, fs vfs.FS, dir string) string {
	t.Helper()
	list, err := fs.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return strings.Join(out, " ")
}

func markerOf(t testing.TB, fs vfs.FS, name string) topic.Incarnation {
	t.Helper()
	s, err := topicdir.New(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := s.Page("topics/", 1000, func(topicdir.Entry, error) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name == name {
			return e.Marker
		}
	}
	return 0
}

// gate holds whoever comes to one point for one life, once.
type gate struct {
	point   string
	id      topic.Incarnation
	once    sync.Once
	arrived chan struct{}
	release chan struct{}
}

func newGate(point string, id topic.Incarnation) *gate {
	return &gate{point: point, id: id, arrived: make(chan struct{}), release: make(chan struct{})}
}

func (g *gate) hold(point string, ref topic.Ref) {
	if point != g.point || ref.Incarnation != g.id {
		return
	}
	g.once.Do(func() { close(g.arrived); <-g.release })
}

// Every moment at which something of a life is on its way into memory or onto the
// disk is held while that life is purged and the name gets a new one: what was held
// stores nothing, and the new life begins empty.
func TestPurgeAgainstEverythingHeld(t *testing.T) {
	for point, waits := range map[string]bool{
		queue.HoldRebuild: true, queue.HoldReserve: false, queue.HoldRead: false, queue.HoldAckFlush: false, queue.HoldPositionWrite: true,
	} {
		t.Run(point, func(t *testing.T) {
			fs := vfs.NewMem()
			c := newCluster(t, fs, "data")
			old := c.put("orders", 0xa, onePartition())
			p := c.start()
			p.mustCommit("orders", 0, batch(1, 1, 2, 3, 4))
			p.ack("orders", p.take("orders", 2)...)
			p.shutDown()

			g := newGate(point, 0xa)
			c.hold = g.hold
			p = c.start()
			oldClaim := &nodeapi.ClaimRequest{Gateway: "gateway-1", Claims: []nodeapi.Claim{{
				Topic: "orders", Incarnation: 0xa, Takers: []nodeapi.Taker{{Max: 1, MaxBytes: 1 << 20}},
				Partitions: []nodeapi.ClaimPartition{{DiskID: diskID, Epoch: p.epoch}},
			}}}
			claimed := make(chan int, 1)
			take := func() {
				n := 0
				for there := false; !there && !t.Failed(); { // a claim waits for an open only for a moment
					res, err := p.node.Claim(context.Background(), oldClaim)
					if err != nil {
						t.Error(err)
						break
					}
					n += len(res.Claims[0].Deliveries[0])
					select {
					case <-g.arrived:
						there = true
					default:
					}
				}
				claimed <- n
			}
			if point == queue.HoldAckFlush || point == queue.HoldPositionWrite {
				p.ack("orders", p.take("orders", 1)...) // to be flushed
				claimed <- 0
			} else {
				go take()
			}
			<-g.arrived

			c.remove("orders")
			c.put("orders", 0xb, onePartition())
			p.role.Purge("orders", 0xa)
			if waits {
				// The old directory keeps its name as long as something may write into it by
				// that name, and the new life is not served meanwhile.
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				_, err := p.node.Commit(ctx, &nodeapi.CommitRequest{Target: p.target("orders", 0), Batch: batch(1, 2)})
				cancel()
				if err == nil {
					t.Error("a record of the new life was taken while the old one still used its files")
				}
				if id := markerOf(t, fs, "orders"); id != 0xa {
					t.Errorf("%s has the name", id)
				}
			} else {
				testkit.Poll(t, testkit.Patience, "purged", func() bool { n := names(t, fs); return n == "" || n == "orders" && markerOf(t, fs, "orders") == 0xb })
				p.mustCommit("orders", 0, batch(1, 2))
			}
			close(g.release)
			if n := <-claimed; n != 0 {
				t.Errorf("%d records of the old life were delivered", n)
			}
			testkit.Poll(t, testkit.Patience, "purged, and served anew", func() bool {
				if _, err := p.commit("orders", 0, batch(1, 2)); err != nil {
					return false
				}
				return names(t, fs) == "orders" && markerOf(t, fs, "orders") == 0xb
			})
			check := func(what string) {
				t.Helper()
				if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-2"}) {
					t.Errorf("%s: the new life holds %v", what, got)
				}
				if d := p.details("orders", 0); d.Frontier != 0 || d.SettledAhead != 0 || d.InFlight != 0 {
					t.Errorf("%s: the new life begins with %+v", what, d)
				}
			}
			check("at once")
			if n := gauge(t, p, "narad_position_write_failures_total"); n != 0 {
				t.Errorf("%v writes of positions were tried after the end", n)
			}
			p.shutDown() // saves what it has
			c.hold = nil
			p = c.start()
			defer p.shutDown()
			check("after a restart")
			if d := p.take("orders", 9); len(d) != 1 || d[0].DeliveryCount != 1 || payload(d[0]) != "1-2" {
				t.Errorf("the new life delivers %+v", d)
			}
			if st := p.settleAs("orders", old, nodeapi.Delivery{Epoch: 1}); st != nodeapi.SettleLost {
				t.Errorf("a handle of the old life: %d", st)
			}
		})
	}
}

// Anybody may say that a topic was purged. Without the leader nothing follows, a
// flood costs next to nothing, and what lies not here is not even asked about.
func TestForgedPurges(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, 1))
		pass(time.Minute)
		synctest.Wait()
		_, before := p.timesAsked()
		for range 12 {
			for i := range 1000 {
				p.role.Purge("orders", 1)
				p.role.Purge("orders", topic.Incarnation(i+2))
				p.role.Purge(fmt.Sprint("other-", i), 1)
			}
			p.role.Purge("../raft", 1)
			p.role.Purge("orders", 0)
			pass(time.Second)
		}
		synctest.Wait()
		if _, asked := p.timesAsked(); asked-before > 3 || asked == before {
			t.Errorf("%d questions in 12 s", asked-before)
		}
		if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-1"}) {
			t.Errorf("left %v", got)
		}
		if n := gauge(t, p, "narad_purge_failures_total"); n != 0 {
			t.Errorf("%v purges of what lives were tried", n)
		}
		p.leads(func() { p.silent, p.living = errors.New("no leader"), nil })
		p.role.Purge("orders", 1)
		pass(30 * time.Second)
		p.leads(func() { p.silent, p.verdict = nil, metaapi.VerdictUnknown })
		pass(3 * time.Minute)
		if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-1"}) {
			t.Errorf("left %v", got)
		}
	})
}

// A purge is heard before the delete is applied here: the leader's word counts, and
// what a request makes again from the old view goes when that is applied.
func TestPurgeBeforeTheReplicaKnows(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		_, p := startOrders(t, fs)
		defer p.shutDown()
		p.mustCommit("orders", 0, batch(1, 1, 2))
		p.leads(func() { delete(p.living, 1) })
		p.role.Purge("orders", 1)
		pass(6 * time.Second)
		synctest.Wait()
		if got := names(t, fs); got != "" {
			t.Fatalf("left %s", got)
		}
		if got := p.replay("orders", 0); len(got) != 0 { // from a stale view: nothing old
			t.Errorf("replayed %v", got)
		}
		p.remove("orders")
		pass(6 * time.Second)
		synctest.Wait()
		if got := names(t, fs); got != "" {
			t.Errorf("left %s", got)
		}
	})
}

// A request from an old view opens the life that is being purged: neither waits for
// the other for ever, and nothing of it is left.
func TestOpenDuringPurge(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		var looks atomic.Int64
		looks.Store(1000)
		at, release := make(chan struct{}), make(chan struct{})
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			// The first look is whether there is something to purge, the second one is made under the guard.
			if op.Kind == vfs.OpStat && op.Path == "data/topics/orders" && looks.Add(1) == 2 {
				close(at)
				<-release
			}
			return vfs.Fault{}
		})
		made(t, mem, "orders", 1)
		_, p := startOrders(t, fs)
		defer p.shutDown()
		pass(time.Second) // the looks of the start
		looks.Store(0)
		p.leads(func() { delete(p.living, 1) })
		p.role.Purge("orders", 1)
		<-at
		done := make(chan error, 1)
		go func() { _, err := p.commit("orders", 0, batch(1, 1)); done <- err }()
		synctest.Wait()
		close(release)
		<-done // refused, or taken by a directory made after the purge, which goes with the delete that is applied
		pass(6 * time.Second)
		p.remove("orders")
		pass(6 * time.Second)
		synctest.Wait()
		if got := names(t, mem); got != "" {
			t.Errorf("left %q", got)
		}
	})
}

// made leaves directories on a disk as a node that was there before would.
func made(t testing.TB, fs vfs.FS, name string, id topic.Incarnation) {
	t.Helper()
	s, err := topicdir.New(fs, "data")
	if err != nil {
		t.Fatal(err)
	}
	o, err := s.Open(topicdir.Request{Topic: name, Incarnation: id, Judged: id - 1, Verdict: topicdir.Unknown})
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll(topicdir.PartitionDir(o.Path, 0)); err != nil {
		t.Fatal(err)
	}
	f, err := fs.Create(path.Join(topicdir.PartitionDir(o.Path, 0), "x"))
	if err == nil {
		_, err = f.WriteAt(make([]byte, 10), 0)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// Bug 1 of the seed's "Crash recovery bugs": the sweep at the start reads a stale set of
// topics (a snapshot was restored, or the state machine is held back) in which live
// topics are missing or older. Deletion needs the leader's word, and every failure keeps.
func TestBug1StaleTopicSetDeletesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		caughtUp bool
		verdict  metaapi.Verdict
		silent   error
	}{
		"snapshot restored, the leader knows them":  {true, metaapi.VerdictLive, nil},
		"snapshot restored, nobody answers":         {true, "", errors.New("no leader")},
		"snapshot restored, the leader is unsure":   {true, metaapi.VerdictUnknown, nil},
		"state machine held back, the leader would": {false, metaapi.VerdictGone, nil},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Bubble(t, func(t *testing.T) {
				fs := vfs.NewMem()
				cl := newCluster(t, fs, "data")
				made(t, fs, "created-later", 5)
				made(t, fs, "recreated", 6)
				made(t, fs, "twice", 8)
				made(t, fs, "twice", 9) // and 8 in quarantine
				before := names(t, fs)
				ref := topic.Ref{Topic: "recreated", Incarnation: 3}
				cl.meta.PutTopic(topic.Topic{Name: ref.Topic, Incarnation: 3, Config: onePartition()}, // the replica still shows the life before
					[]topic.Assignment{{Ref: ref, Leader: "storage-2", LeaderEpoch: 1, Replicas: []topic.Replica{{Node: "storage-2", DiskID: 1}}}})
				cl.meta.SetState(c.caughtUp, c.caughtUp)
				cl.leads(func() { cl.verdict, cl.silent = c.verdict, c.silent })
				p := cl.start()
				defer p.shutDown()
				pass(10 * time.Minute)
				synctest.Wait()
				if got := names(t, fs); got != before {
					t.Errorf("left %q of %q", got, before)
				}
				if _, asked := p.timesAsked(); (asked > 0) != c.caughtUp {
					t.Errorf("%d questions", asked)
				}
			})
		})
	}
}

// Bug 3, storage side: the replica does not show a topic, and its records, leases and
// positions stay; only its memory goes, and comes back.
func TestBug3LocalAbsenceDiscardsNothing(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		c, p := startOrders(t, fs)
		p.mustCommit("orders", 0, batch(1, 1, 2))
		p.ack("orders", p.take("orders", 1)...)
		pass(2 * time.Second)
		c.meta.DeleteTopic("orders") // the view only: the leader has it alive
		p.role.Purge("orders", 1)
		pass(5 * time.Minute)
		synctest.Wait()
		if got := names(t, fs); got != "orders" {
			t.Fatalf("left %q", got)
		}
		p.shutDown()
		p = c.start()
		if got := payloads(p.take("orders", 9)); !slices.Equal(got, []string{"1-2"}) {
			t.Errorf("delivers %v", got)
		}
		p.shutDown()
	})
}

// Bug 4: nobody's own state is authority, not even on a node that could ask itself: a
// leader that is still replaying answers that it is not ready, and the data stays until one
// that has passed its barrier remembers the end.
func TestBug4AFreshLeadersStateIsNoAuthority(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		made(t, fs, "orders", 5)
		c := newCluster(t, fs, "data")
		c.leads(func() { c.silent = problem.New(problem.NotReady, "this node was elected and is still catching up") })
		c.put("orders", 9, onePartition())
		c.remove("orders") // own replica: the name is absent
		p := c.start()
		defer p.shutDown()
		p.role.Purge("orders", 5)
		pass(5 * time.Minute)
		synctest.Wait()
		if got := names(t, fs); got != "orders" {
			t.Fatalf("left %q", got)
		}
		p.leads(func() { p.silent = nil })
		pass(10 * time.Second) // it is asked again before the next sweep comes
		synctest.Wait()
		if got := names(t, fs); got != "" {
			t.Errorf("left %q", got)
		}
	})
}

// The sweep at the start takes what a node missed while it was down, and waits for the
// replica at most a minute, so that nothing goes in the moment in which that has caught
// up after all; the later ones do it then.
func TestStartupReconcile(t *testing.T) {
	const untilNext = 20 * time.Second
	for _, late := range []time.Duration{0, 59 * time.Second, time.Minute + storage.DefaultSweepEvery - untilNext, 10*time.Minute - untilNext} {
		testkit.Bubble(t, func(t *testing.T) {
			fs := vfs.NewMem()
			const before = "a b bare gone orders orders.stale-0000000000000005"
			made(t, fs, "orders", 5)
			made(t, fs, "orders", 6) // 5 lies in quarantine
			made(t, fs, "gone", 7)
			if err := errors.Join(fs.MkdirAll("data/topics/bare/p00000"), fs.MkdirAll("data/topics/a b/p00000")); err != nil {
				t.Fatal(err)
			}
			c, log := newCluster(t, fs, "data"), &testkit.Journal{}
			c.log = log.Logger()
			c.put("orders", 6, onePartition())
			c.meta.SetState(late == 0, late == 0)
			p := c.start()
			defer p.shutDown()
			if late > 0 {
				pass(late)
				synctest.Wait()
				if got := names(t, fs); got != before {
					t.Errorf("before it caught up: %q", got)
				}
				c.meta.SetState(true, true)
			}
			skipped := log.Count("the sweep at the start is skipped")
			if over := late > time.Minute; over != (skipped == 1) || skipped > 1 {
				t.Errorf("late by %s: said %d times that it was skipped", late, skipped)
			}
			pass(time.Second)
			if late > time.Minute {
				pass(untilNext - 2*time.Second)
				synctest.Wait()
				if got := names(t, fs); got != before {
					t.Errorf("late by %s, %q was left before the next sweep was due", late, got)
				}
				pass(2 * time.Second)
			}
			synctest.Wait()
			if got := names(t, fs); got != "a b bare orders" {
				t.Errorf("late by %s: left %q", late, got)
			}
			if b := gauge(t, p, "narad_reclaimed_bytes_total"); b != 20 {
				t.Errorf("%v bytes", b)
			}
		})
	}
}

// A sweep that would take too much takes nothing and says so, until an operator lets
// it; a tenth, or a hundred, is no reason to stop.
func TestSweepBrake(t *testing.T) {
	for _, c := range []struct{ dead, alive int }{{100, 0}, {101, 0}, {101, 1009}, {101, 100}} {
		testkit.Bubble(t, func(t *testing.T) {
			fs := vfs.NewMem()
			cl := newCluster(t, fs, "data")
			for i := range c.dead {
				made(t, fs, fmt.Sprintf("dead-%03d", i), topic.Incarnation(i+1))
			}
			for i := range c.alive {
				id := topic.Incarnation(10_000 + i)
				made(t, fs, fmt.Sprintf("live-%04d", i), id)
				cl.put(fmt.Sprintf("live-%04d", i), id, onePartition())
			}
			p := cl.start()
			defer p.shutDown()
			pass(time.Minute + time.Second)
			cl.meta.PutMember(topic.Member{ID: "gateway-3", Role: topic.RoleGateway}) // a change, so that the replica is looked at
			pass(2 * time.Minute)
			synctest.Wait()
			refuse := c.dead > 100 && c.dead*10 > c.dead+c.alive
			want := c.alive
			if refuse {
				want += c.dead
			}
			if got := len(strings.Fields(names(t, fs))); got != want {
				t.Fatalf("%+v: left %d", c, got)
			}
			if (p.role.Degraded() != nil) != refuse || (gauge(t, p, "narad_sweeps_refused_total") > 0) != refuse {
				t.Errorf("%+v: %v", c, p.role.Degraded())
			}
			if !refuse {
				return
			}
			req := &nodeapi.ReclaimRequest{}
			for i := range c.dead {
				name := fmt.Sprintf("dead-%03d", i)
				req.Items = append(req.Items, nodeapi.ReclaimItem{Kind: nodeapi.InventoryServing, Name: "topics/" + name, Topic: name, Incarnation: topic.Incarnation(i + 1)})
			}
			for _, allow := range []bool{false, true} {
				req.AllowLarge = allow
				res, err := p.node.Reclaim(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range res.Outcomes {
					if allow && (o.Status != nodeapi.Reclaimed || o.Bytes != 10) || !allow && (o.Status != nodeapi.Kept || o.Reason != nodeapi.ReasonLarge) {
						t.Fatalf("allowed %t: %+v", allow, o)
					}
				}
			}
			pass(time.Minute)
			synctest.Wait()
			if got := len(strings.Fields(names(t, fs))); got != c.alive || p.role.Degraded() != nil {
				t.Errorf("left %d, %v", got, p.role.Degraded())
			}
		})
	}
}

// What the purge sweeper names is judged here again.
func TestReclaim(t *testing.T) {
	fs := vfs.NewMem()
	c := newCluster(t, fs, "data")
	made(t, fs, "orders", 5)
	made(t, fs, "orders", 6)
	made(t, fs, "gone", 7)
	c.put("orders", 6, onePartition())
	c.leads(func() { c.verdict, c.living[8] = metaapi.VerdictUnknown, true }) // the sweeps of the node take nothing
	p := c.start()
	defer p.shutDown()
	item := func(kind nodeapi.InventoryKind, name, of string, id topic.Incarnation) nodeapi.ReclaimItem {
		return nodeapi.ReclaimItem{Kind: kind, Name: name, Topic: of, Incarnation: id}
	}
	stale := "topics/orders.stale-0000000000000005"
	reclaim := func(items ...nodeapi.ReclaimItem) []nodeapi.ReclaimOutcome {
		t.Helper()
		res, err := p.node.Reclaim(t.Context(), &nodeapi.ReclaimRequest{Items: items})
		if err != nil || len(res.Outcomes) != len(items) {
			t.Fatalf("%+v, %v", res, err)
		}
		return res.Outcomes
	}
	testkit.Poll(t, testkit.Patience, "the sweep at the start has asked", func() bool { calls, _ := c.timesAsked(); return calls > 0 })
	if got := reclaim(item(nodeapi.InventoryQuarantine, stale, "orders", 5)); got[0].Status != nodeapi.Kept {
		t.Errorf("unsure: %+v", got)
	}
	c.leads(func() { c.verdict = metaapi.VerdictGone })
	got := reclaim(
		item(nodeapi.InventoryQuarantine, stale, "orders", 5),
		item(nodeapi.InventoryServing, "topics/orders", "orders", 6),    // it lives
		item(nodeapi.InventoryServing, "topics/orders", "orders", 5),    // another stands there
		item(nodeapi.InventoryQuarantine, "topics/gone", "gone", 7),     // another kind
		item(nodeapi.InventoryServing, "topics/gone", "other", 7),       // another topic
		item(nodeapi.InventoryServing, "topics/../topics/gone", "x", 7), // no name
		item(nodeapi.InventoryServing, "topics/gone", "gone", 0),        // no marker
		item(nodeapi.InventoryServing, "topics/away", "away", 11),       // nothing there
		item(nodeapi.InventoryServing, "topics/gone", "gone", 8),        // a live id beside
	)
	for i, want := range []nodeapi.ReclaimStatus{
		nodeapi.Reclaimed, nodeapi.Kept, nodeapi.Kept, nodeapi.Kept, nodeapi.Kept, nodeapi.Kept, nodeapi.Kept, nodeapi.Absent, nodeapi.Kept,
	} {
		if got[i].Status != want || (want == nodeapi.Kept) != (got[i].Reason != "") || (got[i].Bytes == 10) != (want == nodeapi.Reclaimed) {
			t.Errorf("%d: %+v, want %s", i, got[i], want)
		}
	}
	if left := names(t, fs); left != "gone orders" {
		t.Errorf("left %q", left)
	}
	if again := reclaim(item(nodeapi.InventoryQuarantine, stale, "orders", 5)); again[0].Status != nodeapi.Absent {
		t.Errorf("again: %+v", again)
	}
	if _, err := p.node.Reclaim(t.Context(), &nodeapi.ReclaimRequest{Items: make([]nodeapi.ReclaimItem, nodeapi.MaxReclaimItems+1)}); !problem.HasCode(err, problem.InvalidRequest) {
		t.Errorf("too many: %v", err)
	}
	c.leads(func() { c.silent = errors.New("no leader") })
	if _, err := p.node.Reclaim(t.Context(), &nodeapi.ReclaimRequest{Items: []nodeapi.ReclaimItem{item(nodeapi.InventoryServing, "topics/gone", "gone", 7)}}); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("nobody confirms: %v", err)
	}
}

// Bad things under topics' names on a real disk: each is left alone, and the node
// serves the rest.
func TestBadDirectoriesAreLeftAlone(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()
	c := newCluster(t, vfs.OS(), dir)
	mkdirs(t, dir+"/topics/garbage/p00000", target+"/p00000")
	if err := errors.Join(
		os.WriteFile(dir+"/topics/file", nil, 0o600), os.Symlink(target, dir+"/topics/link"),
		os.WriteFile(dir+"/topics/garbage/incarnation", []byte("3f9a17c4e2b08d51 00000000\n"), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"file", "link", "good"} {
		c.put(name, topic.Incarnation(i+1), onePartition())
	}
	p := c.start()
	defer p.shutDown()
	for _, name := range []string{"file", "link"} {
		if _, err := p.commit(name, 0, batch(1, 1)); !problem.HasCode(err, problem.PartitionUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.mustCommit("good", 0, batch(1, 1))
	c.remove("file")
	c.remove("link")
	p.role.Purge("file", 1)
	p.role.Purge("link", 2)
	c.remove("good")
	testkit.Poll(t, testkit.Patience, "the good one was purged", func() bool { return namesIn(t, vfs.OS(), dir+"/topics") == "file garbage link" })
	if _, err := os.Stat(target + "/p00000"); err != nil {
		t.Error(err)
	}
}

// A disk that refuses a rename: the deleted topic stays, is counted, nobody else is
// held up, and it goes when the disk lets it.
func TestRefusedRename(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		mem := vfs.NewMem()
		var mu sync.Mutex
		refuse := true
		fs := vfs.NewFault(mem, func(op vfs.Op) vfs.Fault {
			mu.Lock()
			defer mu.Unlock()
			if refuse && op.Kind == vfs.OpRename && op.Path == "data/topics/orders" {
				return vfs.Fault{Err: os.ErrPermission}
			}
			return vfs.Fault{}
		})
		c := newCluster(t, fs, "data")
		c.put("orders", 1, onePartition())
		c.put("other", 2, onePartition())
		p := c.start()
		defer p.shutDown()
		p.mustCommit("orders", 0, batch(1, 1))
		c.remove("orders")
		pass(2 * time.Minute)
		p.mustCommit("other", 0, batch(1, 1))
		synctest.Wait()
		if got := names(t, mem); got != "orders other" || gauge(t, p, "narad_purge_failures_total") < 2 {
			t.Errorf("left %q", got)
		}
		mu.Lock()
		refuse = false
		mu.Unlock()
		pass(2 * time.Minute)
		synctest.Wait()
		if got := names(t, mem); got != "other" {
			t.Errorf("left %q", got)
		}
	})
}
