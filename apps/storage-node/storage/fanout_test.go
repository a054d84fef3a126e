package storage_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

func TestFamilyAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		testkit.Bubble(t, func(t *testing.T) {
			f := newFamily(t, seed, 2)
			for range 60 {
				f.step()
			}
			f.settle()
			f.shutDown()
		})
	}
}

// A cursor of a dead attachment that a stale view shows moves nothing of the living
// one, and that one goes on where it stood: bug 2 of the lifecycle page, whose
// cursors anchored at the tail and overwrote what they did not know.
func TestStaleViewMovesNoCursor(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.create("later", 1)
		f.attach("later", 60_000)
		f.produce(5)
		pass(time.Second)
		stale := map[string]topic.Topic{parentName: f.topics[parentName], "later": f.topics["later"]}
		f.detach("later")
		f.attach("later", 60_000)
		f.produce(4)
		pass(62 * time.Second) // these are copied: the cursor has left its attach point
		f.produce(5)           // the backlog that bug 2 lost
		pass(2 * time.Second)
		want := f.cursors()[f.children["later"].now]
		if want.NextOffset != 9 {
			t.Fatalf("%+v", want)
		}
		current := map[string]topic.Topic{parentName: f.topics[parentName], "later": f.topics["later"]}

		// It restarts from a snapshot that is older than the second attachment, and
		// believes that it has caught up.
		for name, old := range stale {
			f.topics[name] = old
		}
		f.crash()
		f.produce(5)
		pass(10 * time.Second)
		if rows := f.cursors(); len(rows) != 0 {
			t.Errorf("cursors run by the stale view: %+v", rows)
		}
		for name, now := range current {
			f.topics[name] = now
			f.publish(now)
		}
		pass(time.Second)
		if got := f.cursors()[f.children["later"].now]; got.NextOffset != want.NextOffset {
			t.Fatalf("the cursor stands at %d, stood at %d", got.NextOffset, want.NextOffset)
		}
		pass(2 * time.Minute)
		f.settle()
		if n := gauge(t, f.process, "narad_duplicates_dropped_total"); n != 0 {
			t.Errorf("%g copies were sent twice: the position was lost, and the child made good for it", n)
		}
		f.shutDown()
	})
}

// Whoever stops in order goes on where he stood: nothing is sent twice, not even
// for the child to drop.
func TestOrderedStopRepeatsNothing(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.create("plain", 2)
		f.attach("plain", 0)
		f.produce(50)
		f.settle()
		pass(time.Second)
		f.shutDown()
		f.process = f.start()
		f.produce(5)
		f.settle()
		if n := gauge(t, f.process, "narad_duplicates_dropped_total"); n != 0 {
			t.Errorf("%g copies were sent twice", n)
		}
		f.shutDown()
	})
}

// cursors is where the cursors of the parent's first partition stand.
func (f *family) cursors() map[topic.ID64]nodeapi.CursorDetails {
	f.t.Helper()
	res, err := f.role.Fanout().Cursors(context.Background(), &nodeapi.CursorsRequest{
		Topic: parentName, Incarnation: f.topics[parentName].Incarnation, Partitions: []int32{0},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	out := map[topic.ID64]nodeapi.CursorDetails{}
	for _, p := range res.Partitions {
		for _, c := range p.Cursors {
			out[c.AttachEpoch] = c
		}
	}
	return out
}

// However much waits, a delay cursor holds nothing of it: it looks at the head.
func TestPendingCostsNothing(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.create("later", 1)
		f.attach("later", 3_600_000)
		for range 50 {
			f.produce(200)
		}
		pass(time.Minute)
		if rows := f.cursors(); len(rows) != 1 || rows[f.children["later"].now].NextOffset != 0 {
			t.Fatalf("%+v", rows)
		}
		if got := f.contents("later"); len(got) != 0 {
			t.Fatalf("%d records an hour early", len(got))
		}
		pass(time.Hour)
		f.settle()
		if late := gauge(t, f.process, "narad_fanout_due_lag_seconds"); late != 0 {
			t.Errorf("due for %g s", late)
		}
		f.shutDown()
	})
}

// Retention takes what a cursor has not copied: counted, and it goes on.
func TestRetentionOvertakesACursor(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.segment = 4 << 10
		f.shutDown()
		f.process = f.start()
		f.create("later", 1)
		f.attach("later", 600_000)
		parent := f.topics[parentName]
		parent.RetentionBytes = 8 << 10
		f.topics[parentName] = parent
		f.publish(parent)
		for range 40 {
			f.produce(100)
		}
		pass(2 * time.Minute) // retention takes it from the disk,
		f.shutDown()          // and this from memory
		f.process = f.start()
		pass(11 * time.Minute)
		dropped := gauge(t, f.process, "narad_fanout_dropped_total")
		if dropped == 0 {
			t.Fatal("nothing was counted")
		}
		if c := f.cursors()[f.children["later"].now]; float64(c.Dropped) != dropped {
			t.Errorf("the cursor says %d, the metric %g", c.Dropped, dropped)
		}
		l := f.children["later"]
		lost := f.owed("later")
		if len(lost) != int(dropped) {
			t.Errorf("%d records are lost, %g were counted", len(lost), dropped)
		}
		l.sent[l.now] = slices.DeleteFunc(l.sent[l.now], func(m string) bool { return slices.Contains(lost, m) })
		f.produce(10)
		pass(11 * time.Minute)
		f.settle()
		before := f.cursors()[l.now]
		f.crash() // what was dropped is remembered with the position
		pass(2 * time.Second)
		if after := f.cursors()[l.now]; after.Dropped != before.Dropped || after.NextOffset < before.NextOffset {
			t.Errorf("after a crash %+v, before %+v", after, before)
		}
		f.shutDown()
	})
}

// The child's partitions are led by a node that does not answer, or that is slow;
// other children, and other partitions of the same one, go on.
func TestSlowChildHoldsNobody(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.create("plain", 1)
		f.create("later", 2) // of which one partition will be far away
		f.attach("plain", 0)
		f.attach("later", 0)
		far := f.topics["later"]
		list := []topic.Assignment{}
		for i := range 2 {
			list = append(list, topic.Assignment{
				Ref: topic.Ref{Topic: "later", Incarnation: far.Incarnation, Partition: int32(i)}, LeaderEpoch: f.epoch,
				Replicas: []topic.Replica{{Node: nodeID, DiskID: diskID}}, Leader: nodeID,
			})
		}
		list[1].Leader, list[1].Replicas[0].Node = "storage-9", "storage-9"
		f.meta.PutTopic(far, list)
		began := time.Now()
		for range 100 {
			f.produce(5)
			pass(10 * time.Millisecond)
		}
		pass(500 * time.Millisecond)
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the parent took %v", took)
		}
		if left := f.owed("plain"); len(left) > 0 {
			t.Errorf("the plain child lacks %d", len(left))
		}
		near, _ := f.node.Read(context.Background(), &nodeapi.ReadRequest{Target: f.target("later", 0), Offset: -1, Limit: 1000, MaxBytes: 1 << 20})
		if n := len(near.Records); n < 150 {
			t.Errorf("its living partition has %d of about 250", n)
		}
		if p := f.cursors()[f.children["later"].now]; p.NextOffset > 10 || p.DueLagMS == 0 {
			t.Errorf("%+v", p)
		}
		f.publish(far) // it comes back, here
		f.settle()
		f.shutDown()
	})
}

// A hundred children of one parent: each has everything, exact to within a second.
func TestHundredChildren(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		for i := range 100 {
			name := fmt.Sprintf("child-%d", i)
			f.create(name, 1)
			f.attach(name, int64(i%2)*1000)
		}
		for range 10 {
			f.produce(10)
			pass(time.Duration(f.rng.IntN(700)) * time.Millisecond)
		}
		pass(5 * time.Second)
		f.settle()
		for name, l := range f.children {
			late := f.lateness(name, l.delay[l.now])
			if median := late[len(late)/2]; len(late) != 100 || median > 1000 || median < 0 {
				t.Fatalf("%s: %d records, %d ms later than its delay at the median", name, len(late), median)
			}
		}
		if copies := gauge(t, f.process, "narad_fanout_copies_total"); copies != 10_000 {
			t.Errorf("%g copies", copies)
		}
		f.shutDown()
	})
}

func TestMarksAreOfTheLeaderOnly(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		f.produce(4)
		if got := f.marks(); !slices.Equal(got, []int64{4}) {
			t.Fatalf("%v", got)
		}
		for name, change := range map[string]func(*nodeapi.Target){
			"stale_epoch":           func(g *nodeapi.Target) { g.Epoch-- },
			"not_ready":             func(g *nodeapi.Target) { g.Epoch++ },
			"partition_unavailable": func(g *nodeapi.Target) { g.DiskID++ },
		} {
			g := f.target(parentName, 0)
			change(&g)
			_, err := f.role.Fanout().Marks(context.Background(), &nodeapi.MarksRequest{Partitions: []nodeapi.Target{g}})
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
		f.shutDown()
	})
}
