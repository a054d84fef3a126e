package storage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
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
		out = append(out, f.partition(name, int32(i))...)
	}
	return out
}

func (f *family) partition(name string, i int32) (out []arrival) {
	req := &nodeapi.ReadRequest{Target: f.target(name, i), Offset: -1, Limit: 1000, MaxBytes: 8 << 20}
	for {
		res, err := f.node.Read(context.Background(), req)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, r := range res.Records {
			out = append(out, arrival{payload(nodeapi.Delivery{Body: r.Body}), r.CommitMS})
		}
		if res.NextOffset >= res.HighWatermark {
			return out
		}
		req.Offset = res.NextOffset
	}
}

// lateness is how much later than its delay each record of a child was committed, ms,
// in order.
func (f *family) lateness(name string, delayMS int64) (out []int64) {
	for _, a := range f.contents(name) {
		out = append(out, a.commitMS-f.commits[a.payload]-delayMS)
	}
	slices.Sort(out)
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
			case a.commitMS < f.commits[a.payload]+delay && f.clock.Load() == 0: // else the child may stamp by another clock
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
