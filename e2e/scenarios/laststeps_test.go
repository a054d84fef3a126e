//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// backlogRate is produces a second into the gateway that leaves.
	backlogRate = 1000
	// backlogWorkers share them: each waits for its answer before the next.
	backlogWorkers = 50
)

// TestGatewaysLeaveUnderLoad: a gateway takes 1,000 produces a second for a partition
// whose leader is down while it is decommissioned. It seals, keeps what it answered
// 202, and is kept itself until that is committed. Then the leading voter is killed
// between the two last steps, the removal from Raft and the tombstone, if it can be
// met there within as many tries as there are gateways: the next one finishes.
func TestGatewaysLeaveUnderLoad(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 2, Gateways: 5})
	_, ctx := connect(t, c)
	stays := direct(t, c.URLs()[0])
	if _, err := stays.CreateTopic(ctx, client.TopicSpec{Name: "lone", Partitions: 4, VisibilityTimeoutMS: 120_000}); err != nil {
		t.Fatal(err)
	}
	info, err := stays.Topic(ctx, "lone")
	if err != nil || info.PartitionDetails[0].Leader == nil {
		t.Fatalf("%+v, %v", info, err)
	}
	down, pinned := *info.PartitionDetails[0].Leader, uint32(0)
	pid := c.Node(down).PID
	c.Hold(down)
	c.Kill(down)

	book := harness.NewLedger()
	var refused, other atomic.Int64 // by "draining", and otherwise
	producing, stop := context.WithCancel(ctx)
	defer stop()
	var producers sync.WaitGroup
	leaves := direct(t, c.URLs()[1])
	for w := range backlogWorkers {
		producers.Go(func() {
			tick := time.NewTicker(time.Second * backlogWorkers / backlogRate)
			defer tick.Stop()
			for n := 0; ; n++ {
				select {
				case <-producing.Done():
					return
				case <-tick.C:
				}
				text := fmt.Sprintf("p-%d-%d", w, n)
				book.Sending(text)
				_, err := leaves.Produce(context.WithoutCancel(ctx), "lone", client.Message{Payload: []byte(text), Partition: &pinned}, client.ProduceOptions{})
				book.Produced(err, text)
				var e *client.Error
				switch {
				case err == nil:
				case errors.As(err, &e) && e.Code == "draining":
					refused.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	began := time.Now()
	if err := harness.Until(ctx, 30*time.Second, func() bool { return book.Accepted() > backlogRate }); err != nil {
		t.Errorf("only %d were accepted", book.Accepted())
	}
	if err := stays.Decommission(ctx, "gateway-2", false); err != nil {
		t.Fatal(err)
	}
	if err := harness.Until(ctx, 20*time.Second, func() bool {
		return refused.Load() > backlogRate/2 && blockedBy(ctx, stays, "gateway-2", "dispatch_backlog")
	}); err != nil {
		t.Errorf("a gateway with a backlog is not kept back, or accepts: %d refused", refused.Load())
	}
	stop()
	producers.Wait()
	t.Logf("%d accepted at %d a second, %d refused as draining, %d otherwise, in %s", book.Accepted(), backlogRate, refused.Load(), other.Load(), time.Since(began).Round(time.Millisecond))

	k := &betweenSteps{c: c, cl: stays, delay: time.Millisecond}
	k.remove(ctx, t, "gateway-2", func() {
		c.Free(down)
		c.WaitReady(down, pid)
	})
	for _, id := range []string{"gateway-3", "gateway-4", "gateway-5"} {
		if k.met {
			break
		}
		k.remove(ctx, t, id, func() {
			if err := harness.Until(ctx, 20*time.Second, func() bool { return stays.Decommission(ctx, id, false) == nil }); err != nil {
				t.Errorf("the decommission of %s does not begin", id)
			}
		})
	}

	reads, end := context.WithCancel(ctx)
	var consumers sync.WaitGroup
	consumers.Go(func() { harness.Load{Client: stays, Topic: "lone", Ledger: book}.Consume(reads, t) })
	_ = harness.Until(ctx, 40*time.Second, func() bool { n, _ := book.Missing(); return n == 0 })
	end()
	consumers.Wait()
	book.Judge(t, func(_, _ time.Time) bool { return false }) // whoever was killed had nothing leased
}

// betweenSteps kills the leading voter when its log says that a member is about to be
// removed, a little later each time, or sooner, as the last kill came too soon or late.
type betweenSteps struct {
	c     *harness.Cluster
	cl    *client.Client
	delay time.Duration
	met   bool // a kill fell between the two steps
}

const (
	saysRemoval = "it leaves the raft configuration"
	saysBurial  = "the member was removed; its tombstone stays"
)

// remove lets begin happen, kills the leader in the removal of id that follows, and
// waits until the next one has finished it.
func (k *betweenSteps) remove(ctx context.Context, t *testing.T, id string, begin func()) {
	t.Helper()
	var leader string
	if err := harness.Until(ctx, 20*time.Second, func() bool { leader = leadingVoter(ctx, k.cl); return leader != "" }); err != nil {
		t.Fatal("there is no leading voter")
	}
	says := func(voter, what string) bool {
		raw, err := os.ReadFile(filepath.Join(k.c.Dir, "run", voter+".log"))
		if err != nil {
			return false
		}
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, what) && strings.Contains(line, "member="+id+" ") {
				return true
			}
		}
		return false
	}
	pid := k.c.Node(leader).PID
	killed := make(chan error, 1)
	go func() {
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for !says(leader, saysRemoval) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				killed <- ctx.Err()
				return
			}
		}
		<-time.After(k.delay + time.Duration(rand.Int64N(int64(time.Millisecond))))
		killed <- syscall.Kill(pid, syscall.SIGKILL)
	}()
	begin()
	if err := <-killed; err != nil {
		t.Errorf("%s was not killed: %v", leader, err)
	}
	awaitRemoved(t, ctx, k.cl, id)
	k.c.WaitReady(leader, pid)
	again, buried := false, false
	for _, v := range k.c.IDs(harness.Voter) {
		if v != leader {
			again = again || says(v, saysRemoval)
			buried = buried || says(v, saysBurial)
		}
	}
	switch {
	case again:
		t.Logf("%s: the leader was killed before it was out of Raft (%s after it began)", id, k.delay)
		k.delay += 2 * time.Millisecond
	case buried:
		t.Logf("%s: the leader was killed between the two steps (%s after it began)", id, k.delay)
		k.met = true
	default:
		t.Logf("%s: the leader was killed after it had finished (%s after it began)", id, k.delay)
		k.delay = max(k.delay/2, 0)
	}
}
