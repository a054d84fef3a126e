//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// awaitRemoved waits until a member is a tombstone, and says what keeps it else.
func awaitRemoved(t *testing.T, ctx context.Context, cl *client.Client, id string) {
	t.Helper()
	begin := time.Now()
	err := harness.Until(ctx, 60*time.Second, func() bool {
		m, err := cl.Members(ctx)
		return err == nil && slices.ContainsFunc(m.Tombstones, func(x client.Tombstone) bool { return x.ID == id })
	})
	if err != nil {
		m, merr := cl.Member(ctx, id)
		t.Fatalf("%s is not removed: %+v, %+v, %v", id, m, m.Decommission, merr)
	}
	t.Logf("%s removed after %s", id, time.Since(begin).Round(10*time.Millisecond))
}

// awaitEven waits until no two of the nodes are further apart than one in the numbers of
// partitions of the topics that they lead. A hand-over that a node could not take yet is
// tried again after a minute.
func awaitEven(t *testing.T, ctx context.Context, cl *client.Client, topics, nodes []string) {
	t.Helper()
	leads := map[string]int{}
	began := time.Now()
	if err := harness.Until(ctx, 2*time.Minute, func() bool {
		clear(leads)
		for _, name := range topics {
			info, err := cl.Topic(ctx, name)
			if err != nil {
				return false
			}
			for _, p := range info.PartitionDetails {
				if p.Leader == nil {
					return false
				}
				leads[*p.Leader]++
			}
		}
		least, most := leads[nodes[0]], leads[nodes[0]]
		for _, id := range nodes {
			least, most = min(least, leads[id]), max(most, leads[id])
		}
		return most-least <= 1
	}); err != nil {
		t.Errorf("leaderships do not become even: %v", leads)
		return
	}
	t.Logf("leaderships are even after %s: %v", time.Since(began).Round(10*time.Millisecond), leads)
}

// awaitLeader waits until a voter leads, and returns it.
func awaitLeader(t *testing.T, ctx context.Context, cl *client.Client) string {
	t.Helper()
	var q client.Quorum
	var err error
	if harness.Until(ctx, moveLimit, func() bool { q, err = cl.Quorum(ctx); return err == nil && q.LeaderID != nil }) != nil {
		t.Fatalf("nobody leads: %+v, %v", q, err)
	}
	return *q.LeaderID
}

// blockedBy tells whether a reason keeps a member back now.
func blockedBy(ctx context.Context, cl *client.Client, id, code string) bool {
	m, err := cl.Member(ctx, id)
	return err == nil && m.Decommission != nil &&
		slices.ContainsFunc(m.Decommission.Blocked, func(r client.Reason) bool { return r.Code == code })
}

// TestDecommissionUnderLoad: a storage node with lone and replicated partitions, the
// Raft leader, and a gateway with a backlog are removed while messages flow; a voter
// below the floor is refused; the storage node comes back under its name with an empty
// disk and gets its share. Nothing is lost, and no copy is left where none belongs.
func TestDecommissionUnderLoad(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 5, StorageNodes: 4, Gateways: 2})
	// A hand-over alone that comes at a bad moment takes a minute more.
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	urls := c.URLs()
	one := func(list ...string) *client.Client {
		cl, err := client.New(client.Config{URLs: list})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		return cl
	}
	stays := one(urls[0]) // gateway-1
	for _, spec := range []client.TopicSpec{{Name: "lone", Partitions: 4}, {Name: "copies", Partitions: 4, ReplicationFactor: 3}} {
		create(ctx, t, stays, spec)
	}
	books := map[string]*harness.Ledger{"lone": harness.NewLedger(), "copies": harness.NewLedger()}
	watch := startWatch(ctx, t, stays, "lone", "copies")
	flow, stop := context.WithCancel(ctx)
	defer stop()
	var producers, consumers sync.WaitGroup
	reads, end := context.WithCancel(ctx)
	defer end()
	for name, book := range books {
		w := harness.Load{Client: one(urls...), Topic: name, Ledger: book}
		producers.Go(func() { w.Produce(flow, name, 10*time.Millisecond) })
		consumers.Go(func() { harness.Load{Client: stays, Topic: name, Ledger: book}.Consume(reads, t) })
	}

	leader := awaitLeader(t, ctx, stays)
	if err := stays.Decommission(ctx, "storage-1", false); err != nil {
		t.Fatal(err)
	}
	// It goes on where it was when who leads it, who leaves and who receives are killed.
	var err error
	if harness.Until(ctx, 10*time.Second, func() bool { // the gateway's replica may be late
		var m client.Member
		m, err = stays.Member(ctx, "storage-1")
		return err == nil && m.Draining || client.HasCode(err, "member_not_found")
	}) != nil {
		t.Errorf("it does not drain: %v", err)
	} else if err != nil {
		t.Log("it was removed before anybody was killed: this shows less")
	}
	for _, id := range []string{"storage-1", "storage-2"} {
		watch.crashed(id)
		c.Kill(id)
	}
	c.Kill(leader)
	awaitRemoved(t, ctx, stays, "storage-1")
	awaitEven(t, ctx, stays, []string{"lone", "copies"}, []string{"storage-2", "storage-3", "storage-4"})

	leader = awaitLeader(t, ctx, stays)
	if err := stays.Decommission(ctx, leader, false); err != nil {
		t.Fatal(err)
	}
	awaitRemoved(t, ctx, stays, leader)
	second := another(c, leader)
	if err := stays.Decommission(ctx, second, false); err != nil {
		t.Fatal(err)
	}
	awaitRemoved(t, ctx, stays, second)
	var refused *client.Error
	if err := stays.Decommission(ctx, another(c, leader, second), false); !errors.As(err, &refused) || refused.Code != "decommission_unsafe" {
		t.Errorf("below the floor: %v", err)
	}

	// A backlog: the leader of a lone partition is down, and messages are pinned to it. A new
	// voter that leads may have found something to move: it would move away from there.
	atRest(ctx, t, c, stays, moveLimit)
	info, err := stays.Topic(ctx, "lone")
	if err != nil {
		t.Fatal(err)
	}
	var pinned uint32
	down := ""
	for _, p := range info.PartitionDetails {
		if p.Leader != nil {
			pinned, down = uint32(p.Index), *p.Leader
		}
	}
	pid := c.Node(down).PID
	c.Hold(down)
	watch.crashed(down)
	c.Kill(down)
	leaves := one(urls[1])
	for i := range 20 {
		text := "pinned-" + string(rune('a'+i))
		books["lone"].Sending(text)
		_, err := leaves.Produce(ctx, "lone", client.Message{Payload: []byte(text), Partition: &pinned}, client.ProduceOptions{})
		books["lone"].Produced(err, text)
	}
	if err := stays.Decommission(ctx, "gateway-2", false); err != nil {
		t.Fatal(err)
	}
	if err := harness.Until(ctx, 20*time.Second, func() bool { return blockedBy(ctx, stays, "gateway-2", "dispatch_backlog") }); err != nil {
		t.Error("a gateway with a backlog is not kept back")
	}
	// Killed and started again it stays sealed.
	gpid := c.Node("gateway-2").PID
	c.Kill("gateway-2")
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		now := c.Node("gateway-2").PID
		return now > 0 && now != gpid && blockedBy(ctx, stays, "gateway-2", "dispatch_backlog")
	}); err != nil {
		t.Error("it does not come back with its backlog")
	}
	if _, err := leaves.Produce(ctx, "lone", client.Message{Payload: []byte("late")}, client.ProduceOptions{}); err == nil {
		t.Error("a sealed gateway accepted a message after a restart")
	}
	c.Free(down)
	c.WaitReady(down, pid)
	awaitRemoved(t, ctx, stays, "gateway-2")

	// Back under its name, with an empty disk.
	spid := c.Node("storage-1").PID
	c.Hold("storage-1")
	c.Kill("storage-1")
	if err := os.Rename(filepath.Join(c.Dir, "storage-1"), filepath.Join(c.Dir, "storage-1.old")); err != nil {
		t.Fatal(err)
	}
	c.Free("storage-1")
	c.WaitReady("storage-1", spid)
	var m client.Member
	if harness.Until(ctx, 20*time.Second, func() bool { // the gateway's replica may be late
		m, err = stays.Member(ctx, "storage-1")
		return err == nil && !m.Draining && m.Status == "alive"
	}) != nil {
		t.Errorf("back under its name: %+v, %v", m, err)
	}

	stop()
	producers.Wait()
	if err := harness.Until(ctx, 90*time.Second, func() bool {
		for _, book := range books {
			if n, _ := book.Missing(); n > 0 {
				return false
			}
		}
		return true
	}); err != nil {
		t.Log("messages are missing")
	}
	end()
	consumers.Wait()
	watch.end()
	for name, book := range books {
		watch.judge(t, name, book)
		book.Stored(ctx, t, stays, name)
	}
	pastRebalance(ctx, t, c, stays) // to the node that came back
	(&ending{
		t: t, ctx: ctx, cl: stays, dir: c.Dir, topics: []string{"lone", "copies"}, restart: restarts(c), interrupted: watch.hasCrashed,
	}).clean()
}

// TestResetOfALostPartition: a storage node comes back without its disk. Its lone
// partition is lost, and said to be; produce goes elsewhere, a consume of it is
// refused, and nothing begins empty by itself. A reset does, at offset 0.
func TestResetOfALostPartition(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "lone", Partitions: 2})
	var info client.TopicDetails
	var err error
	if harness.Until(ctx, 20*time.Second, func() bool {
		info, err = cl.Topic(ctx, "lone")
		return err == nil && len(info.PartitionDetails) == 2 && info.PartitionDetails[0].Leader != nil && info.PartitionDetails[1].Leader != nil
	}) != nil {
		t.Fatalf("%+v, %v", info, err)
	}
	gone, first := *info.PartitionDetails[0].Leader, uint32(0)
	if _, err := cl.Produce(ctx, "lone", client.Message{Payload: []byte("lost"), Partition: &first}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	// Read once: a 202 may still be in the gateway's log, from where it would rightly
	// come after the reset.
	if got, err := cl.Receive(ctx, "lone", client.ReceiveOptions{Max: 1, Wait: 30 * time.Second, Partition: &first}); err != nil || len(got.Deliveries) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := cl.ResetPartition(ctx, "lone", 0); err == nil {
		t.Error("a partition that is not lost was reset")
	}
	pid := c.Node(gone).PID
	c.Hold(gone)
	c.Kill(gone)
	if err := os.Rename(filepath.Join(c.Dir, gone), filepath.Join(c.Dir, gone+".old")); err != nil {
		t.Fatal(err)
	}
	c.Free(gone)
	if other := info.PartitionDetails[1].Leader; other == nil || *other == gone {
		t.Fatalf("%+v", info.PartitionDetails)
	} else { // while the old self of the other one is not dead yet
		vanishing{t: t, c: c, cl: cl, topic: "lone", index: 1, node: *other}.drill(ctx)
	}
	status := func() string {
		info, err := cl.Topic(ctx, "lone")
		if err != nil {
			return err.Error()
		}
		return info.PartitionDetails[0].Status
	}
	if err := harness.Until(ctx, 90*time.Second, func() bool { return status() == "lost" }); err != nil {
		t.Fatalf("it is %q", status())
	}
	c.WaitReady(gone, pid)
	if _, err := cl.Produce(ctx, "lone", client.Message{Payload: []byte("elsewhere")}, client.ProduceOptions{}); err != nil {
		t.Errorf("produce: %v", err)
	}
	resp, err := http.Post(c.URLs()[0]+"/v1/topics/lone/consume?partition=0&wait=0s", "", nil) // the client would try for long
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a consume of what is lost: %s", resp.Status)
	}
	if err := cl.ResetPartition(ctx, "lone", 0); err != nil {
		t.Fatal(err)
	}
	if err := harness.Until(ctx, 40*time.Second, func() bool { return status() == "ok" }); err != nil {
		t.Fatalf("after the reset it is %q", status())
	}
	if _, err := cl.Produce(ctx, "lone", client.Message{Payload: []byte("new"), Partition: &first}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := cl.Receive(ctx, "lone", client.ReceiveOptions{Max: 1, Wait: 30 * time.Second, Partition: &first})
	if err != nil || len(got.Deliveries) != 1 || string(got.Deliveries[0].Payload) != "new" || got.Deliveries[0].Offset != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
