//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// ontoSmallDisk moves the data of one node to a file system of its own of a few
// MiB, and returns its directory.
func ontoSmallDisk(t *testing.T, c *harness.Cluster, id string, mib int) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		harness.Lacking(t, harness.NeedMount, "a small disk needs mount, and mount needs root")
	}
	dir = filepath.Join(c.Dir, id)
	old, aside := c.Node(id).PID, filepath.Join(c.Dir, id+"-aside")
	c.Hold(id)
	c.Terminate(id)
	if err := errors.Join(os.Rename(dir, aside), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("narad-e2e", dir, "tmpfs", 0, "mode=0700,size="+strconv.Itoa(mib)+"m"); err != nil {
		harness.Lacking(t, harness.NeedMount, "a tmpfs cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		c.Stop() // nobody has the disk open any more
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, errors.Join(err, syscall.Unmount(dir, syscall.MNT_DETACH)))
		}
	})
	if err := os.CopyFS(dir, os.DirFS(aside)); err != nil {
		t.Fatal(err)
	}
	c.Free(id)
	c.WaitReady(id, old)
	return dir
}

// fill writes a file until nothing more fits, to the last byte, and returns it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		n, err := f.Write(block)
		switch {
		case errors.Is(err, syscall.ENOSPC) && n == 0:
			block = block[:len(block)/2]
		case err != nil && !errors.Is(err, syscall.ENOSPC):
			t.Fatal(err)
		}
	}
	return path
}

// noise is a payload that no compression makes smaller, told apart by its text.
func noise(text string, size int) []byte {
	const digits = "0123456789abcdef"
	b := append(make([]byte, 0, len(text)+1+size), text...)
	b = append(b, ' ')
	for range size {
		b = append(b, digits[rand.IntN(len(digits))]^byte(rand.IntN(2)<<6))
	}
	return b
}

// direct is a client of one gateway that tries once and says what it got.
func direct(t *testing.T, url string) *client.Client {
	t.Helper()
	cl, err := client.New(client.Config{URL: url, Retry: client.Retry{Attempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// book is what was accepted, by text, and what was delivered.
type book struct {
	mu        sync.Mutex // guards the rest
	accepted  map[string]bool
	unknown   map[string]bool
	delivered map[string]int
	settled   map[string]int // acks that were answered; a delivery whose ack was not may come again
	again     map[string]int // deliveries of what was settled
	refusals  map[string]int // by code
	number    int
	restarted bool // a node did: what was acked shortly before may come twice
}

func newBook() *book {
	return &book{
		accepted: map[string]bool{}, unknown: map[string]bool{}, delivered: map[string]int{},
		settled: map[string]int{}, again: map[string]int{}, refusals: map[string]int{},
	}
}

// produce sends one message through one gateway and books the outcome; it
// returns the code of a refusal.
func (b *book) produce(ctx context.Context, t *testing.T, cl *client.Client, topic string, size int) (code string) {
	t.Helper()
	b.mu.Lock()
	b.number++
	text := fmt.Sprintf("m-%d", b.number)
	b.mu.Unlock()
	_, err := cl.Produce(ctx, topic, client.Message{Payload: noise(text, size)}, client.ProduceOptions{})
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.accepted[text] = true
		return ""
	}
	var e *client.Error
	if !errors.As(err, &e) || e.Status != 503 {
		t.Errorf("produce %s: %v, want 202 or 503", text, err)
		return "unexpected"
	}
	if e.Applied != "no" {
		b.unknown[text] = true
	}
	b.refusals[string(e.Code)]++
	return string(e.Code)
}

// deliver books deliveries and acks them.
func (b *book) deliver(ctx context.Context, t *testing.T, cl *client.Client, topic string, ds []client.Delivery) {
	t.Helper()
	var handles, texts []string
	for _, d := range ds {
		text, _, _ := strings.Cut(string(d.Payload), " ")
		b.delivered[text]++
		if b.settled[text] > 0 {
			b.again[text]++
		}
		handles, texts = append(handles, d.ReceiptHandle), append(texts, text)
	}
	if len(handles) == 0 {
		return
	}
	results, err := cl.AckMany(ctx, topic, handles)
	if err != nil {
		t.Logf("ack: %v", err)
		return
	}
	for i, r := range results {
		if r.OK() { // else the lease was lost, to a move for balance perhaps
			b.settled[texts[i]]++
		}
	}
}

// drain receives and acks until everything accepted came, or limit has passed.
func (b *book) drain(ctx context.Context, t *testing.T, cl *client.Client, topic string, limit time.Duration) {
	t.Helper()
	err := harness.Until(ctx, limit, func() bool {
		got, err := cl.Receive(ctx, topic, client.ReceiveOptions{Max: 50, Wait: time.Second})
		if err != nil {
			return false
		}
		b.deliver(ctx, t, cl, topic, got.Deliveries)
		return b.missing() == 0
	})
	if err != nil {
		t.Errorf("LOST: %d of %d accepted messages have not come within %s", b.missing(), len(b.accepted), limit)
	}
	for text := range b.delivered {
		if !b.accepted[text] && !b.unknown[text] {
			t.Errorf("%s was refused with applied no, and came", text)
		}
		if (b.settled[text] > 1 || b.again[text] > 0) && !b.restarted {
			t.Errorf("%s was settled %d times, and came %d times after it was", text, b.settled[text], b.again[text])
		}
	}
	t.Logf("%d accepted, %d delivered, refusals %v, %d of them with an unknown outcome", len(b.accepted), len(b.delivered), b.refusals, len(b.unknown))
}

func (b *book) missing() (n int) {
	for text := range b.accepted {
		if b.delivered[text] == 0 {
			n++
		}
	}
	return n
}

// samePIDs fails when a node is another process than before.
func samePIDs(t *testing.T, c *harness.Cluster, before []harness.Node) {
	t.Helper()
	for _, n := range before {
		if c.Node(n.ID).PID != n.PID {
			t.Errorf("%s did not live through it:\n%s", n.ID, tail(nodeLog(t, c, n.ID)))
		}
	}
}

func tail(log string) string { return log[max(0, len(log)-1500):] }

// TestFullDiskOfAGateway: one gateway's disk is full. It refuses and says so, the
// other one goes on, and when there is room it accepts again by itself.
func TestFullDiskOfAGateway(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 2})
	disk := ontoSmallDisk(t, c, "gateway-1", 64)
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "full"})
	before := c.Nodes()
	full, healthy, b := direct(t, c.URLs()[0]), direct(t, c.URLs()[1]), newBook()
	for range 20 {
		b.produce(ctx, t, full, "full", 1000)
	}
	for round := range 3 {
		ballast := fill(t, disk)
		refused := func() bool { return b.produce(ctx, t, full, "full", 100_000) != "" }
		if err := harness.Until(ctx, 30*time.Second, refused); err != nil {
			t.Fatalf("round %d: the gateway accepts for 30 s on a full disk: %v", round, b.refusals)
		}
		for range 50 {
			if code := b.produce(ctx, t, full, "full", 1000); code != "disk_full" && code != "wal_unavailable" && code != "topic_backlog_full" {
				t.Errorf("round %d: refused with %q", round, code)
			}
			if code := b.produce(ctx, t, healthy, "full", 1000); code != "" {
				t.Errorf("round %d: the other gateway refuses: %s", round, code)
			}
		}
		if status, body := call(t, "GET", "http://"+*c.Node("gateway-1").Ops+"/readyz/accept", ""); status != 503 || !strings.Contains(body, "disk_full") && !strings.Contains(body, "wal_unavailable") {
			t.Errorf("round %d: /readyz/accept: %d %s", round, status, body)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := harness.Until(ctx, 30*time.Second, func() bool { return b.produce(ctx, t, full, "full", 1000) == "" }); err != nil {
			t.Fatalf("round %d: the gateway still refuses 30 s after there was room: %v", round, b.refusals)
		}
	}
	// What takes produce says so at once. Its replica, which has its log on the same disk,
	// may wait for entries still, and nothing else may: the leader sends what was refused
	// again after 10.24 s at the most.
	ops := *c.Node("gateway-1").Ops
	if status, codes := readyReasons(t, ops, "/readyz/accept"); status != 200 || len(codes) > 0 {
		t.Errorf("the gateway accepts and /readyz/accept says %d %v", status, codes)
	}
	began := time.Now()
	if err := harness.Until(ctx, 40*time.Second, func() bool {
		status, codes := readyReasons(t, ops, "/readyz")
		if slices.ContainsFunc(codes, func(c string) bool { return c != "disk_full" && c != "leader_contact_stale" && c != "no_leader" }) {
			t.Errorf("not ready with room again: %v", codes)
		}
		return status == 200
	}); err != nil {
		t.Error("the gateway accepts and is not ready")
	}
	t.Logf("ready %s after it accepts", time.Since(began))
	b.drain(ctx, t, cl, "full", 60*time.Second)
	samePIDs(t, c, before)
}

// TestFullDiskOfAStorageNode: accepted messages wait in the gateways until the
// node has room again; what is on another node goes on meanwhile.
func TestFullDiskOfAStorageNode(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1})
	disk := ontoSmallDisk(t, c, "storage-1", 64)
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "full", Partitions: 4, VisibilityTimeoutMS: 600_000})
	before := c.Nodes()
	once, b := direct(t, c.URLs()[0]), newBook()
	for range 40 {
		b.produce(ctx, t, once, "full", 1000)
	}
	ballast := fill(t, disk)
	refuses := func() bool { return strings.Contains(nodeLog(t, c, "storage-1"), "commits_refused=true") }
	if err := harness.Until(ctx, 30*time.Second, refuses); err != nil {
		t.Error("the node did not notice within 30 s that its disk is full")
	}
	b.whileFull(ctx, t, cl, once)
	partition := moveToTheFull(ctx, t, cl)
	b.whileFull(ctx, t, cl, once) // the source goes on
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if err := harness.Until(ctx, moveLimit, func() bool {
		_, leader := replicasOf(ctx, cl, "full", partition)
		m, err := cl.Moves(ctx)
		return err == nil && len(m.Moves) == 0 && leader != "" // balanced by now, perhaps back again
	}); err != nil {
		t.Error("with room again the move does not end")
	}
	b.drain(ctx, t, cl, "full", 60*time.Second)
	samePIDs(t, c, before)

	// Now faster than the node looks: a write meets the full disk. That ends a
	// leadership, and a node of single copies with it; nothing is lost all the same.
	for range 2 {
		ballast := fill(t, disk)
		b.whileFull(ctx, t, cl, once)
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	}
	b.restarted = true
	b.drain(ctx, t, cl, "full", 60*time.Second)
	if err := harness.Until(ctx, 60*time.Second, func() bool { return c.Ready("storage-1") }); err != nil {
		t.Error("the node is not ready 60 s after there was room")
	}
}

// moveToTheFull begins the move of a partition to the node whose disk is full, waits
// until the cluster says what it waits for, and returns the partition.
func moveToTheFull(ctx context.Context, t *testing.T, cl *client.Client) (partition int) {
	t.Helper()
	var refused error
	if err := harness.Until(ctx, moveLimit, func() bool { // who leads may not be known at once, or be balanced just then
		for partition = range 4 {
			if _, leader := replicasOf(ctx, cl, "full", partition); leader == "storage-2" {
				_, refused = cl.StartMove(ctx, "full", int32(partition), "storage-2", "storage-1")
				break
			}
		}
		m, err := cl.Moves(ctx) // it may have begun and not been answered
		return err == nil && slices.ContainsFunc(m.Moves, func(x client.Move) bool { return int(x.Partition) == partition && x.To == "storage-1" })
	}); err != nil {
		t.Fatalf("a move to the full node does not begin: %v", refused)
	}
	var last client.Moves
	if err := harness.Until(ctx, moveLimit, func() bool {
		m, err := cl.Moves(ctx)
		if err == nil {
			last = m
		}
		return slices.ContainsFunc(last.Moves, func(x client.Move) bool { // beside it others may be balanced away
			return int(x.Partition) == partition && x.Blocked != nil && *x.Blocked == "target_disk_full"
		})
	}); err != nil {
		t.Errorf("nobody says that the destination's disk is full: %+v", last)
	}
	return partition
}

// TestFullDiskWhileMetadataChanges: a change of the metadata reaches every node, and
// one whose disk is full cannot store it. It waits, says so, and follows when
// there is room; nobody ends, and a start in between ends nothing either.
func TestFullDiskWhileMetadataChanges(t *testing.T) {
	for _, id := range []string{"gateway-2", "storage-2"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 2})
			disk := ontoSmallDisk(t, c, id, 64)
			_, ctx := connect(t, c)
			healthy := direct(t, c.URLs()[0])
			before := c.Nodes()
			ballast := fill(t, disk)
			create := func(from, to int) {
				for i := from; i < to; i++ {
					if _, err := healthy.CreateTopic(ctx, client.TopicSpec{Name: fmt.Sprintf("meta-%d", i), Partitions: 8}); err != nil {
						t.Fatalf("topic %d: %v", i, err)
					}
				}
			}
			create(0, 150)
			ready := "http://" + *c.Node(id).Ops + "/readyz"
			says := func() bool { _, body := call(t, "GET", ready, ""); return strings.Contains(body, "waits for room") }
			if err := harness.Until(ctx, 40*time.Second, says); err != nil {
				_, body := call(t, "GET", ready, "")
				t.Errorf("%s does not say that its replica waits for room: %s", id, body)
			}
			samePIDs(t, c, before)
			old := c.Node(id).PID
			c.Terminate(id) // whoever starts it again starts it on a full disk
			started := func() bool { pid := c.Node(id).PID; return pid != 0 && pid != old }
			if err := harness.Until(ctx, 40*time.Second, started); err != nil {
				t.Fatalf("%s was not started again", id)
			}
			before = c.Nodes()
			create(150, 200)
			samePIDs(t, c, before)
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if err := harness.Until(ctx, 60*time.Second, func() bool { return c.Ready(id) }); err != nil {
				t.Fatalf("%s is not ready 60 s after there was room:\n%s", id, tail(nodeLog(t, c, id)))
			}
			samePIDs(t, c, before)
			all := direct(t, c.URLs()[1])
			served := func() bool { _, err := all.Topic(ctx, "meta-199"); return err == nil }
			if err := harness.Until(ctx, 30*time.Second, served); err != nil {
				t.Errorf("the second gateway does not know the last topic")
			}
		})
	}
}

// whileFull produces through a gateway with room, and gets what the other storage
// node has: both go on while one node's disk is full.
func (b *book) whileFull(ctx context.Context, t *testing.T, cl, once *client.Client) {
	t.Helper()
	for range 300 { // more than the slack of the files that are open
		b.produce(ctx, t, once, "full", 20_000)
	}
	served := 0
	err := harness.Until(ctx, 40*time.Second, func() bool {
		got, err := cl.Receive(ctx, "full", client.ReceiveOptions{Max: 1, Wait: time.Second})
		if err != nil || len(got.Deliveries) == 0 {
			return false
		}
		b.deliver(ctx, t, cl, "full", got.Deliveries)
		served++
		return served == 50
	})
	if err != nil {
		t.Errorf("only %d messages were served within 40 s while one node of two was full", served)
	}
}
