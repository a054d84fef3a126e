package storage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const parentName = "events"

// family is a parent with children on one node, and a ledger of what each of them
// has to have.
type family struct {
	*process
	t        *testing.T
	rng      *rand.Rand
	mem      *vfs.Mem
	next     uint64 // number of the next record, and of the next id
	children map[string]*childLedger
	ended    []*childLedger   // lives that were deleted
	commits  map[string]int64 // commit time in the parent, by payload
}

// childLedger is one life of a child.
type childLedger struct {
	name  string
	delay map[topic.ID64]int64
	now   topic.ID64              // attach epoch; 0: detached
	sent  map[topic.ID64][]string // committed in the parent while it was attached
}

func newFamily(t *testing.T, seed uint64, partitions int) *family {
	f := &family{
		t: t, rng: seeded(seed), mem: vfs.NewMem(), children: map[string]*childLedger{}, commits: map[string]int64{}, next: 1,
	}
	c := newCluster(t, f.mem, "/data")
	cfg := topic.DefaultConfig()
	cfg.Partitions = partitions
	c.put(parentName, f.id(), cfg)
	f.process = c.start()
	return f
}

func (f *family) id() topic.ID64 {
	f.next++
	return topic.ID64(f.next << 8)
}

// marks are the attach points, as the proposer collects them.
func (f *family) marks() []int64 {
	f.t.Helper()
	var req nodeapi.MarksRequest
	for i := range f.topics[parentName].Partitions {
		req.Partitions = append(req.Partitions, f.target(parentName, int32(i)))
	}
	res, err := f.role.Fanout().Marks(context.Background(), &req)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.Marks
}

func (f *family) create(name string, partitions int) {
	cfg := topic.DefaultConfig()
	cfg.Partitions = partitions
	f.put(name, f.id(), cfg)
	f.children[name] = &childLedger{name: name, delay: map[topic.ID64]int64{}, sent: map[topic.ID64][]string{}}
}

// attach links as the entry does, but in steps: a view may be between any two.
func (f *family) attach(name string, delayMS int64) topic.ID64 {
	epoch, points := f.id(), f.marks()
	l, child, parent := f.children[name], f.topics[name], f.topics[parentName]
	row := topic.Child{Name: name, Incarnation: child.Incarnation, DelayMS: delayMS, AttachEpoch: epoch}
	f.leads(func() { f.living[epoch] = true })
	f.meta.PutAttachment(topic.Attachment{Parent: parentName, ParentIncarnation: parent.Incarnation, Child: row, Points: points})
	child.Parent = &topic.Parent{Name: parentName, Incarnation: parent.Incarnation, DelayMS: delayMS, AttachEpoch: epoch}
	parent.Children = append(slices.Clone(parent.Children), row)
	f.topics[name], f.topics[parentName] = child, parent
	f.publish(parent)
	f.publish(child)
	l.now, l.delay[epoch], l.sent[epoch] = epoch, delayMS, nil
	return epoch
}

func (f *family) detach(name string) {
	l, child, parent := f.children[name], f.topics[name], f.topics[parentName]
	f.leads(func() { delete(f.living, l.now) })
	parent.Children = slices.DeleteFunc(slices.Clone(parent.Children), func(c topic.Child) bool { return c.Name == name })
	child.Parent = nil
	f.topics[name], f.topics[parentName] = child, parent
	f.publish(parent)
	f.publish(child)
	l.now = 0
}

func (f *family) delete(name string) {
	if f.children[name].now != 0 {
		f.detach(name)
	}
	delete(f.children, name)
	f.remove(name)
}

// produce commits a few records to one partition of the parent.
func (f *family) produce(n int) {
	f.t.Helper()
	part := int32(f.rng.IntN(f.topics[parentName].Partitions))
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 9, A: uint32(part)}, 0, record.Oldest{})
	var sent []string
	for range n {
		f.next++
		m := record.Message{Payload: fmt.Appendf(nil, "m%d", f.next)}
		if f.rng.IntN(2) == 0 {
			m.Key = fmt.Appendf(nil, "k%d", f.rng.IntN(9))
		}
		if err := b.Add(f.next, record.AppendBody(nil, &m)); err != nil {
			f.t.Fatal(err)
		}
		sent = append(sent, string(m.Payload))
	}
	f.mustCommit(parentName, part, slices.Clone(b.Finish(record.CodecZstd)))
	for _, l := range f.children {
		if l.now != 0 {
			l.sent[l.now] = append(l.sent[l.now], sent...)
		}
	}
}

// crash is a power cut and a start.
func (f *family) crash() {
	left := f.mem.CrashClone(f.rng)
	f.shutDown() // what it still does, it does to the old disk
	f.mem, f.fs = left, left
	f.process = f.start()
}

// elect begins another epoch of everything.
func (f *family) elect() {
	f.epoch++
	for _, t := range f.topics {
		f.publish(t)
	}
}

type arrival struct {
	payload  string
	commitMS int64
}

func (f *family) contents(name string) (out []arrival) {
	for i := range f.topics[name].Partitions {
		req := &nodeapi.ReadRequest{Target: f.target(name, int32(i)), Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
		for {
			res, err := f.node.Read(context.Background(), req)
			if err != nil {
				f.t.Fatal(err)
			}
			for _, r := range res.Records {
				out = append(out, arrival{payload(nodeapi.Delivery{Body: r.Body}), r.CommitMS})
			}
			if res.NextOffset >= res.HighWatermark {
				break
			}
			req.Offset = res.NextOffset
		}
	}
	return out
}

// owed lists what living attachments still have to bring.
func (f *family) owed(name string) (missing []string) {
	have := map[string]bool{}
	for _, a := range f.contents(name) {
		have[a.payload] = true
	}
	l := f.children[name]
	for _, m := range l.sent[l.now] {
		if !have[m] {
			missing = append(missing, m)
		}
	}
	return missing
}

// settle waits until every child has what it is owed, and checks what it has.
func (f *family) settle() {
	f.t.Helper()
	for _, a := range f.contents(parentName) {
		f.commits[a.payload] = a.commitMS
	}
	for name, l := range f.children {
		for tries := 0; len(f.owed(name)) > 0; tries++ {
			if tries > 300 {
				f.t.Fatalf("%s lacks %v", name, f.owed(name))
			}
			pass(100 * time.Millisecond)
		}
		may := map[string]int64{} // delay
		for epoch, sent := range l.sent {
			for _, m := range sent {
				may[m] = l.delay[epoch]
			}
		}
		seen := map[string]bool{}
		for _, a := range f.contents(name) {
			delay, ok := may[a.payload]
			switch {
			case !ok:
				f.t.Fatalf("%s has %s, which was committed when it was not attached", name, a.payload)
			case seen[a.payload]:
				f.t.Fatalf("%s has %s twice", name, a.payload)
			case a.commitMS < f.commits[a.payload]+delay && f.clock == 0: // else the child may stamp by another clock
				f.t.Fatalf("%s got %s %d ms early", name, a.payload, f.commits[a.payload]+delay-a.commitMS)
			}
			seen[a.payload] = true
		}
	}
}

func (f *family) step() {
	names := []string{"plain", "later", "third"}
	name := names[f.rng.IntN(len(names))]
	l := f.children[name]
	switch k := f.rng.IntN(20); {
	case k < 9:
		f.produce(1 + f.rng.IntN(5))
	case k < 12:
		pass(time.Duration(f.rng.IntN(400)) * time.Millisecond)
	case k == 12:
		f.crash()
	case k == 13:
		f.elect()
	case k == 14:
		f.shutDown()
		f.process = f.start()
	case l == nil:
		f.create(name, 1+f.rng.IntN(3))
	case l.now == 0:
		f.attach(name, int64(f.rng.IntN(3))*300)
	case k == 15:
		f.detach(name)
	case k == 16:
		f.delete(name)
	case k == 17:
		f.settle()
	}
}

func TestFamilyAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
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
	synctest.Test(t, func(t *testing.T) {
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
		if n := gaugeOf(t, f.process, "narad_duplicates_dropped_total"); n != 0 {
			t.Errorf("%g copies were sent twice: the position was lost, and the child made good for it", n)
		}
		f.shutDown()
	})
}

// Whoever stops in order goes on where he stood: nothing is sent twice, not even
// for the child to drop.
func TestOrderedStopRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		if n := gaugeOf(t, f.process, "narad_duplicates_dropped_total"); n != 0 {
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
	synctest.Test(t, func(t *testing.T) {
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
		if late := gaugeOf(t, f.process, "narad_fanout_due_lag_seconds"); late != 0 {
			t.Errorf("due for %g s", late)
		}
		f.shutDown()
	})
}

func gaugeOf(t testing.TB, p *process, name string) float64 {
	families, err := p.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// Retention takes what a cursor has not copied: counted, and it goes on.
func TestRetentionOvertakesACursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		dropped := gaugeOf(t, f.process, "narad_fanout_dropped_total")
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
	synctest.Test(t, func(t *testing.T) {
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

// The wall clock is stepped: a delay is measured on the clock that stamped, which
// goes on from the last stamp and never back.
func TestStepsOfTheWallClock(t *testing.T) {
	for _, step := range []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 365 * 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			f := newFamily(t, 1, 1)
			f.create("later", 1)
			f.attach("later", 10_000)
			f.produce(3)
			pass(2 * time.Second)
			f.shutDown()
			f.clock = step // wall and monotonic of the next process: one step between two lives
			f.process = f.start()
			f.produce(3)
			pass(time.Second)
			got := f.contents("later")
			if step <= 0 && len(got) != 0 || step > 0 && len(got) != 3 {
				t.Errorf("step of %v: %d records after 3 s of 10", step, len(got))
			}
			pass(6 * time.Second)
			if got := f.contents("later"); step <= 0 && len(got) != 0 || step > 0 && len(got) != 3 {
				t.Errorf("step of %v: %d records after 9 s of 10", step, len(got))
			}
			pass(5 * time.Second)
			if left := f.owed("later"); len(left) > 0 {
				t.Errorf("step of %v: %v are late", step, left)
			}
			f.settle()
			f.shutDown()
		})
	}
}

// A hundred children of one parent.
func TestHundredChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFamily(t, 1, 1)
		for i := range 100 {
			name := fmt.Sprintf("child-%d", i)
			f.create(name, 1)
			f.attach(name, int64(i%2)*1000)
		}
		for range 10 {
			f.produce(10)
		}
		pass(5 * time.Second)
		for name := range f.children {
			if left := f.owed(name); len(left) > 0 {
				t.Fatalf("%s lacks %d", name, len(left))
			}
		}
		if copies := gaugeOf(t, f.process, "narad_fanout_copies_total"); copies != 10_000 {
			t.Errorf("%g copies", copies)
		}
		f.shutDown()
	})
}

func TestMarksAreOfTheLeaderOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
