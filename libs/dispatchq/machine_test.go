package dispatchq

import (
	"fmt"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

// world is a View of one topic per name, changed by hand.
type world map[string]*Route

func (w world) Route(name string, _ topic.Incarnation) *Route {
	if r := w[name]; r != nil {
		return r
	}
	return gone
}

var gone = &Route{State: Gone}

func live(reroute bool, nodes ...string) *Route {
	r := &Route{State: Live, Reroute: reroute}
	for _, n := range nodes {
		dead := n != "" && n[0] == '!'
		if dead {
			n = n[1:]
		}
		r.Places = append(r.Places, Place{Leader: n, Alive: n != "" && !dead, Epoch: 1})
	}
	return r
}

type bench struct {
	*testing.T
	m   *Machine
	w   world
	now time.Duration
	seq uint64
}

func newBench(t *testing.T, cfg Config) *bench {
	w := world{}
	return &bench{T: t, m: New(cfg, w), w: w, now: time.Second}
}

func key(name string, partition int32) Key {
	return Key{Topic: name, Incarnation: 7, Partition: partition}
}

func (b *bench) add(k Key, n int) {
	for range n {
		b.seq++
		b.m.Add(b.now, k, Item{Pos: Pos{Segment: b.seq}, WAL: 1, Seq: b.seq, Size: 100})
	}
}

func (b *bench) step() Orders {
	o, _ := b.m.Step(b.now)
	return o
}

// one steps and expects exactly one batch.
func (b *bench) one() Batch {
	b.Helper()
	o := b.step()
	if len(o.Send) != 1 {
		b.Fatalf("%d batches, want 1", len(o.Send))
	}
	return o.Send[0]
}

func (b *bench) none() {
	b.Helper()
	if o := b.step(); len(o.Send) != 0 {
		b.Fatalf("batch to %+v, want none", o.Send[0].Target)
	}
}

func (b *bench) expect(got Batch, partition int32, first, last uint64) {
	b.Helper()
	items := got.Items
	if got.Target.Partition != partition || items[0].Seq != first || items[len(items)-1].Seq != last {
		b.Fatalf("batch %d..%d to partition %d, want %d..%d to %d",
			items[0].Seq, items[len(items)-1].Seq, got.Target.Partition, first, last, partition)
	}
}

// fail answers with out until the time is over and returns the next batch, not answered.
func (b *bench) fail(last Batch, out Outcome, d time.Duration) Batch {
	b.Helper()
	for end := b.now + d; b.now <= end || last.ID == 0; b.now += 50 * time.Millisecond {
		if last.ID != 0 && b.now < end {
			b.m.Answer(b.now, last.ID, out)
			last = Batch{}
		}
		o := b.step()
		if len(o.Send) > 0 {
			last = o.Send[0]
		}
		for _, p := range o.Probe {
			b.m.Probed(b.now, p.Key, false)
		}
	}
	return last
}

func TestOneBatchInFlightPerQueueInOrder(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.add(key("a", 0), 1)
	first := b.one()
	b.add(key("a", 0), 5)
	b.none()
	done := b.m.Answer(b.now, first.ID, Committed)
	if len(done) != 1 || done[0].Seq != 1 {
		t.Fatalf("done %v", done)
	}
	b.expect(b.one(), 0, 2, 6)
}

func TestBatchesSplitByIdentityAndBytes(t *testing.T) {
	cfg := DefaultConfig()
	cfg.BatchBytes = 250
	b := newBench(t, cfg)
	b.w["a"] = live(true, "n1")
	b.add(key("a", 0), 5)
	b.m.Add(b.now, key("a", 0), Item{WAL: 2, Seq: 1, Size: 1})
	for _, want := range [][2]uint64{{1, 2}, {3, 4}, {5, 5}, {1, 1}} {
		got := b.one()
		b.expect(got, 0, want[0], want[1])
		b.m.Answer(b.now, got.ID, Committed)
	}
	b.none()
	if s := b.m.Stats(); s.Items != 0 || len(b.m.lives) != 0 {
		t.Fatalf("left: %+v, %d lives", s, len(b.m.lives))
	}
}

func TestUnknownOutcomeIsRepeatedOnlyWhereItWasSent(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2", "n3")
	b.add(key("a", 0), 3)
	first := b.one()
	b.m.Answer(b.now, first.ID, Unknown)
	b.add(key("a", 0), 3)
	// Even 10 s of refusals do not release it: the first copy may still be appended.
	last := b.fail(Batch{}, Refused, 10*time.Second)
	b.expect(last, 0, 1, 3)
	b.m.Answer(b.now, last.ID, Refused)
	b.w["a"] = live(true, "!n1", "n2", "n3") // now nobody can answer for it
	b.m.ViewChanged()
	b.expect(b.one(), 1, 1, 6)
}

func TestRerouteAfterRefusalsAndReturn(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "!n2", "n3")
	b.add(key("a", 0), 2)
	pinned := key("a", 0)
	pinned.Pinned = true
	last := b.fail(b.one(), Refused, 1500*time.Millisecond)
	if last.ID != 0 && last.Target.Partition != 0 {
		t.Fatal("rerouted too early")
	}
	last = b.fail(last, Refused, 2500*time.Millisecond)
	b.expect(last, 2, 1, 2) // partition 1's leader is dead
	b.m.Answer(b.now, last.ID, Committed)
	b.add(key("a", 0), 1)
	last = b.one()
	b.expect(last, 2, 3, 3)
	b.m.Answer(b.now, last.ID, Committed)
	b.now += 2 * time.Second
	o := b.step()
	if len(o.Probe) != 1 || o.Probe[0].Target.Partition != 0 || len(o.Send) != 0 {
		t.Fatalf("no probe of the own partition: %+v", o)
	}
	b.m.Probed(b.now, key("a", 0), true)
	b.add(key("a", 0), 1)
	b.expect(b.one(), 0, 4, 4)
	b.add(pinned, 1)
	b.now += time.Second
	b.expect(b.fail(b.one(), Refused, 10*time.Second), 0, 5, 5)
}

func TestDeadLeaderReroutesAtOnceButNotReplicatedOrForbidden(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "!n1", "n2")
	b.w["b"] = live(false, "!n1", "n2")
	b.add(key("a", 0), 1)
	b.expect(b.one(), 1, 1, 1)
	b.now += time.Second
	b.add(key("b", 0), 1)
	b.expect(b.one(), 0, 2, 2)
}

// A single copy that moves has no leader for a moment: its queue waits for the
// election, also with a batch of unknown outcome, which elsewhere would be stored
// a second time.
func TestAMovingPartitionIsWaitedFor(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.add(key("a", 0), 1)
	sent := b.one()
	b.m.Answer(b.now, sent.ID, Unknown)
	moving := live(true, "", "n2")
	moving.Places[0].Elects = true
	b.w["a"] = moving
	b.m.ViewChanged()
	b.now += 2 * time.Second
	if o := b.step(); len(o.Send) > 0 {
		t.Fatalf("left for %+v", o.Send[0].Target)
	}
	b.w["a"] = live(true, "n3", "n2")
	b.m.ViewChanged()
	b.now += time.Second
	b.expect(b.one(), 0, 1, 1)
}

func TestHeldRecordsDelayNobody(t *testing.T) {
	b := newBench(t, DefaultConfig())
	for i := range 10_000 {
		b.add(key(fmt.Sprintf("gone-%d", i), 0), 1)
	}
	b.w["a"] = live(true, "n1")
	b.add(key("a", 0), 1)
	b.expect(b.one(), 0, 10_001, 10_001)
	if s := b.m.Stats(); s.Held != 10_000 {
		t.Fatalf("held %d", s.Held)
	}
	b.w["gone-5"] = live(true, "n1") // the view had lagged
	b.m.ViewChanged()
	b.now += time.Second
	b.expect(b.one(), 0, 6, 6)
}

func TestUnavailableViewLeavesRecords(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = &Route{State: Unavailable}
	b.add(key("a", 0), 3)
	b.now += time.Hour
	if o := b.step(); len(o.Send)+len(o.Park) != 0 {
		t.Fatalf("orders without a view: %+v", o)
	}
	b.w["a"] = live(true, "n1")
	b.m.ViewChanged()
	b.expect(b.one(), 0, 1, 3)
}

func TestSlotsAreBoundedAndFreedAfterASecond(t *testing.T) {
	b := newBench(t, DefaultConfig())
	for i := range 40 {
		name := fmt.Sprintf("t%d", i)
		b.w[name] = live(true, fmt.Sprintf("n%d", i%20))
		b.add(key(name, 0), 1)
	}
	if o := b.step(); len(o.Send) != 16 {
		t.Fatalf("%d batches in flight", len(o.Send))
	}
	_, next := b.m.Step(b.now)
	if next != b.now+time.Second {
		t.Fatalf("next at %v", next)
	}
	b.now = next
	if o := b.step(); len(o.Send) != 16 {
		t.Fatalf("%d more batches after a second", len(o.Send))
	}
}

func TestBlackHoleGetsFewBatches(t *testing.T) {
	b := newBench(t, DefaultConfig())
	sent := 0
	var last Batch
	for i := range 100 {
		name := fmt.Sprintf("t%d", i)
		b.w[name] = live(true, "hole")
		b.add(key(name, 0), 1)
	}
	for range 10 {
		for _, s := range b.step().Send {
			sent, last = sent+1, s
		}
		b.now += time.Second
	}
	if sent > 16 {
		t.Fatalf("%d batches into a black hole", sent)
	}
	b.w["ok"] = live(true, "n1")
	b.add(key("ok", 0), 1)
	b.one()
	for range 13 { // answers let it be used again
		last.ID--
		b.m.Answer(b.now, last.ID+1, Refused)
	}
	if o := b.step(); len(o.Send) == 0 {
		t.Fatal("the node is never used again")
	}
}

// TestBlackHoleDoesNotFillTheMemory: queues that wait for a node that does not
// answer make no progress either, and are parked under pressure; else the reader
// would stand still for everybody until each of them had its own batch time out.
func TestBlackHoleDoesNotFillTheMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxItems = 1000
	b := newBench(t, cfg)
	for i := range 100 {
		name := fmt.Sprintf("t%d", i)
		b.w[name] = live(true, "hole")
		b.add(key(name, 0), 10)
	}
	for range 10 {
		for _, p := range b.step().Park {
			b.m.Parked(b.now, p.Key, len(p.Items))
		}
		b.now += time.Second
	}
	if b.m.Full() {
		t.Fatalf("%d records known, and no more are read", b.m.Stats().Items)
	}
}

// TestSilentNodeDoesNotHoldTheReader: one hot partition of a node that swallows its
// batch fills the memory long before the call ends by itself.
func TestSilentNodeDoesNotHoldTheReader(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxItems = 1000
	b := newBench(t, cfg)
	b.w["hot"] = live(true, "hole")
	b.add(key("hot", 0), 1)
	sent := b.one()
	b.add(key("hot", 0), 999)
	if o := b.step(); len(o.Abort) != 0 {
		t.Fatal("given up at once")
	}
	b.now += cfg.SlotTime
	o := b.step()
	if len(o.Abort) != 1 || o.Abort[0] != sent.ID {
		t.Fatalf("not given up: %+v", o)
	}
	b.m.Answer(b.now, sent.ID, Unknown)
	if o = b.step(); len(o.Park) != 1 || len(o.Park[0].Items) != 1000 {
		t.Fatalf("not parked: %+v", o)
	}
}

func TestLingerOnlyWhileOthersAreInFlight(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"], b.w["b"] = live(true, "n1"), live(true, "n1")
	b.add(key("a", 0), 1)
	first := b.one() // idle: at once
	b.now += 10 * time.Millisecond
	b.m.Answer(b.now, first.ID, Committed) // latency 10 ms
	b.add(key("a", 0), 1)
	first = b.one()
	b.add(key("b", 0), 1)
	b.none()
	b.add(key("b", 0), 63) // full: at once
	b.m.Answer(b.now, b.one().ID, Committed)
	b.add(key("b", 0), 1)
	b.none()
	b.m.Answer(b.now, first.ID, Committed) // nobody in flight any more
	b.one()
}

func TestStuckQueueIsParkedAndDrainedFirst(t *testing.T) {
	b := newBench(t, DefaultConfig())
	k := key("a", 0)
	b.w["a"] = live(false, "")
	b.add(k, 3)
	b.none()
	b.now += 5 * time.Minute
	o := b.step()
	if len(o.Park) != 1 || len(o.Park[0].Items) != 3 {
		t.Fatalf("not parked: %+v", o)
	}
	b.add(k, 1) // while it is being parked
	b.m.Parked(b.now, k, 3)
	b.none()
	b.w["a"] = live(false, "n1")
	b.m.ViewChanged()
	if o := b.step(); len(o.Load) != 1 || len(o.Send) != 0 {
		t.Fatalf("newer records before the parked ones: %+v", o)
	}
	b.m.Loaded(b.now, k, []Item{{WAL: 1, Seq: 1}, {WAL: 1, Seq: 2}}, 0)
	got := b.one()
	b.expect(got, 0, 1, 2)
	b.m.Answer(b.now, got.ID, Committed)
	if o := b.step(); len(o.Load) != 1 || len(o.Send) != 0 {
		t.Fatalf("parked log not drained: %+v", o)
	}
	b.m.Loaded(b.now, k, []Item{{WAL: 1, Seq: 3}}, 0)
	got = b.one()
	b.expect(got, 0, 3, 3)
	b.m.Answer(b.now, got.ID, Committed)
	b.expect(b.one(), 0, 4, 4)
}

func TestPressureParksWhatIsStuck(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxItems = 100
	b := newBench(t, cfg)
	b.w["dead"] = live(false, "")
	b.w["ok"] = live(true, "n1")
	b.add(key("dead", 0), 100)
	if !b.m.Full() {
		t.Fatal("not full")
	}
	o := b.step()
	if len(o.Park) != 1 {
		t.Fatalf("nothing parked under pressure: %+v", o)
	}
	b.m.Parked(b.now, key("dead", 0), 100)
	if b.m.Full() {
		t.Fatal("still full")
	}
	b.add(key("ok", 0), 1)
	b.one()
}

// TestManyParkedLogsShareTheMemory: when all of them can be drained at once, what
// is loaded stays near MaxItems; and a log that is alone has its whole window again.
func TestManyParkedLogsShareTheMemory(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxItems = 10_000
	b := newBench(t, cfg)
	for i := range 100 {
		name := fmt.Sprintf("t%d", i)
		b.w[name] = live(false, "n1")
		b.m.AddParked(b.now, key(name, 0), 1000, nil)
	}
	loads, most := b.step().Load, 0
	for _, l := range loads {
		most += l.Most
	}
	if len(loads) != 100 || most > cfg.MaxItems {
		t.Fatalf("%d loads of %d records", len(loads), most)
	}
	for _, l := range loads[1:] {
		b.m.Loaded(b.now, l.Key, nil, 1000) // all lost
	}
	b.m.Loaded(b.now, loads[0].Key, []Item{{WAL: 1, Seq: 1}}, 0)
	b.m.Answer(b.now, b.one().ID, Committed)
	if o := b.step(); len(o.Load) != 1 || o.Load[0].Most != cfg.LoadItems {
		t.Fatalf("%+v", o.Load)
	}
}

// TestFailedParkingIsNotRepeatedAtOnce: also under pressure, where all queues are
// looked at ten times a second.
func TestFailedParkingIsNotRepeatedAtOnce(t *testing.T) {
	cfg := DefaultConfig()
	cfg.MaxItems = 100
	b := newBench(t, cfg)
	b.w["dead"] = live(false, "")
	b.add(key("dead", 0), 100)
	tries := 0
	for end := b.now + cfg.ReparkAfter; b.now < end; b.now += relieveEvery {
		for _, p := range b.step().Park {
			tries++
			b.m.Parked(b.now, p.Key, 0)
		}
	}
	if tries != 1 {
		t.Fatalf("%d tries in %v", tries, cfg.ReparkAfter)
	}
	if o := b.step(); len(o.Park) != 1 {
		t.Fatal("it is never tried again")
	}
}

func TestMismatchHoldsWithoutReroute(t *testing.T) {
	b := newBench(t, DefaultConfig())
	b.w["a"] = live(true, "n1", "n2")
	b.add(key("a", 0), 2)
	last := b.fail(b.one(), Mismatch, 20*time.Second)
	if b.m.Stats().Held != 2 {
		t.Fatalf("held %d", b.m.Stats().Held)
	}
	b.expect(last, 0, 1, 2) // the node's view may lag: asked again, never elsewhere
	b.m.Answer(b.now, last.ID, Committed)
	if b.m.Stats().Held != 0 {
		t.Fatal("still held")
	}
}
