//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/metastate"
)

const (
	// backlogRate is produces a second into the gateway that leaves.
	backlogRate = 1000
	// backlogWorkers share them: each waits for its answer before the next.
	backlogWorkers = 50
)

// leavers are gateways that leave, the first with the backlog. The others do when an
// election of the machine's own came between.
var leavers = []string{"gateway-2", "gateway-3", "gateway-4"}

// What the leading voter logs at the two last steps of a decommission.
const (
	saysRemoval = "it leaves the raft configuration"
	saysBurial  = "the member was removed; its tombstone stays"
)

// TestGatewaysLeaveUnderLoad: a gateway takes 1,000 produces a second for a partition
// whose leader is down while it is decommissioned. It seals, keeps what it answered
// 202, and is kept itself until that is committed. Then the leading voter is killed
// between the two last steps, the removal from Raft and the tombstone: the network
// drops the entry of the tombstone, which reaches no other voter. The next leader finishes.
func TestGatewaysLeaveUnderLoad(t *testing.T) {
	t.Parallel()
	n := harness.StartNet(t, harness.Options{Voters: 3, StorageNodes: 2, Gateways: 1 + len(leavers)})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	stays := direct(t, n.URL("gateway-1"))
	create(ctx, t, stays, client.TopicSpec{Name: "lone", Partitions: 4, VisibilityTimeoutMS: 120_000})
	down := ""
	if err := harness.Until(ctx, moveLimit, func() bool { _, down = replicasOf(ctx, stays, "lone", 0); return down != "" }); err != nil {
		t.Fatal("nobody leads the partition")
	}
	n.Kill(down)

	b := &backlog{leaves: direct(t, n.URL(leavers[0])), book: harness.NewLedger()}
	stop := b.produce(ctx)
	defer stop()
	began := time.Now()
	if err := harness.Until(ctx, 30*time.Second, func() bool { return b.book.Accepted() > backlogRate }); err != nil {
		t.Errorf("only %d were accepted", b.book.Accepted())
	}
	decommission(ctx, t, stays, leavers[0])
	if err := harness.Until(ctx, 40*time.Second, func() bool {
		return b.draining.Load() > backlogRate/2 && blockedBy(ctx, stays, leavers[0], "dispatch_backlog")
	}); err != nil {
		t.Errorf("a gateway with a backlog is not kept back, or accepts: %d refused", b.draining.Load())
	}
	stop()
	t.Logf("%d accepted at %d a second, %d refused as draining, %d otherwise, in %s", b.book.Accepted(), backlogRate, b.draining.Load(), b.other.Load(), time.Since(began).Round(time.Millisecond))

	hit := ""
	for i, id := range leavers {
		k := lastSteps{t: t, n: n, cl: stays, id: id}
		met := k.killBetween(ctx, func() {
			if i == 0 {
				n.Restart(down)
			} else {
				decommission(ctx, t, stays, id)
			}
		})
		if met {
			hit = id
			break
		}
	}
	if hit == "" {
		t.Fatal("no leader was killed between the two steps")
	}
	staysOut(ctx, t, n, hit)

	n.WaitReady(down)
	reads, end := context.WithCancel(ctx)
	var consumers sync.WaitGroup
	consumers.Go(func() { harness.Load{Client: stays, Topic: "lone", Ledger: b.book}.Consume(reads, t) })
	_ = harness.Until(ctx, 40*time.Second, func() bool { n, _ := b.book.Missing(); return n == 0 })
	end()
	consumers.Wait()
	b.book.Judge(t, func(_, _ time.Time) bool { return false }) // whoever was killed had nothing leased
}

// decommission begins, also when the voters elect just then.
func decommission(ctx context.Context, t *testing.T, cl *client.Client, id string) {
	t.Helper()
	var last error
	if err := harness.Until(ctx, 40*time.Second, func() bool { last = cl.Decommission(ctx, id, false); return last == nil }); err != nil {
		t.Fatalf("the decommission of %s does not begin: %v", id, last)
	}
}

// backlog is what is produced into the gateway that leaves.
type backlog struct {
	leaves          *client.Client
	book            *harness.Ledger
	draining, other atomic.Int64 // produces that were refused by "draining", and otherwise
}

// produce sends backlogRate messages a second to the first partition until stop.
func (b *backlog) produce(ctx context.Context) (stop func()) {
	producing, cancel := context.WithCancel(ctx)
	var workers sync.WaitGroup
	for w := range backlogWorkers {
		workers.Go(func() {
			harness.Every(producing, time.Second*backlogWorkers/backlogRate, func(n int) {
				b.one(context.WithoutCancel(ctx), fmt.Sprintf("p-%d-%d", w, n))
			})
		})
	}
	return func() { cancel(); workers.Wait() }
}

func (b *backlog) one(ctx context.Context, text string) {
	b.book.Sending(text)
	_, err := b.leaves.Produce(ctx, "lone", client.Message{Payload: []byte(text), Partition: client.Pin(0)}, client.ProduceOptions{})
	b.book.Produced(err, text)
	var e *client.Error
	switch {
	case err == nil:
	case errors.As(err, &e) && e.Code == "draining":
		b.draining.Add(1)
	default:
		b.other.Add(1)
	}
}

// lastSteps is the end of one gateway's decommission.
type lastSteps struct {
	t  *testing.T
	n  *harness.Net
	cl *client.Client
	id string
}

// killBetween lets begin happen, after which the gateway has nothing left, kills the
// leader when the gateway is out of Raft and the tombstone is on the leader's disk
// only, and waits until the member is gone. It tells whether the kill was between the
// steps: the next leader had only the second to do.
func (k *lastSteps) killBetween(ctx context.Context, begin func()) bool {
	k.t.Helper()
	tombstone := fmt.Appendf(nil, "%c{%q:%q,", metastate.TypeRemoveMember, "id", k.id)
	caught, heal := map[string]func() int{}, map[string]func(){}
	for _, id := range k.n.IDs(harness.Voter) { // whoever leads by then
		caught[id], heal[id] = k.n.CutBytes(id, tombstone)
		defer heal[id]()
	}
	begin()
	// Once Raft has committed the removal, the tombstone is proposed.
	var leader string
	if err := harness.Until(ctx, 40*time.Second, func() bool {
		leader = k.leaderWithout(ctx)
		return leader != "" && caught[leader]() > 0 || k.buried(ctx)
	}); err != nil {
		m, merr := k.cl.Member(ctx, k.id)
		k.t.Fatalf("nobody proposes a tombstone of %s: %+v, %+v, %v", k.id, m, m.Decommission, merr)
	}
	if k.buried(ctx) {
		k.t.Logf("%s: its tombstone was cut in two by the network's packets and came through", k.id)
		return false
	}
	k.n.Kill(leader)
	m, err := k.cl.Members(ctx)
	pending := err == nil && slices.ContainsFunc(m.Members, func(x client.Member) bool { return x.ID == k.id && x.Draining })
	pending = pending && !k.buried(ctx) && k.said(saysBurial) == 0
	removals := k.said(saysRemoval)
	for id := range heal {
		if id != leader { // not this one before others lead: the kernel still sends what the dead had written
			heal[id]()
		}
	}

	awaitRemoved(k.t, ctx, k.cl, k.id)
	if _, err := k.cl.Member(ctx, k.id); !client.HasCode(err, "member_not_found") {
		k.t.Errorf("%s has a record beside its tombstone: %v", k.id, err)
	}
	heal[leader]()
	k.n.Restart(leader) // with a tombstone that was never committed
	k.n.WaitReady(leader)
	again, buried := k.said(saysRemoval)-removals, k.said(saysBurial)
	k.t.Logf("%s: %s was killed; its tombstone was pending: %v; removed from Raft %d times before, %d after, buried %d times", k.id, leader, pending, removals, again, buried)
	return pending && removals > 0 && again == 0 && buried == 1
}

// leaderWithout is the leading voter when the gateway is not in its configuration.
func (k *lastSteps) leaderWithout(ctx context.Context) string {
	q, err := k.cl.Quorum(ctx)
	if err != nil || q.LeaderID == nil || slices.ContainsFunc(q.Servers, func(s client.QuorumServer) bool { return s.ID == k.id }) {
		return ""
	}
	return *q.LeaderID
}

// buried tells whether the tombstone is committed, as far as a gateway knows.
func (k *lastSteps) buried(ctx context.Context) bool {
	m, err := k.cl.Members(ctx)
	return err == nil && slices.ContainsFunc(m.Tombstones, func(x client.Tombstone) bool { return x.ID == k.id })
}

// said counts what the voters have logged about the gateway that leaves.
func (k *lastSteps) said(what string) (lines int) {
	k.t.Helper()
	for _, voter := range k.n.IDs(harness.Voter) {
		raw, err := os.ReadFile(filepath.Join(k.n.Dir, voter+".log"))
		if err != nil {
			k.t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if strings.Contains(line, what) && strings.Contains(line, "member="+k.id+" ") {
				lines++
			}
		}
	}
	return lines
}

// staysOut looks at the gateway that was removed: its heartbeat is refused, and so is
// its join when it is started again over its old directory. It serves nobody.
func staysOut(ctx context.Context, t *testing.T, n *harness.Net, leaver string) {
	t.Helper()
	out := func(when string) {
		if err := harness.Until(ctx, 20*time.Second, func() bool {
			status, codes := readyReasons(t, fmt.Sprintf("%s:%d", n.Addr(leaver), harness.NetOpsPort), "/readyz")
			return status == http.StatusServiceUnavailable && slices.Contains(codes, "not_admitted")
		}); err != nil {
			t.Errorf("%s %s does not say that it is no member", leaver, when)
		}
		var status int
		var body string
		_ = harness.Until(ctx, 20*time.Second, func() bool { // the connection may be one to the process before
			status, body = call2("POST", n.URL(leaver)+"/v1/topics/lone/produce")
			return status != 0
		})
		if status/100 == 2 || status == 0 {
			t.Errorf("%s %s takes a produce: %d %s", leaver, when, status, body)
		}
	}
	out("with its old process")
	n.Kill(leaver)
	n.Restart(leaver)
	out("started again")
}
