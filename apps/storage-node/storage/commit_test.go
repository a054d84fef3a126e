package storage_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

func TestCommitAndReplay(t *testing.T) {
	_, p := startOrders(t, vfs.NewMem())
	defer p.shutDown()
	res := p.mustCommit("orders", 0, batch(1, 10, 11, 12))
	if res.BaseOffset != 0 || res.Appended != 3 || res.Duplicates != 0 || res.HighWatermark != 3 || res.Epoch != p.epoch {
		t.Fatalf("%+v", res)
	}
	p.mustCommit("orders", 0, batch(2, 10))
	want := []string{"1-10", "1-11", "1-12", "2-10"}
	if got := p.replay("orders", 0); !slices.Equal(got, want) {
		t.Fatalf("replay %v, want %v", got, want)
	}
}

// Records that the partition has are dropped: whole batches, and parts of them,
// also after a restart, graceful or not.
func TestDuplicatesAreDropped(t *testing.T) {
	fs := vfs.NewMem()
	c, p := startOrders(t, fs)
	p.mustCommit("orders", 0, batch(1, 10, 11))
	again := func(p *process) {
		t.Helper()
		res := p.mustCommit("orders", 0, batch(1, 10, 11))
		if res.Appended != 0 || res.Duplicates != 2 || res.BaseOffset != -1 {
			t.Fatalf("%+v", res)
		}
	}
	again(p)
	if res := p.mustCommit("orders", 0, batch(1, 11, 12, 13)); res.Appended != 2 || res.Duplicates != 1 || res.BaseOffset != 2 {
		t.Fatalf("%+v", res)
	}
	if n := testutil.CollectAndCount(p.reg, "narad_duplicates_dropped_total"); n != 1 {
		t.Fatalf("%d series of duplicates", n)
	}
	p.shutDown()
	p = c.start()
	again(p)
	_ = p.stop() // no Close: the process dies
	c.fs = fs.CrashClone(nil)
	p = c.start()
	defer p.shutDown()
	again(p)
	want := []string{"1-10", "1-11", "1-12", "1-13"}
	if got := p.replay("orders", 0); !slices.Equal(got, want) {
		t.Fatalf("replay %v, want %v", got, want)
	}
}

func TestRefusals(t *testing.T) {
	c, p := startOrders(t, vfs.NewMem())
	defer p.shutDown()
	good := p.target("orders", 0)
	damaged := batch(1, 1)
	damaged[len(damaged)-1] ^= 1
	for name, tc := range map[string]struct {
		change func(*nodeapi.Target)
		batch  []byte
		code   problem.Code
	}{
		"older epoch":     {func(t *nodeapi.Target) { t.Epoch-- }, batch(1, 1), problem.StaleEpoch},
		"newer epoch":     {func(t *nodeapi.Target) { t.Epoch++ }, batch(1, 1), problem.NotReady},
		"other life":      {func(t *nodeapi.Target) { t.Incarnation = 9 }, batch(1, 1), problem.IncarnationMismatch},
		"other disk":      {func(t *nodeapi.Target) { t.DiskID = 9 }, batch(1, 1), problem.PartitionUnavailable},
		"unknown topic":   {func(t *nodeapi.Target) { t.Topic = "else" }, batch(1, 1), problem.NotReady},
		"unknown part":    {func(t *nodeapi.Target) { t.Partition = 1 }, batch(1, 1), problem.NotReady},
		"damaged":         {func(*nodeapi.Target) {}, damaged, problem.DamagedBatch},
		"not a batch":     {func(*nodeapi.Target) {}, []byte("hello"), problem.DamagedBatch},
		"a control batch": {func(*nodeapi.Target) {}, record.AppendLeaderChange(nil, 1), problem.DamagedBatch},
	} {
		target := good
		tc.change(&target)
		_, err := p.node.Commit(context.Background(), &nodeapi.CommitRequest{Target: target, Batch: tc.batch})
		if !problem.HasCode(err, tc.code) {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
	c.meta.SetState(true, false)
	if _, err := p.commit("orders", 0, batch(1, 1)); !problem.HasCode(err, problem.NotReady) {
		t.Errorf("before the latch: %v", err)
	}
	if st := p.claimed("orders", 1, false).Partitions[0]; st != nodeapi.ClaimUnavailable {
		t.Errorf("claim before the latch: %d", st)
	}
	c.meta.SetState(true, true)
	p.mustCommit("orders", 0, batch(1, 1)) // it is open now, and led
	a := topic.Assignment{Ref: good.Ref, Replicas: []topic.Replica{{Node: nodeID, DiskID: 3}}, Leader: nodeID, LeaderEpoch: p.epoch}
	c.meta.PutTopic(c.topics["orders"], []topic.Assignment{a})
	if _, err := p.commit("orders", 0, batch(1, 2)); !problem.HasCode(err, problem.PartitionUnavailable) {
		t.Errorf("lost disk: %v", err)
	}
	a = topic.Assignment{Ref: good.Ref, Replicas: []topic.Replica{{Node: "storage-2", DiskID: 3}}, Leader: "storage-2", LeaderEpoch: 9}
	c.meta.PutTopic(c.topics["orders"], []topic.Assignment{a})
	_, err := p.commit("orders", 0, batch(1, 1))
	if !problem.HasCode(err, problem.NotPartitionLeader) {
		t.Errorf("elsewhere: %v", err)
	}
}

// Whoever comes while an fsync runs shares the next one: sixteen gateways of
// which all have appended before the first fsync ends cost two.
func TestGroupCommitSharesFsyncs(t *testing.T) {
	const gateways = 16
	var mu sync.Mutex
	counting, writes, syncs := false, 0, 0
	all := make(chan struct{})
	fs := vfs.NewFault(vfs.NewMem(), func(op vfs.Op) vfs.Fault {
		mu.Lock()
		wait := counting && strings.Contains(op.Path, "/p00000/") && !strings.Contains(op.Path, "state")
		if wait && op.Kind == vfs.OpWrite {
			if writes++; writes == gateways {
				close(all)
			}
		}
		wait = wait && op.Kind == vfs.OpSync
		if wait {
			syncs++
		}
		mu.Unlock()
		if wait {
			<-all
		}
		return vfs.Fault{}
	})
	_, p := startOrders(t, fs)
	defer p.shutDown()
	p.mustCommit("orders", 0, batch(1000, 1))
	mu.Lock()
	counting = true
	mu.Unlock()
	var wg sync.WaitGroup
	for g := range gateways {
		wg.Go(func() {
			if _, err := p.commit("orders", 0, batch(g+1, 1, 2)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	mu.Lock()
	defer mu.Unlock()
	counting = false
	if syncs != 2 {
		t.Errorf("%d fsyncs for %d commits, want 2", syncs, gateways)
	}
}

// Many gateways at once: every record once, in the order of its stream.
func TestManyGateways(t *testing.T) {
	c := newCluster(t, vfs.NewMem(), "data")
	cfg := topic.DefaultConfig()
	c.put("orders", 1, cfg)
	p := c.start()
	defer p.shutDown()
	const gateways, each = 8, 20
	var wg sync.WaitGroup
	for g := range gateways {
		wg.Go(func() {
			for i := range uint64(each) {
				part := int32(i % uint64(cfg.Partitions))
				for range 2 { // the first answer is lost
					if _, err := p.commit("orders", part, batch(g+1, i*2+1, i*2+2)); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	total := 0
	for part := range int32(cfg.Partitions) {
		last := map[int]int{}
		for _, s := range p.replay("orders", part) {
			var g, n int
			if _, err := fmt.Sscanf(s, "%d-%d", &g, &n); err != nil || n <= last[g] {
				t.Fatalf("record %s after %d", s, last[g])
			}
			last[g] = n
			total++
		}
	}
	if total != gateways*each*2 {
		t.Fatalf("%d records of %d", total, gateways*each*2)
	}
}

// heldSyncs are faults of a disk: while they are held, syncs wait.
type heldSyncs struct {
	held    atomic.Bool
	reached chan struct{} // told of each sync but of the state that waits, unless it is full
	gate    chan struct{}
}

func newHeldSyncs() *heldSyncs {
	return &heldSyncs{reached: make(chan struct{}, 10), gate: make(chan struct{})}
}

func (h *heldSyncs) rule(op vfs.Op) vfs.Fault {
	if h.held.Load() && op.Kind == vfs.OpSync {
		if !strings.Contains(op.Path, "/state") { // which is saved by itself, whenever that is due
			select {
			case h.reached <- struct{}{}:
			default:
			}
		}
		<-h.gate
	}
	return vfs.Fault{}
}

// release lets them go on, for good.
func (h *heldSyncs) release() {
	h.held.Store(false)
	close(h.gate)
}

// A duplicate is answered only when the first copy is committed.
func TestDuplicateWaitsLikeAFirstCopy(t *testing.T) {
	disk := newHeldSyncs()
	_, p := startOrders(t, vfs.NewFault(vfs.NewMem(), disk.rule))
	defer p.shutDown()
	p.mustCommit("orders", 0, batch(9, 1))
	disk.held.Store(true)
	answers := make(chan *nodeapi.CommitResult, 2)
	send := func() {
		res, err := p.commit("orders", 0, batch(1, 1))
		if err != nil {
			t.Error(err)
		}
		answers <- res
	}
	go send()
	<-disk.reached
	// The duplicate gives up while the fsync runs: it must not have been answered.
	ctx, cancel := context.WithCancel(context.Background())
	gaveUp := make(chan error)
	go func() {
		_, err := p.node.Commit(ctx, &nodeapi.CommitRequest{Target: p.target("orders", 0), Batch: batch(1, 1)})
		gaveUp <- err
	}()
	cancel()
	if err := <-gaveUp; !problem.HasCode(err, problem.OutcomeUnknown) {
		t.Errorf("duplicate during the fsync: %v", err)
	}
	go send()
	if len(answers) != 0 || len(p.replay("orders", 0)) != 1 {
		t.Error("answered or shown before the fsync")
	}
	disk.release()
	one, two := <-answers, <-answers
	if one.Appended+two.Appended != 1 || one.Duplicates+two.Duplicates != 1 || one.HighWatermark != 2 || two.HighWatermark != 2 {
		t.Fatalf("%+v %+v", one, two)
	}
}
