package storage_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// inBubble runs a test of one node in fake time.
func inBubble(t *testing.T, cfg topic.Config, test func(t *testing.T, p *process)) {
	testkit.Bubble(t, func(t *testing.T) {
		c := newCluster(t, vfs.NewMem(), "data")
		c.put("orders", 1, cfg)
		p := c.start()
		defer p.shutDown()
		test(t, p)
	})
}

func payloads(ds []nodeapi.Delivery) []string {
	var out []string
	for _, d := range ds {
		out = append(out, payload(d))
	}
	return out
}

func TestLeaseFlow(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, 1, 2, 3, 4))
		ds := p.take("orders", 3)
		if got := payloads(ds); !slices.Equal(got, []string{"1-1", "1-2", "1-3"}) {
			t.Fatalf("took %v", got)
		}
		if d := ds[0]; d.DeliveryCount != 1 || d.LeaseMS != 30_000 || d.ID != "0000000000000001-1" || d.Epoch != p.epoch || d.CommitMS == 0 {
			t.Fatalf("%+v", d)
		}
		p.ack("orders", ds[0])
		p.ack("orders", ds[0]) // a repeat
		if st := p.settle("orders", nodeapi.SettleNack, 0, ds[0]); st[0] != nodeapi.SettleLost {
			t.Fatalf("nack of a settled lease: %d", st[0])
		}
		if st := p.settle("orders", nodeapi.SettleNack, 10_000, ds[1]); st[0] != nodeapi.SettleOK {
			t.Fatalf("nack: %d", st[0])
		}
		if st := p.settle("orders", nodeapi.SettleExtend, 60_000, ds[2]); st[0] != nodeapi.SettleOK {
			t.Fatalf("extend: %d", st[0])
		}
		d := p.details("orders", 0)
		if d.Frontier != 1 || d.InFlight != 1 || d.HighWatermark != 4 {
			t.Fatalf("%+v", d)
		}
		if got := payloads(p.take("orders", 10)); !slices.Equal(got, []string{"1-4"}) {
			t.Fatalf("while one is delayed and one leased: %v", got)
		}
		pass(31 * time.Second) // the delay and the lease of 1-4 are over, the extended one is not
		again := p.take("orders", 10)
		if got := payloads(again); !slices.Equal(got, []string{"1-2", "1-4"}) || again[0].DeliveryCount != 2 {
			t.Fatalf("after 31 s: %v", got)
		}
		p.ack("orders", append(again, ds[2])...)
		if d := p.details("orders", 0); d.Frontier != 4 || d.InFlight != 0 || d.OldestUnsettledMS != 0 {
			t.Fatalf("%+v", d)
		}
	})
}

func TestReleaseIsNotCounted(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, 1))
		d := p.take("orders", 1)[0]
		p.settle("orders", nodeapi.SettleRelease, 0, d)
		if d = p.take("orders", 1)[0]; d.DeliveryCount != 1 {
			t.Fatalf("delivery %d", d.DeliveryCount)
		}
	})
}

// Case 109: with no request at all the gauge of leases goes back to 0.
func TestLeasesEndByThemselves(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, seqs(1, 1000)...))
		if n := len(p.take("orders", 1000)); n != 1000 {
			t.Fatalf("took %d", n)
		}
		p.claimed("orders", 1, true)
		pass(30 * time.Second)
		p.awaitWake("gateway-1")
		if n := p.details("orders", 0).InFlight; n != 0 {
			t.Fatalf("%d in flight after the visibility timeout", n)
		}
	})
}

// Each way in which something becomes deliverable wakes whoever armed, once.
func TestWakeArrivesExactlyWhenArmed(t *testing.T) {
	cfg := onePartition()
	cfg.MaxInFlight = 2
	inBubble(t, cfg, func(t *testing.T, p *process) {
		quiet := func(why string) {
			t.Helper()
			synctest.Wait()
			if n := len(p.wakes); n != 0 {
				t.Fatalf("%d wake-ups %s", n, why)
			}
		}
		p.mustCommit("orders", 0, batch(1, 1))
		p.take("orders", 1)
		quiet("of a gateway that did not arm")
		if st := p.claimed("orders", 1, true).Partitions[0]; st != nodeapi.ClaimEmpty {
			t.Fatalf("status %d", st)
		}
		quiet("without anything new")
		p.mustCommit("orders", 0, batch(1, 2)) // a commit
		p.awaitWake("gateway-1")
		quiet("after the one")
		p.mustCommit("orders", 0, batch(1, 3))
		quiet("once it was told")
		second := p.take("orders", 1) // 2 leases: the cap
		a := p.claimed("orders", 1, true)
		if a.Partitions[0] != nodeapi.ClaimCapped {
			t.Fatalf("status %d at the cap", a.Partitions[0])
		}
		p.mustCommit("orders", 0, batch(1, 4))
		quiet("although the cap holds everything back")
		p.ack("orders", second...) // the cap is freed
		p.awaitWake("gateway-1")
		third := p.take("orders", 1)
		p.claimed("orders", 1, true)
		p.settle("orders", nodeapi.SettleNack, 0, third...)
		p.awaitWake("gateway-1")
		third = p.take("orders", 1)
		p.claimed("orders", 1, true)
		p.settle("orders", nodeapi.SettleRelease, 0, third...)
		p.awaitWake("gateway-1")
		p.take("orders", 1)
		p.claimed("orders", 1, true)
		pass(30 * time.Second) // expiry
		p.awaitWake("gateway-1")
	})
}

// A wake-up is repeated while it fails and the member lives, and not when it is dead.
func TestWakeIsRepeated(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mu.Lock()
		p.deaf["gateway-1"] = true
		p.mu.Unlock()
		p.claimed("orders", 1, true)
		p.mustCommit("orders", 0, batch(1, 1))
		pass(5 * time.Second)
		p.mu.Lock()
		p.deaf["gateway-1"] = false
		p.mu.Unlock()
		p.awaitWake("gateway-1")
		p.mu.Lock()
		p.deaf["gateway-1"] = true
		p.mu.Unlock()
		p.take("orders", 1)
		p.claimed("orders", 1, true)
		p.meta.PutMember(topic.Member{ID: "gateway-1", Role: topic.RoleGateway, Status: topic.StatusDead})
		p.mustCommit("orders", 0, batch(1, 2))
		pass(5 * time.Second)
		p.mu.Lock()
		p.deaf["gateway-1"] = false
		p.mu.Unlock()
		pass(5 * time.Second)
		synctest.Wait()
		if n := len(p.wakes); n != 0 {
			t.Fatalf("%d wake-ups of a dead gateway", n)
		}
	})
}

func TestClaimManyTakersFairOverPartitions(t *testing.T) {
	cfg := topic.DefaultConfig()
	cfg.Partitions = 4
	c := newCluster(t, vfs.NewMem(), "data")
	c.put("orders", 1, cfg)
	p := c.start()
	defer p.shutDown()
	for part := range int32(4) {
		p.mustCommit("orders", part, batch(int(part)+1, seqs(1, 100)...))
	}
	seen := map[int32]int{}
	for range 100 {
		for _, d := range p.take("orders", 1) {
			seen[d.Partition]++
		}
	}
	for part := range int32(4) {
		if seen[part] < 20 || seen[part] > 30 {
			t.Fatalf("100 single takes came from %v", seen)
		}
	}
	a := p.claimed("orders", 1000, true)
	if len(a.Deliveries[0]) != 300 {
		t.Fatalf("a taker of 1000 got %d of 300", len(a.Deliveries[0]))
	}
	for _, st := range a.Partitions {
		if st != nodeapi.ClaimEmpty {
			t.Fatalf("statuses %v", a.Partitions)
		}
	}
}

func TestTakerBytes(t *testing.T) {
	_, p := startOrders(t, vfs.NewMem())
	defer p.shutDown()
	p.mustCommit("orders", 0, batch(1, 1, 2, 3, 4)) // 3 bytes each
	ask := func(bytes int) nodeapi.ClaimAnswer {
		res, err := p.node.Claim(t.Context(), &nodeapi.ClaimRequest{Gateway: "gateway-1", Claims: []nodeapi.Claim{{
			Topic: "orders", Incarnation: 1, Takers: []nodeapi.Taker{{Max: 10, MaxBytes: bytes}},
			Partitions: []nodeapi.ClaimPartition{{DiskID: diskID, Epoch: p.epoch}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return res.Claims[0]
	}
	if a := ask(1); len(a.Deliveries[0]) != 1 {
		t.Fatalf("the first always fits: %v", payloads(a.Deliveries[0]))
	}
	if a := ask(8); len(a.Deliveries[0]) != 2 || a.Partitions[0] != nodeapi.ClaimMore {
		t.Fatalf("8 bytes: %v", payloads(a.Deliveries[0]))
	}
	if a := ask(100); len(a.Deliveries[0]) != 1 || a.Deliveries[0][0].DeliveryCount != 1 {
		t.Fatalf("the rest: %v", a.Deliveries[0])
	}
}

// What an old life of a name left behind is never served by the next one.
func TestDeleteAndCreateAgain(t *testing.T) {
	fs := vfs.NewMem()
	c := newCluster(t, fs, "data")
	c.put("orders", 0xa, onePartition())
	p := c.start()
	p.mustCommit("orders", 0, batch(1, 1, 2, 3))
	held := p.take("orders", 2)
	old := c.topics["orders"]
	c.remove("orders")
	if st := p.settleAs("orders", old, held[0]); st != nodeapi.SettleLost {
		t.Errorf("ack of a deleted life: %d", st)
	}
	c.put("orders", 0xb, onePartition())
	if n := len(p.take("orders", 10)); n != 0 {
		t.Fatalf("the new life delivered %d records", n)
	}
	p.mustCommit("orders", 0, batch(1, 3)) // a number that the old life had
	if got := p.replay("orders", 0); !slices.Equal(got, []string{"1-3"}) {
		t.Fatalf("the new life holds %v", got)
	}
	if st := p.settleAs("orders", old, held[1]); st != nodeapi.SettleLost {
		t.Errorf("ack of a deleted life: %d", st)
	}
	testkit.Poll(t, testkit.Patience, "nothing of the old life is left", func() bool { return names(t, fs) == "orders" })
	p.shutDown()
	// Deleted and created while the node is down.
	c.remove("orders")
	c.put("orders", 0xc, onePartition())
	p = c.start()
	defer p.shutDown()
	if got := p.replay("orders", 0); len(got) != 0 {
		t.Fatalf("after a restart the newest life holds %v", got)
	}
	testkit.Poll(t, testkit.Patience, "nothing of the old lives is left", func() bool { return names(t, fs) == "orders" })
	if calls, _ := c.timesAsked(); calls < 2 {
		t.Errorf("the metastore was asked %d times", calls)
	}
}

// settleAs acks a delivery of a life that may be over.
func (p *process) settleAs(name string, t topic.Topic, d nodeapi.Delivery) nodeapi.SettleStatus {
	res, err := p.node.Settle(p.t.Context(), &nodeapi.SettleRequest{Ops: []nodeapi.SettleOp{{
		Ref: topic.Ref{Topic: name, Incarnation: t.Incarnation}, Kind: nodeapi.SettleAck, Offset: d.Offset, Epoch: d.Epoch, Nonce: d.Nonce,
	}}})
	if err != nil {
		p.t.Fatal(err)
	}
	return res.Statuses[0]
}

// A waiter of a deleted topic is told that it is gone, and the object goes.
func TestClaimOfDeletedTopic(t *testing.T) {
	inBubble(t, onePartition(), func(t *testing.T, p *process) {
		p.mustCommit("orders", 0, batch(1, 1))
		claim := nodeapi.Claim{
			Topic: "orders", Incarnation: 1, Takers: []nodeapi.Taker{{Max: 1, MaxBytes: 1}},
			Partitions: []nodeapi.ClaimPartition{{DiskID: diskID, Epoch: p.epoch}},
		}
		p.remove("orders")
		res, err := p.node.Claim(t.Context(), &nodeapi.ClaimRequest{Gateway: "gateway-1", Claims: []nodeapi.Claim{claim}})
		if err != nil || res.Claims[0].Partitions[0] != nodeapi.ClaimGone || len(res.Claims[0].Deliveries[0]) != 0 {
			t.Fatalf("%+v %v", res, err)
		}
		pass(time.Second)
		synctest.Wait()
		if n, err := testutil.GatherAndCount(p.reg, "narad_partitions_open"); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		if v := gauge(t, p, "narad_partitions_open"); v != 0 {
			t.Fatalf("%v partitions open after the delete", v)
		}
	})
}

func gauge(t testing.TB, p *process, name string) float64 {
	t.Helper()
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

// A graceful stop keeps every ack, delay and count; a crash of the process
// loses at most what was settled after the last write, a tenth of a second ago.
func TestPositionsSurvive(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		c, p := startOrders(t, fs)
		p.mustCommit("orders", 0, batch(1, seqs(0, 20)...))
		ds := p.take("orders", 10)
		p.ack("orders", ds[0], ds[1], ds[4])
		p.settle("orders", nodeapi.SettleNack, 60_000, ds[5])
		p.shutDown()
		p = c.start()
		if st := p.settle("orders", nodeapi.SettleAck, 0, ds[2]); st[0] != nodeapi.SettleLost {
			t.Fatalf("ack with a handle of the process before: %d", st[0])
		}
		d := p.details("orders", 0)
		if d.Frontier != 2 || d.SettledAhead != 1 || d.InFlight != 0 {
			t.Fatalf("%+v", d)
		}
		ds = p.take("orders", 100)
		if got := payloads(ds); len(got) != 16 || slices.Contains(got, "1-4") || slices.Contains(got, "1-5") {
			t.Fatalf("after a graceful stop %v come", got)
		}
		p.ack("orders", ds[:5]...) // 2 3 6 7 8
		pass(150 * time.Millisecond)
		synctest.Wait()
		p.ack("orders", ds[5]) // 9: within the window
		c.fs = fs.Copy()       // the process dies, the page cache survives
		crashed := c.start()
		if d := crashed.details("orders", 0); d.Frontier != 5 || d.SettledAhead != 3 {
			t.Fatalf("after a crash of the process: %+v", d)
		}
		if got := payloads(crashed.take("orders", 100)); len(got) != 11 || got[0] != "1-9" {
			t.Fatalf("after a crash %v come", got)
		}
		crashed.shutDown()
		pass(1500 * time.Millisecond)
		synctest.Wait()
		c.fs = fs.CrashClone(nil) // power loss, a second and more after the last ack
		p.shutDown()
		crashed = c.start()
		defer crashed.shutDown()
		if d := crashed.details("orders", 0); d.Frontier != 5 || d.SettledAhead != 4 {
			t.Fatalf("after a power loss: %+v", d)
		}
	})
}

// Producers and consumers at once: everything comes, nothing twice.
func TestConsumersUnderLoad(t *testing.T) {
	c := newCluster(t, vfs.NewMem(), "data")
	cfg := topic.DefaultConfig()
	c.put("orders", 1, cfg)
	p := c.start()
	defer p.shutDown()
	const producers, each = 4, 50
	var wg sync.WaitGroup
	for g := range producers {
		wg.Go(func() {
			for i := range uint64(each) {
				if _, err := p.commit("orders", int32(i%3), batch(g+1, i*4+1, i*4+2, i*4+3, i*4+4)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var mu sync.Mutex
	seen := map[string]int{}
	for range 4 {
		wg.Go(func() {
			for {
				ds := p.take("orders", 7)
				if len(ds) > 0 {
					p.ack("orders", ds...)
				}
				mu.Lock()
				for _, d := range ds {
					seen[payload(d)]++
				}
				done := len(seen) == producers*each*4
				mu.Unlock()
				if done {
					return
				}
			}
		})
	}
	wg.Wait()
	for s, n := range seen {
		if n != 1 {
			t.Errorf("%s came %d times", s, n)
		}
	}
	for part := range int32(3) {
		if d := p.details("orders", part); d.Frontier != d.HighWatermark || d.InFlight != 0 {
			t.Errorf("partition %d: %+v", part, d)
		}
	}
}

// A position of the old life that is about to be written when the name gets a
// new life never lands in the new directory: not before the node has noticed
// the change by itself, and not after.
func TestOldPositionsNeverReachTheNewLife(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		fs := vfs.NewMem()
		c := newCluster(t, fs, "data")
		c.put("orders", 0xa, onePartition())
		p := c.start()
		p.mustCommit("orders", 0, batch(1, 1, 2, 3))
		p.ack("orders", p.take("orders", 2)...) // to be written in 100 ms
		pass(90 * time.Millisecond)
		c.remove("orders")
		c.put("orders", 0xb, onePartition())
		p.mustCommit("orders", 0, batch(2, 1))
		pass(15 * time.Millisecond) // the flush was due; the look at the change is not
		synctest.Wait()
		c.fs = fs.Copy() // the process dies
		p.shutDown()
		p = c.start()
		defer p.shutDown()
		if d := p.details("orders", 0); d.Frontier != 0 || d.HighWatermark < 1 || d.HighWatermark > 2 {
			t.Fatalf("the new life begins with %+v", d)
		}
		if got := payloads(p.take("orders", 10)); !slices.Equal(got, []string{"2-1"}) {
			t.Fatalf("the new life delivers %v", got)
		}
	})
}
