package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// fakeNode leases from queues in memory, arms wake-ups, and hangs on request.
type fakeNode struct {
	nodeapi.Node // what the router does not call
	id           string

	mu       sync.Mutex
	queues   map[int32][]int64 // free offsets
	next     map[int32]int64
	leased   map[string]bool
	armed    map[int32]bool
	claims   int // calls
	takers   int // of all calls together
	most     int // takers of one call
	settled  []nodeapi.SettleOp
	settles  int // calls
	hang     chan struct{}
	err      error
	settleOK func() error
	delay    time.Duration
	router   *Router
	topic    *topic.Topic
	mute     bool // wake-ups are lost
}

func (f *fakeNode) wait(ctx context.Context) error {
	f.mu.Lock()
	hang, err, delay := f.hang, f.err, f.delay
	f.mu.Unlock()
	if delay > 0 && !sleep(ctx, delay) {
		return &rpc.TransportError{Sent: true, Err: ctx.Err()}
	}
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return &rpc.TransportError{Sent: true, Err: ctx.Err()}
		}
	}
	return err
}

func (f *fakeNode) Claim(ctx context.Context, req *nodeapi.ClaimRequest) (*nodeapi.ClaimResult, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claims++
	n := 0
	res := &nodeapi.ClaimResult{}
	for _, c := range req.Claims {
		n += len(c.Takers)
		res.Claims = append(res.Claims, f.claimLocked(&c))
	}
	f.takers += n
	f.most = max(f.most, n)
	return res, nil
}

func (f *fakeNode) claimLocked(c *nodeapi.Claim) nodeapi.ClaimAnswer {
	ans := nodeapi.ClaimAnswer{Deliveries: make([][]nodeapi.Delivery, len(c.Takers))}
	for i, t := range c.Takers {
		for _, p := range c.Partitions {
			for len(f.queues[p.Partition]) > 0 && len(ans.Deliveries[i]) < t.Max {
				off := f.queues[p.Partition][0]
				f.queues[p.Partition] = f.queues[p.Partition][1:]
				f.leased[fmt.Sprintf("%d/%d", p.Partition, off)] = true
				ans.Deliveries[i] = append(ans.Deliveries[i], nodeapi.Delivery{Partition: p.Partition, Offset: off, Epoch: 1})
			}
		}
	}
	for _, p := range c.Partitions {
		status := nodeapi.ClaimMore
		if len(f.queues[p.Partition]) == 0 {
			status = nodeapi.ClaimEmpty
			f.armed[p.Partition] = c.Arm
		}
		ans.Partitions = append(ans.Partitions, status)
	}
	return ans
}

func (f *fakeNode) Settle(ctx context.Context, req *nodeapi.SettleRequest) (*nodeapi.SettleResult, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	defer f.put(0, 0) // what was released wakes, as a commit does
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settles++
	if f.settleOK != nil {
		if err := f.settleOK(); err != nil {
			return nil, err
		}
	}
	res := &nodeapi.SettleResult{}
	for _, op := range req.Ops {
		f.settled = append(f.settled, op)
		id := fmt.Sprintf("%d/%d", op.Partition, op.Offset)
		if !f.leased[id] {
			res.Statuses = append(res.Statuses, nodeapi.SettleLost)
			continue
		}
		delete(f.leased, id)
		if op.Kind == nodeapi.SettleRelease {
			f.queues[op.Partition] = append(f.queues[op.Partition], op.Offset)
		}
		res.Statuses = append(res.Statuses, nodeapi.SettleOK)
	}
	return res, nil
}

func (f *fakeNode) Read(ctx context.Context, _ *nodeapi.ReadRequest) (*nodeapi.ReadResult, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	return &nodeapi.ReadResult{}, nil
}

func (f *fakeNode) Details(ctx context.Context, req *nodeapi.DetailsRequest) (*nodeapi.DetailsResult, error) {
	if err := f.wait(ctx); err != nil {
		return nil, err
	}
	res := &nodeapi.DetailsResult{}
	for _, p := range req.Partitions {
		res.Partitions = append(res.Partitions, nodeapi.PartitionDetails{Partition: p, Epoch: 1})
	}
	return res, nil
}

// put commits n records and wakes whoever armed the partition.
func (f *fakeNode) put(partition int32, n int) {
	f.mu.Lock()
	for range n {
		f.queues[partition] = append(f.queues[partition], f.next[partition])
		f.next[partition]++
	}
	wake := f.armed[partition] && !f.mute
	f.armed[partition] = false
	f.mu.Unlock()
	if wake {
		_ = f.router.Wake(context.Background(), &gatewayapi.WakeRequest{Ready: []gatewayapi.Ready{{
			Ref: topic.Ref{Topic: f.topic.Name, Incarnation: f.topic.Incarnation, Partition: partition}, Epoch: 1,
		}}})
	}
}

func (f *fakeNode) count() (claims, takers, leased int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims, f.takers, len(f.leased)
}

type fixture struct {
	*testing.T
	meta  *testkit.Meta
	nodes []*fakeNode
	t     *topic.Topic
	r     *Router
}

// run gives a router over a topic with that many partitions, one node each, in a
// bubble of fake time.
func run(t *testing.T, partitions int, test func(*fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, meta: testkit.NewMeta(), t: &topic.Topic{Name: "a", Incarnation: 7, Config: topic.DefaultConfig()}}
		f.t.Partitions = partitions
		byID := map[string]nodeapi.Node{}
		var list []topic.Assignment
		for i := range partitions {
			n := &fakeNode{
				id: fmt.Sprintf("n%d", i), queues: map[int32][]int64{}, next: map[int32]int64{}, leased: map[string]bool{},
				armed: map[int32]bool{}, topic: f.t,
			}
			f.nodes = append(f.nodes, n)
			byID[n.id] = n
			f.meta.PutMember(topic.Member{ID: n.id, Role: topic.RoleStorage, Status: topic.StatusAlive})
			list = append(list, topic.Assignment{Ref: topic.Ref{Topic: "a", Incarnation: 7, Partition: int32(i)}, Leader: n.id, LeaderEpoch: 1})
		}
		f.meta.PutTopic(*f.t, list)
		var err error
		f.r, err = New(Config{GatewayID: "g", MaxWaiting: 200}, Deps{
			View: f.meta, Node: func(id string) nodeapi.Node { return byID[id] }, Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range f.nodes {
			n.router = f.r
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- f.r.Run(ctx) }()
		test(f)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

type answer struct {
	res  *api.ConsumeResult
	err  error
	took time.Duration
}

func (f *fixture) request(wait time.Duration) *api.ConsumeRequest {
	return &api.ConsumeRequest{Topic: f.t, Partition: api.AnyPartition, Wait: wait, Max: 1, MaxBytes: 1 << 20}
}

func (f *fixture) start(req *api.ConsumeRequest) <-chan answer {
	ch := make(chan answer, 1)
	go func() {
		begin := time.Now()
		res, err := f.r.Consume(context.Background(), req)
		ch <- answer{res, err, time.Since(begin)}
	}()
	return ch
}

func (f *fixture) consume(wait time.Duration) answer { return <-f.start(f.request(wait)) }

func (f *fixture) expect(a answer, deliveries int) {
	f.Helper()
	if a.err != nil || len(a.res.Deliveries) != deliveries {
		f.Fatalf("answer %+v, %v; want %d deliveries", a.res, a.err, deliveries)
	}
}

func TestConsumeFindsWhatIsThere(t *testing.T) {
	run(t, 3, func(f *fixture) {
		f.nodes[2].put(2, 1)
		f.expect(f.consume(0), 1)
		a := f.consume(0)
		f.expect(a, 0)
		if a.took > 10*time.Millisecond {
			t.Fatalf("an empty poll took %s", a.took)
		}
		f.nodes[0].put(0, 1)
		f.expect(f.consume(0), 1)
	})
}

func TestIdleWaitersCostNothingAndAreWoken(t *testing.T) {
	run(t, 3, func(f *fixture) {
		var waits []<-chan answer
		for range 100 {
			waits = append(waits, f.start(f.request(9*time.Second)))
		}
		synctest.Wait()
		before := f.claims()
		<-time.After(8 * time.Second)
		synctest.Wait()
		if got := f.claims() - before; got != 0 {
			t.Fatalf("%d claims while idle", got)
		}
		f.nodes[1].put(1, 30)
		synctest.Wait()
		if _, _, leased := f.nodes[1].count(); leased != 30 {
			t.Fatalf("%d leased", leased)
		}
		served := 0
		for _, w := range waits {
			a := <-w
			served += len(a.res.Deliveries)
		}
		if served != 30 {
			t.Fatalf("%d served", served)
		}
	})
}

func (f *fixture) claims() (n int) {
	for _, node := range f.nodes {
		c, _, _ := node.count()
		n += c
	}
	return n
}

func TestNoLeaseWithoutATaker(t *testing.T) {
	run(t, 4, func(f *fixture) {
		for i, n := range f.nodes {
			n.put(int32(i), 100)
			n.delay = 5 * time.Millisecond
		}
		var waits []<-chan answer
		for range 10 {
			waits = append(waits, f.start(f.request(time.Second)))
		}
		for _, w := range waits {
			f.expect(<-w, 1)
		}
		leased := 0
		for _, n := range f.nodes {
			_, takers, l := n.count()
			leased += l
			if takers > 10 {
				t.Fatalf("%d takers at one node", takers)
			}
		}
		if leased != 10 {
			t.Fatalf("%d leases for 10 consumers", leased)
		}
	})
}

func TestPartitionsAreServedInTurn(t *testing.T) {
	run(t, 3, func(f *fixture) {
		for i, n := range f.nodes {
			n.put(int32(i), 100)
		}
		seen := map[int32]int{}
		for range 60 {
			a := f.consume(time.Second)
			f.expect(a, 1)
			seen[a.res.Deliveries[0].Partition]++
		}
		for p := range int32(3) {
			if seen[p] < 10 {
				t.Fatalf("served %v", seen)
			}
		}
	})
}

func TestHungNodeDoesNotUseUpTheWait(t *testing.T) {
	run(t, 3, func(f *fixture) {
		f.nodes[0].hang = make(chan struct{})
		for _, wait := range []time.Duration{0, 2 * time.Second} {
			a := f.consume(wait)
			f.expect(a, 0)
			if a.took > wait+500*time.Millisecond || a.res.Unavailable != 1 {
				t.Fatalf("wait %s took %s, %d unavailable", wait, a.took, a.res.Unavailable)
			}
		}
		f.nodes[2].put(2, 2)
		for range 2 {
			a := f.consume(2 * time.Second)
			f.expect(a, 1)
			if a.took > 400*time.Millisecond {
				t.Fatalf("a delivery took %s", a.took)
			}
		}
	})
}

// TestWhatNobodyCameToAskIsNotEmpty: a consume whose wait is over before all were asked
// says of how many it knows nothing.
func TestWhatNobodyCameToAskIsNotEmpty(t *testing.T) {
	run(t, 4, func(f *fixture) {
		for i, n := range f.nodes { // each answers 150 ms after the one before
			n.hang = make(chan struct{})
			time.AfterFunc(time.Duration(i+1)*150*time.Millisecond, func() { close(n.hang) })
		}
		a := f.consume(0)
		f.expect(a, 0)
		if a.res.Unavailable == 0 {
			t.Fatalf("nothing was unavailable after %s", a.took)
		}
		time.Sleep(time.Second) // all of them answer at once now
		if a := f.consume(0); a.err != nil || a.res.Unavailable != 0 {
			t.Fatalf("%+v, %v", a.res, a.err)
		}
	})
}

func TestLateAnswerGoesToAnotherOrBack(t *testing.T) {
	run(t, 1, func(f *fixture) {
		n := f.nodes[0]
		n.put(0, 1)
		n.hang = make(chan struct{})
		f.expectDown(f.consume(100*time.Millisecond), time.Second)
		close(n.hang)
		n.mu.Lock()
		n.hang = nil
		n.mu.Unlock()
		synctest.Wait()
		if _, _, leased := n.count(); leased != 0 {
			t.Fatalf("%d leases are left without a taker", leased)
		}
		f.expect(f.consume(time.Second), 1)
	})
}

func (f *fixture) expectDown(a answer, most time.Duration) {
	f.Helper()
	if !problem.HasCode(a.err, problem.PartitionUnavailable) || a.took > most {
		f.Fatalf("answer %+v, %v after %s", a.res, a.err, a.took)
	}
}

func TestGoneClientGetsNoLease(t *testing.T) {
	run(t, 1, func(f *fixture) {
		req := f.request(5 * time.Second)
		gone := false
		req.Gone = func() bool { return gone }
		first := f.start(req)
		synctest.Wait()
		second := f.start(f.request(5 * time.Second))
		synctest.Wait()
		gone = true
		f.nodes[0].put(0, 1)
		f.expect(<-first, 0)
		f.expect(<-second, 1)
	})
}

func TestLeaderChangeIsFollowed(t *testing.T) {
	run(t, 2, func(f *fixture) {
		w := f.start(f.request(5 * time.Second))
		synctest.Wait()
		f.nodes[1].put(0, 1) // the record is on the other node, which never armed
		f.meta.PutTopic(*f.t, []topic.Assignment{
			{Ref: topic.Ref{Topic: "a", Incarnation: 7}, Leader: "n1", LeaderEpoch: 2},
			{Ref: topic.Ref{Topic: "a", Incarnation: 7, Partition: 1}, Leader: "n1", LeaderEpoch: 1},
		})
		a := <-w
		f.expect(a, 1)
		if a.took > 100*time.Millisecond {
			t.Fatalf("after %s", a.took)
		}
	})
}

func TestLostWakeUpIsMadeUpFor(t *testing.T) {
	run(t, 1, func(f *fixture) {
		w := f.start(f.request(30 * time.Second))
		synctest.Wait()
		f.nodes[0].mute = true
		f.nodes[0].put(0, 1)
		a := <-w
		f.expect(a, 1)
		if a.took > askAgain+time.Second {
			t.Fatalf("after %s", a.took)
		}
	})
}

func TestTopicEndEndsWaiters(t *testing.T) {
	run(t, 2, func(f *fixture) {
		w := f.start(f.request(30 * time.Second))
		synctest.Wait()
		f.meta.DeleteTopic("a")
		a := <-w
		if !problem.HasCode(a.err, problem.TopicNotFound) || a.took > time.Second {
			t.Fatalf("%v after %s", a.err, a.took)
		}
		if a := f.consume(time.Second); !problem.HasCode(a.err, problem.TopicNotFound) {
			t.Fatalf("consume of an ended topic: %v", a.err)
		}
	})
}

func TestPinnedConsumeTakesOnlyItsPartition(t *testing.T) {
	run(t, 2, func(f *fixture) {
		f.nodes[0].put(0, 1)
		req := f.request(time.Second)
		req.Partition = 1
		w := f.start(req)
		synctest.Wait()
		f.nodes[1].put(1, 1)
		a := <-w
		f.expect(a, 1)
		if a.res.Deliveries[0].Partition != 1 {
			t.Fatalf("got %+v", a.res.Deliveries)
		}
		f.nodes[1].err = problem.New(problem.NotReady, "no")
		req.Wait = 0
		f.expectDown(<-f.start(req), 500*time.Millisecond)
	})
}

func TestTooManyWaiters(t *testing.T) {
	run(t, 1, func(f *fixture) {
		for range 200 {
			f.start(f.request(time.Second))
		}
		synctest.Wait()
		if a := f.consume(0); !problem.HasCode(a.err, problem.TooManyRequests) {
			t.Fatalf("answer %v", a.err)
		}
		<-time.After(2 * time.Second)
		f.expect(f.consume(0), 0)
	})
}

func TestSettlementsShareCalls(t *testing.T) {
	run(t, 2, func(f *fixture) {
		n := f.nodes[0]
		n.delay = 10 * time.Millisecond
		n.put(0, 100)
		n.mu.Lock()
		for i := range 100 {
			n.leased[fmt.Sprintf("0/%d", i)] = true
		}
		n.mu.Unlock()
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				st, err := f.r.Settle(context.Background(), f.t, []nodeapi.SettleOp{
					{Ref: topic.Ref{Topic: "a", Incarnation: 7}, Kind: nodeapi.SettleAck, Offset: int64(i)},
					{Ref: topic.Ref{Topic: "a", Incarnation: 7, Partition: 1}, Kind: nodeapi.SettleAck, Offset: 5},
				})
				if err != nil || st[0] != nodeapi.SettleOK || st[1] != nodeapi.SettleLost {
					t.Errorf("settle %d: %v, %v", i, st, err)
				}
			})
		}
		wg.Wait()
		if n.settles > 5 {
			t.Fatalf("%d calls", n.settles)
		}
	})
}

func TestSettleOutcomes(t *testing.T) {
	run(t, 1, func(f *fixture) {
		n := f.nodes[0]
		settle := func() ([]nodeapi.SettleStatus, error) {
			n.mu.Lock()
			n.leased["0/1"] = true
			n.mu.Unlock()
			return f.r.Settle(context.Background(), f.t, []nodeapi.SettleOp{{Ref: topic.Ref{Topic: "a", Incarnation: 7}, Kind: nodeapi.SettleAck, Offset: 1}})
		}
		lost := 2
		n.settleOK = func() error {
			if lost--; lost >= 0 {
				return &rpc.TransportError{Sent: true, Err: errors.New("reset")}
			}
			return nil
		}
		if st, err := settle(); err != nil || st[0] != nodeapi.SettleOK { // asked again
			t.Fatalf("%v, %v", st, err)
		}
		n.settleOK = func() error { return &rpc.TransportError{Err: errors.New("refused")} }
		if st, err := settle(); err != nil || st[0] != nodeapi.SettleUnavailable {
			t.Fatalf("%v, %v", st, err)
		}
		n.settleOK, n.hang = nil, make(chan struct{})
		begin := time.Now()
		if _, err := settle(); !problem.HasCode(err, problem.OutcomeUnknown) || time.Since(begin) > 5100*time.Millisecond {
			t.Fatalf("%v after %s", err, time.Since(begin))
		}
	})
}

func TestDetailsOfAHungNodeAreUnavailable(t *testing.T) {
	run(t, 3, func(f *fixture) {
		f.nodes[1].hang = make(chan struct{})
		begin := time.Now()
		rows, err := f.r.Details(context.Background(), f.t)
		if err != nil || time.Since(begin) > 2100*time.Millisecond {
			t.Fatalf("%v after %s", err, time.Since(begin))
		}
		if rows[0].Status != "ok" || rows[1].Status != "unavailable" || rows[1].Details != nil || rows[2].Details == nil {
			t.Fatalf("rows %+v", rows)
		}
	})
}
