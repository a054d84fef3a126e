package commit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

const life topic.Incarnation = 7

// leader is a storage node that stores, or does what a test says.
type leader struct {
	nodeapi.Node // what a committer does not call
	delay        time.Duration

	mu      sync.Mutex
	calls   int
	logs    map[int32][]string // payloads
	known   map[record.Stream]int64
	numbers map[string]bool // stream and number of everything stored
	do      func(part int32, call int) error
	after   func(part int32, call int) error // after it was stored
	batches []int
	odd     bool // it answers for fewer records than it was sent
}

func (l *leader) Commit(ctx context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error) {
	l.mu.Lock()
	l.calls++
	call := l.calls
	do, after := l.do, l.after
	l.mu.Unlock()
	if do != nil {
		if err := do(req.Partition, call); err != nil {
			return nil, err
		}
	}
	select {
	case <-time.After(l.delay):
	case <-ctx.Done():
		return nil, &rpc.TransportError{Sent: true, Err: ctx.Err()}
	}
	res := l.store(req)
	if after != nil {
		if err := after(req.Partition, call); err != nil {
			return nil, err
		}
	}
	return res, nil
}

func (l *leader) store(req *nodeapi.CommitRequest) *nodeapi.CommitResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, err := record.ParseHeader(req.Batch)
	if err != nil || record.Verify(req.Batch) != nil {
		panic("a batch that does not hold")
	}
	if base, ok := l.known[h.Stream]; ok && h.Stream.Kind == record.StreamClient {
		return &nodeapi.CommitResult{BaseOffset: base, Duplicates: 1}
	}
	base := int64(len(l.logs[req.Partition]))
	l.known[h.Stream] = base
	var d record.Decoder
	if err := d.Reset(req.Batch); err != nil {
		panic(err)
	}
	for {
		r, ok := d.Next()
		if !ok {
			break
		}
		id := record.MessageID(h.Stream, r.Number)
		if l.numbers[id] {
			panic("a number twice: " + id)
		}
		l.numbers[id] = true
		v, err := record.ParseBody(r.Body)
		if err != nil {
			panic(err)
		}
		l.logs[req.Partition] = append(l.logs[req.Partition], string(v.Payload)+" "+id)
	}
	l.batches = append(l.batches, h.Count)
	if l.odd {
		return &nodeapi.CommitResult{BaseOffset: base, Appended: h.Count - 1}
	}
	return &nodeapi.CommitResult{BaseOffset: base, Appended: h.Count}
}

type fixture struct {
	t    *testing.T
	meta *testkit.Meta
	node *leader
	c    *Committer
	top  topic.Topic
}

func setUp(t *testing.T, partitions int) *fixture {
	f := &fixture{t: t, meta: testkit.NewMeta(), node: &leader{
		delay: time.Millisecond, logs: map[int32][]string{}, known: map[record.Stream]int64{}, numbers: map[string]bool{},
	}}
	f.top = topic.Topic{Name: "orders", Incarnation: life, Config: topic.DefaultConfig()}
	f.top.Partitions = partitions
	f.meta.PutMember(topic.Member{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, Release: "0.2.0"})
	leaders := make([]string, partitions)
	for i := range leaders {
		leaders[i] = "s1"
	}
	f.lead(leaders...)
	var err error
	f.c, err = New(Deps{View: f.meta, ID: 0xabc, Registry: prometheus.NewRegistry(), Node: func(id string) nodeapi.Node {
		if id != "s1" {
			return nil
		}
		return f.node
	}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// lead says who leads the partitions; "" is nobody.
func (f *fixture) lead(leaders ...string) {
	var list []topic.Assignment
	for p, id := range leaders {
		list = append(list, topic.Assignment{
			Ref:    topic.Ref{Topic: "orders", Incarnation: life, Partition: int32(p)},
			Leader: id, LeaderEpoch: 1, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}},
		})
	}
	f.meta.PutTopic(f.top, list)
}

func free(payload string) api.Produced {
	return api.Produced{Pin: api.AnyPartition, Message: record.Message{Payload: []byte(payload)}}
}

func pinned(p int32, payload string) api.Produced {
	m := free(payload)
	m.Pin = p
	return m
}

func (f *fixture) commit(timeout time.Duration, msgs ...api.Produced) []api.Committed {
	f.t.Helper()
	out, err := f.c.Commit(&api.CommitRequest{Topic: &f.top, Messages: msgs, Timeout: timeout})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f *fixture) refused(o api.Committed, code problem.Code, applied problem.Applied) {
	f.t.Helper()
	if o.Refusal == nil || o.Refusal.Code != code || o.Refusal.Applied != applied {
		f.t.Errorf("%+v, want %s, applied %s", o.Refusal, code, applied)
	}
}

// stored tells whether the message with this outcome is where it says.
func (f *fixture) stored(o api.Committed, payload string) {
	f.t.Helper()
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	log := f.node.logs[o.Partition]
	if o.Refusal != nil || o.Offset >= int64(len(log)) || log[o.Offset] != payload+" "+o.ID {
		f.t.Errorf("%q: %+v (%v), the log has %v", payload, o, o.Refusal, log)
	}
}

// TestOutcomes: what is known after each kind of answer, and what is tried again.
func TestOutcomes(t *testing.T) {
	refusal := problem.New(problem.NotPartitionLeader, "x")
	lost := &rpc.TransportError{Sent: true, Err: context.Canceled}
	for name, tc := range map[string]struct {
		do       func(call int) error
		after    func(call int) error
		numbered bool
		odd      bool
		code     problem.Code // "": committed
		applied  problem.Applied
		calls    int // at most
		stored   int
	}{
		"at once":                     {calls: 1, stored: 1},
		"refused, then taken":         {do: until(3, refusal), calls: 3, stored: 1},
		"not sent, then taken":        {do: until(3, &rpc.TransportError{Err: context.Canceled}), calls: 3, stored: 1},
		"refused for all the time":    {do: until(1000, refusal), code: problem.PartitionUnavailable, applied: problem.AppliedNo, calls: 20},
		"disk full all the time":      {do: until(1000, problem.New(problem.DiskFull, "x")), code: problem.DiskFull, applied: problem.AppliedNo, calls: 20},
		"no answer":                   {after: until(1, lost), do: nil, code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 1, stored: 1},
		"an answer that knows not":    {do: until(2, problem.New(problem.OutcomeUnknown, "x")), code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 1},
		"an answer for less":          {odd: true, code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 1, stored: 1},
		"a fault of the leader":       {do: until(2, problem.New(problem.Internal, "x")), code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 1},
		"numbered, no answer":         {after: until(1, lost), numbered: true, calls: 2, stored: 1},
		"numbered, none at all":       {after: until(1000, lost), numbered: true, code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 20, stored: 1},
		"out of sequence":             {do: until(1000, problem.New(problem.OutOfSequence, "x").With("expected", 3)), numbered: true, code: problem.OutOfSequence, applied: problem.AppliedNo, calls: 1},
		"lost, then out of sequence":  {do: then(lost, problem.New(problem.OutOfSequence, "x")), numbered: true, code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 2},
		"lost, then refused for good": {do: then(lost, refusal), numbered: true, code: problem.OutcomeUnknown, applied: problem.AppliedUnknown, calls: 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := setUp(t, 1)
				f.node.odd = tc.odd
				if tc.do != nil {
					f.node.do = func(_ int32, call int) error { return tc.do(call) }
				}
				if tc.after != nil {
					f.node.after = func(_ int32, call int) error { return tc.after(call - 1) }
				}
				req := &api.CommitRequest{Topic: &f.top, Messages: []api.Produced{pinned(0, "m")}, Timeout: time.Second}
				if tc.numbered {
					req.Producer = "p"
				}
				begin := time.Now()
				out, err := f.c.Commit(req)
				if err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took > time.Second+10*time.Millisecond {
					t.Errorf("took %s of a second", took)
				}
				if tc.code == "" {
					f.stored(out[0], "m")
				} else {
					f.refused(out[0], tc.code, tc.applied)
				}
				if f.node.calls > tc.calls || len(f.node.logs[0]) != tc.stored {
					t.Errorf("%d calls, %d stored", f.node.calls, len(f.node.logs[0]))
				}
			})
		})
	}
}

// until fails calls below n.
func until(n int, err error) func(int) error {
	return func(call int) error {
		if call < n {
			return err
		}
		return nil
	}
}

func then(first, later error) func(int) error {
	return func(call int) error {
		if call == 1 {
			return first
		}
		return later
	}
}

// TestALeaderIsWaitedFor: with none the message waits, and goes as soon as the view
// shows one; when none comes nothing was stored, and that is said.
func TestALeaderIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setUp(t, 1)
		f.lead("")
		f.refused(f.commit(200*time.Millisecond, pinned(0, "a"))[0], problem.PartitionUnavailable, problem.AppliedNo)
		begin := time.Now()
		time.AfterFunc(1700*time.Millisecond, func() { f.lead("s1") })
		f.stored(f.commit(5*time.Second, pinned(0, "b"))[0], "b")
		if took := time.Since(begin); took > 1710*time.Millisecond {
			t.Errorf("taken %s after the leader was there", took-1700*time.Millisecond)
		}
		f.meta.PutMember(topic.Member{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, Release: "0.1.0"})
		f.refused(f.commit(200*time.Millisecond, pinned(0, "c"))[0], problem.PartitionUnavailable, problem.AppliedNo)
		f.meta.DeleteTopic("orders")
		f.refused(f.commit(time.Second, pinned(0, "d"))[0], problem.TopicNotFound, problem.AppliedNo)
		f.meta.SetState(true, false)
		if _, err := f.c.Commit(&api.CommitRequest{Topic: &f.top, Messages: []api.Produced{free("e")}, Timeout: time.Second}); !problem.HasCode(err, problem.NotReady) {
			t.Errorf("without a replica that is caught up: %v", err)
		}
	})
}

// TestFreeMessagesGoWhereTheyAreTaken: not one fails or waits because a partition has
// no leader, or one that refuses; what is pinned or has a key does.
func TestFreeMessagesGoWhereTheyAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setUp(t, 4)
		f.lead("", "s1", "", "s1")
		f.node.do = func(part int32, _ int) error {
			if part == 3 {
				return problem.New(problem.NotReady, "x")
			}
			return nil
		}
		begin := time.Now()
		for i := range 20 {
			f.stored(f.commit(time.Second, free(fmt.Sprint(i)))[0], fmt.Sprint(i))
		}
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("took %s", took)
		}
		out := f.commit(300*time.Millisecond, free("x"), pinned(0, "y"), pinned(1, "z"), free("w"), pinned(3, "v"))
		f.stored(out[0], "x")
		f.stored(out[2], "z")
		f.stored(out[3], "w")
		for _, i := range []int{1, 4} {
			f.refused(out[i], problem.PartitionUnavailable, problem.AppliedNo)
		}
	})
}

// TestWhoWaitsTogetherIsSentTogether: a lone message is sent at once; while calls are
// under way others gather, and get the offsets and ids that are theirs.
func TestWhoWaitsTogetherIsSentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setUp(t, 1)
		f.node.delay = 10 * time.Millisecond
		begin := time.Now()
		f.stored(f.commit(time.Second, free("lone"))[0], "lone")
		if took := time.Since(begin); took != 10*time.Millisecond {
			t.Errorf("a lone message took %s", took)
		}
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				a, b := fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i)
				out := f.commit(time.Second, free(a), free(b))
				f.stored(out[0], a)
				f.stored(out[1], b)
				if out[1].Offset != out[0].Offset+1 {
					t.Errorf("one request at %d and %d", out[0].Offset, out[1].Offset)
				}
			})
		}
		wg.Wait()
		if f.node.calls > 5 || time.Since(begin) > 40*time.Millisecond {
			t.Errorf("%d calls of %v, %s", f.node.calls, f.node.batches, time.Since(begin))
		}
	})
}

// TestASilentLeaderHoldsNobodyBack: after a while other calls are made beside those
// that have no answer, and what was not sent is said to be not stored.
func TestASilentLeaderHoldsNobodyBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setUp(t, 1)
		gate := make(chan struct{})
		f.node.do = func(_ int32, call int) error {
			if call <= callsPerLane {
				<-gate
			}
			return nil
		}
		var wg sync.WaitGroup
		for range callsPerLane {
			wg.Go(func() {
				f.refused(f.commit(20*time.Second, free("x"))[0], problem.OutcomeUnknown, problem.AppliedUnknown)
			})
		}
		synctest.Wait()
		f.refused(f.commit(overdue/2, free("early"))[0], problem.PartitionUnavailable, problem.AppliedNo)
		begin := time.Now()
		f.stored(f.commit(5*time.Second, free("late"))[0], "late")
		if took := time.Since(begin); took > overdue {
			t.Errorf("waited %s", took)
		}
		wg.Wait()
		close(gate)
	})
}

// TestDraining: what was not sent is refused at once, what is under way is waited for.
func TestDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := setUp(t, 2)
		f.lead("s1", "")
		f.node.delay = 300 * time.Millisecond
		var wg sync.WaitGroup
		wg.Go(func() { f.stored(f.commit(5*time.Second, pinned(0, "sent"))[0], "sent") })
		wg.Go(func() { f.refused(f.commit(5*time.Second, pinned(1, "waits"))[0], problem.Draining, problem.AppliedNo) })
		begin := time.Now()
		synctest.Wait()
		f.c.Drain()
		wg.Wait()
		if took := time.Since(begin); took != 300*time.Millisecond || f.c.CanCommit() == nil {
			t.Errorf("took %s", took)
		}
	})
}

func TestPlan(t *testing.T) {
	turn := int32(0)
	place := func() int32 { turn++; return turn % 3 }
	top := &topic.Topic{Name: "orders", Config: topic.Config{Partitions: 3}}
	big := func(p int32) api.Produced { return pinned(p, strings.Repeat("x", 3<<20)) }
	for name, tc := range map[string]struct {
		msgs []api.Produced
		want string // groups: partition, free, messages
		code problem.Code
	}{
		"free ones go together":           {msgs: []api.Produced{free("a"), free("b")}, want: "1 true [0 1]"},
		"by partition":                    {msgs: []api.Produced{pinned(2, "a"), pinned(0, "b"), pinned(2, "c")}, want: "2 false [0 2], 0 false [1]"},
		"free ones go elsewhere":          {msgs: []api.Produced{free("a"), pinned(1, "b")}, want: "1 false [1], 2 true [0]"},
		"too much for one":                {msgs: []api.Produced{big(1), big(1), big(1)}, code: problem.BatchTooLarge},
		"as much for three":               {msgs: []api.Produced{big(0), big(1), big(2), big(0), big(1)}, want: "0 false [0 3], 1 false [1 4], 2 false [2]"},
		"free ones spread when they must": {msgs: []api.Produced{big(-1), big(-1), big(-1)}, want: "1 true [0 1], 2 true [2]"},
		"out of range":                    {msgs: []api.Produced{pinned(3, "a")}, code: problem.PartitionOutOfRange},
	} {
		turn = 0
		groups, err := plan(top, tc.msgs, place)
		var got []string
		for _, g := range groups {
			got = append(got, fmt.Sprint(g.partition, g.free, g.messages))
		}
		if strings.Join(got, ", ") != tc.want || (tc.code == "") != (err == nil) || err != nil && !problem.HasCode(err, tc.code) {
			t.Errorf("%s: %s, %v; want %s %s", name, got, err, tc.want, tc.code)
		}
	}
}

// TestTake: one stream and one body's worth per call, in order, one unit at least.
func TestTake(t *testing.T) {
	u := func(numbered bool, size, records int) *unit {
		return &unit{group: group{size: size}, numbered: numbered, bodies: make([][]byte, records)}
	}
	const half = maxGroupBytes / 2
	for name, tc := range map[string]struct {
		waiting []*unit
		want    int
	}{
		"all":                     {[]*unit{u(false, 1, 1), u(false, 1, 5), u(false, 1, 1)}, 3},
		"one that is numbered":    {[]*unit{u(true, 1, 1), u(true, 1, 1), u(false, 1, 1)}, 1},
		"up to one that is":       {[]*unit{u(false, 1, 1), u(false, 1, 1), u(true, 1, 1), u(false, 1, 1)}, 2},
		"as much as fits":         {[]*unit{u(false, half, 1), u(false, half, 1), u(false, 1, 1)}, 2},
		"as many as a call takes": {[]*unit{u(false, 1, maxRecords-1), u(false, 1, 1), u(false, 1, 1)}, 2},
		"the largest":             {[]*unit{u(false, maxGroupBytes, 1), u(false, 1, 1)}, 1},
	} {
		if next, rest := take(tc.waiting); len(next) != tc.want || len(next)+len(rest) != len(tc.waiting) {
			t.Errorf("%s: %d and %d, want %d first", name, len(next), len(rest), tc.want)
		}
	}
}

// TestProducerStreamGolden: the stream of a producer is in logs for ever.
func TestProducerStreamGolden(t *testing.T) {
	ref := topic.Ref{Topic: "orders", Incarnation: 0x3f9a17c4e2b08d51, Partition: 2}
	got := producerStream(ref, "billing-1")
	const want = "5 b2400315a0a8f542 3a6b2806 e57a159c" // made with another implementation of SHA-256
	if s := fmt.Sprintf("%d %s %08x %08x", got.Kind, got.ID, got.A, got.B); s != want {
		t.Errorf("%s, want %s", s, want)
	}
	other := ref
	other.Partition = 3
	if producerStream(other, "billing-1").ID == got.ID || producerStream(ref, "billing-2") == got {
		t.Error("two producers share a stream")
	}
}
