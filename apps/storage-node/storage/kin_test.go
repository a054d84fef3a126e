package storage_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// kinStamps is how far the stamps of two partitions may be apart: each counts whole
// milliseconds from where it began.
const kinStamps = 5

// A parent of three copies, a plain child of single copies and a delay child of three,
// on four nodes: leaders are elected, cut off with records that nobody else has, killed
// and moved, parents' and children's, cursors' answers are lost, children are attached
// anew. Every child has what its parent committed while it was attached, once, never
// early, and nothing that the parent does not have in the end.
func TestKinAtRandom(t *testing.T) {
	var did kinCounts
	for seed := range uint64(40) {
		testkit.Bubble(t, func(t *testing.T) {
			f := newFeud(t, seed)
			for range 50 {
				f.step()
			}
			f.settle()
			for _, id := range kinNodes {
				f.collect(f.nodes[id])
				f.end(f.nodes[id], nil)
			}
			did.add(&f.did)
		})
	}
	t.Logf("%+v", did)
	if did.Tails == 0 || did.Truncated == 0 || did.Moves < 20 || did.Reattached == 0 || did.Repeats == 0 {
		t.Errorf("not everything happened: %+v", did)
	}
}

// kinCounts is what happened in a run.
type kinCounts struct {
	Messages, Elections, Tails, Truncated, Kills, Moves, Reattached, Repeats int
}

func (c *kinCounts) add(o *kinCounts) {
	c.Messages += o.Messages
	c.Elections += o.Elections
	c.Tails += o.Tails
	c.Truncated += o.Truncated
	c.Kills += o.Kills
	c.Moves += o.Moves
	c.Reattached += o.Reattached
	c.Repeats += o.Repeats
}

// feud is a run over kin, and the ledger of it.
type feud struct {
	*kin
	children map[string]*kinChild
	moves    map[topic.Ref]*move
	steps    []string // what happened, for who has to find out why
	did      kinCounts
}

// kinChild is what a child owes, and may have.
type kinChild struct {
	name    string
	delayMS int64
	epoch   topic.ID64
	owes    []string // committed in the parent under the attachment that it has now
	unknown []string // sent under it, with an unknown outcome: owed if the parent has it
	may     map[string]bool
}

func newFeud(t *testing.T, seed uint64) *feud {
	f := &feud{kin: newKin(t, seed), children: map[string]*kinChild{}, moves: map[topic.Ref]*move{}}
	f.create(parentName, 1, 3)
	f.create("plain", 2, 1)
	f.create("later", 1, 3)
	f.serving()
	f.lossy = 10
	for name, delayMS := range map[string]int64{"plain": 0, "later": 700} {
		f.children[name] = &kinChild{name: name, delayMS: delayMS, may: map[string]bool{}}
	}
	f.attach("plain")
	f.attach("later")
	return f
}

// until lets time go by until ok, two minutes at most.
func (f *feud) until(what string, ok func() bool) {
	f.t.Helper()
	for range 6000 {
		if ok() {
			return
		}
		pass(20 * time.Millisecond)
	}
	for id, n := range f.nodes {
		f.t.Log(id, n.logs.all())
	}
	f.t.Fatalf("not in two minutes: %s; %s", what, f.history())
}

// serving waits until everything is led and served.
func (f *feud) serving() {
	f.t.Helper()
	f.until("everything is served", func() bool {
		f.electAll()
		return !slices.ContainsFunc(f.refs(), func(ref topic.Ref) bool { _, err := f.read(ref); return err != nil })
	})
}

func (f *feud) target(ref topic.Ref) (nodeapi.Target, *kinNode) {
	a := f.assignment(ref)
	r, _ := a.ReplicaOn(a.Leader)
	return nodeapi.Target{Ref: ref, DiskID: r.DiskID, Epoch: a.LeaderEpoch}, f.nodes[a.Leader]
}

func (f *feud) read(ref topic.Ref) (out []arrival, err error) {
	at, n := f.target(ref)
	if n == nil || n.role == nil {
		return nil, errNoRoute
	}
	req := &nodeapi.ReadRequest{Target: at, Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
	for {
		res, err := n.role.Node().Read(context.Background(), req)
		if err != nil {
			return nil, err
		}
		for _, r := range res.Records {
			out = append(out, arrival{payload(nodeapi.Delivery{Body: r.Body}), r.CommitMS})
		}
		if res.NextOffset >= res.HighWatermark {
			return out, nil
		}
		req.Offset = res.NextOffset
	}
}

// contents reads a topic whole; false while a part of it is not served.
func (f *feud) contents(name string) (out []arrival, ok bool) {
	for _, ref := range f.refs() {
		if ref.Topic != name {
			continue
		}
		part, err := f.read(ref)
		if err != nil {
			return nil, false
		}
		out = append(out, part...)
	}
	return out, true
}

// attach links a child, anew if it was before, at what the parent has committed.
func (f *feud) attach(name string) {
	f.t.Helper()
	ref, c := f.ref(parentName, 0), f.children[name]
	f.detach(name)
	var marks []int64
	f.until("the parent says what it has", func() bool {
		f.electAll()
		at, n := f.target(ref)
		if n == nil || n.role == nil {
			return false
		}
		res, err := n.role.Fanout().Marks(context.Background(), &nodeapi.MarksRequest{Partitions: []nodeapi.Target{at}})
		if err == nil {
			marks = res.Marks
		}
		return err == nil
	})
	epoch := topic.ID64(f.number() << 8)
	f.mu.Lock()
	defer f.mu.Unlock()
	parent, child := f.topics[parentName], f.topics[name]
	f.living[epoch] = true
	row := topic.Child{Name: name, Incarnation: child.Incarnation, DelayMS: c.delayMS, AttachEpoch: epoch}
	parent.Children = append(slices.Clone(parent.Children), row)
	child.Parent = &topic.Parent{Name: parentName, Incarnation: parent.Incarnation, DelayMS: c.delayMS, AttachEpoch: epoch}
	f.meta.PutAttachment(topic.Attachment{Parent: parentName, ParentIncarnation: parent.Incarnation, Child: row, Points: marks})
	f.publishLocked(parentName)
	f.publishLocked(name)
	c.epoch, c.owes, c.unknown = epoch, nil, nil
}

// detach ends the attachment that a child has, if it has one.
func (f *feud) detach(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parent, child := f.topics[parentName], f.topics[name]
	delete(f.living, f.children[name].epoch)
	parent.Children = slices.DeleteFunc(slices.Clone(parent.Children), func(o topic.Child) bool { return o.Name == name })
	child.Parent = nil
	f.publishLocked(parentName)
	f.publishLocked(name)
}

// produce sends a few records to whom the parent's assignment names, for at most a
// second.
func (f *feud) produce(n int) {
	f.t.Helper()
	at, leader := f.target(f.ref(parentName, 0))
	f.produceTo(leader, at, n)
}

func (f *feud) produceTo(leader *kinNode, at nodeapi.Target, n int) {
	var b record.Builder
	b.Reset(record.Stream{Kind: record.StreamWAL, ID: 9}, 0, record.Oldest{})
	var sent []string
	for range n {
		number := f.number()
		m := record.Message{Payload: fmt.Appendf(nil, "m%d", number)}
		if f.rng.IntN(2) == 0 {
			m.Key = fmt.Appendf(nil, "k%d", f.rng.IntN(9))
		}
		if err := b.Add(number, record.AppendBody(nil, &m)); err != nil {
			f.t.Fatal(err)
		}
		sent = append(sent, string(m.Payload))
	}
	if leader == nil || leader.role == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := leader.role.Node().Commit(ctx, &nodeapi.CommitRequest{Target: at, Batch: slices.Clone(b.Finish(record.CodecZstd))})
	f.did.Messages += n
	for _, c := range f.children {
		for _, m := range sent {
			c.may[m] = true
		}
		if err == nil {
			c.owes = append(c.owes, sent...)
		} else {
			c.unknown = append(c.unknown, sent...)
		}
	}
}

// tail cuts the parent's leader off while it takes records, which nobody else gets,
// and has another one elected, perhaps before the old one has noticed.
func (f *feud) tail() {
	ref := f.ref(parentName, 0)
	at, old := f.target(ref)
	if old == nil || old.role == nil || f.down() != nil {
		return
	}
	f.route(old.id, true)
	for range 1 + f.rng.IntN(3) {
		f.produceTo(old, at, 1+f.rng.IntN(4))
	}
	f.did.Tails++
	f.note("tail on %s", old.id)
	f.change(ref, func(a *topic.Assignment) { a.Leader = ""; a.LeaderEpoch++ })
	f.electAll()
	if f.rng.IntN(2) == 0 {
		f.produce(1 + f.rng.IntN(5)) // at the same offsets
		pass(time.Duration(f.rng.IntN(1500)) * time.Millisecond)
	}
	f.route(old.id, false)
}

// down is a node that does not run, if any.
func (f *feud) down() *kinNode {
	for _, id := range kinNodes {
		if f.nodes[id].role == nil {
			return f.nodes[id]
		}
	}
	return nil
}

func (f *feud) note(format string, args ...any) {
	f.steps = append(f.steps, fmt.Sprintf(format, args...))
}

func (f *feud) history() string {
	out := strings.Join(f.steps, "; ")
	for _, ref := range f.refs() {
		_, err := f.read(ref)
		a := f.assignment(ref)
		out += fmt.Sprintf("\n%s: %+v led by %q under %d, observed by %+v: %v", ref, a.Replicas, a.Leader, a.LeaderEpoch, a.Observers, err)
	}
	return out
}

func (f *feud) step() {
	f.electAll()
	for _, ref := range f.refs() {
		if m := f.moves[ref]; m != nil && f.advance(ref, m) {
			f.note("end of the move of %s", ref)
			delete(f.moves, ref)
			f.did.Moves++
		}
	}
	refs := f.refs()
	ref := refs[f.rng.IntN(len(refs))]
	switch k := f.rng.IntN(20); {
	case k < 7:
		f.produce(1 + f.rng.IntN(5))
	case k < 11:
		pass(time.Duration(f.rng.IntN(500)) * time.Millisecond)
	case k == 11:
		f.tail()
	case k == 12, k == 13:
		f.restart()
	case k == 14:
		a := f.assignment(ref)
		_ = f.elect(ref, a.Replicas[f.rng.IntN(len(a.Replicas))].Node) // tried again
		f.did.Elections++
	case k < 18:
		if f.moves[ref] == nil && f.assignment(ref).Observers == nil {
			f.moves[ref] = f.beginMove(ref)
			f.note("move of %s from %s to %s", ref, f.moves[ref].from, f.moves[ref].to)
		}
	case k == 18:
		name := []string{"plain", "later"}[f.rng.IntN(2)]
		f.note("%s is attached anew", name)
		f.attach(name)
		f.did.Reattached++
	default:
		f.settle()
	}
}

// restart starts the node that is down, or ends one in some way.
func (f *feud) restart() {
	if n := f.down(); n != nil {
		f.note("start of %s", n.id)
		f.start(n)
		return
	}
	n := f.nodes[kinNodes[f.rng.IntN(len(kinNodes))]]
	f.collect(n)
	switch f.rng.IntN(3) {
	case 0:
		f.note("stop of %s", n.id)
		f.end(n, nil)
	case 1:
		f.note("kill of %s", n.id)
		f.end(n, (*vfs.Mem).Copy)
	default:
		f.note("power cut of %s", n.id)
		f.end(n, func(fs *vfs.Mem) *vfs.Mem { return fs.CrashClone(f.rng) })
	}
	f.did.Kills++
}

// collect adds up what a process has counted before it ends.
func (f *feud) collect(n *kinNode) {
	f.did.Truncated += n.logs.says("an uncommitted tail was cut")
	families, err := n.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, m := range families {
		if m.GetName() == "narad_duplicates_dropped_total" {
			f.did.Repeats += int(m.GetMetric()[0].GetCounter().GetValue())
		}
	}
}

// settle has everything up and whole again, waits until every child has what it owes,
// and checks what it has.
func (f *feud) settle() {
	f.t.Helper()
	f.note("settle")
	for n := f.down(); n != nil; n = f.down() {
		f.start(n)
	}
	f.until("all moves end", func() bool {
		f.electAll()
		for ref, m := range f.moves {
			if f.advance(ref, m) {
				delete(f.moves, ref)
				f.did.Moves++
			}
		}
		return len(f.moves) == 0
	})
	f.serving()
	var has []arrival
	f.until("the parent is whole", func() (ok bool) { has, ok = f.contents(parentName); return ok })
	stamps := map[string]int64{}
	for _, a := range has {
		stamps[a.payload] = a.commitMS
	}
	for _, c := range f.children {
		f.compare(c, stamps)
	}
}

// compare holds a child against the parent, as soon as it has all that it owes.
func (f *feud) compare(c *kinChild, parent map[string]int64) {
	f.t.Helper()
	for _, m := range c.unknown {
		if _, ok := parent[m]; ok {
			c.owes = append(c.owes, m)
		}
	}
	c.unknown = nil // what the parent lacks now it never gets
	var have []arrival
	var lacks []string
	for tries := 0; ; tries++ {
		f.electAll()
		got, ok := f.contents(c.name)
		if ok {
			have = got
			lacks = slices.DeleteFunc(slices.Clone(c.owes), func(m string) bool {
				return slices.ContainsFunc(have, func(a arrival) bool { return a.payload == m })
			})
		}
		if ok && len(lacks) == 0 {
			break
		}
		if tries > 600 {
			f.t.Fatalf("%s lacks %v of %d; %s", c.name, lacks, len(c.owes), f.history())
		}
		pass(100 * time.Millisecond)
	}
	seen := map[string]bool{}
	for _, a := range have {
		at, ok := parent[a.payload]
		switch {
		case !ok || !c.may[a.payload]:
			f.t.Fatalf("%s has %s, which its parent does not have", c.name, a.payload)
		case seen[a.payload]:
			f.t.Fatalf("%s has %s twice; %s", c.name, a.payload, f.history())
		case a.commitMS < at+c.delayMS-kinStamps:
			f.t.Fatalf("%s got %s %d ms early", c.name, a.payload, at+c.delayMS-a.commitMS)
		}
		seen[a.payload] = true
	}
}
