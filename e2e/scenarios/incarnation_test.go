//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// TestRecreatedTopicNeverServesTheDeletedOne is the figure of the lifecycle page: a
// storage node goes down, its topic is deleted, created again under the same name and
// filled; the node returns and serves only the new data, from the log start, with a
// fresh position. Records that a gateway had accepted for the old life are discarded
// once the leader confirms its end, and hold up nothing. After a sweep no byte of the
// old life is left, and all of the new one is.
func TestRecreatedTopicNeverServesTheDeletedOne(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1})
	cl, ctx := connect(t, c)
	l := &lives{t: t, c: c, cl: cl, ctx: ctx}
	old := l.create()
	produceN(ctx, t, cl, "orders", "old", 40)
	drain(ctx, t, cl, "orders", 39) // the old position is not the log start
	held, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 1, Wait: 5 * time.Second})
	if err != nil || len(held.Deliveries) != 1 {
		t.Fatalf("%+v, %v", held, err)
	}
	down := l.ledBy("storage-1")

	pid := c.Node("storage-1").PID
	c.Hold("storage-1")
	c.Kill("storage-1")
	for i := range 20 {
		m := client.Message{Payload: fmt.Appendf(nil, "old-accepted-%d", i), Partition: client.Pin(down)}
		if _, err := cl.Produce(ctx, "orders", m, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	waiter := l.wait(down)
	if err := cl.DeleteTopic(ctx, "orders", old.ETag()); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	if err := <-waiter; !client.HasCode(err, client.CodeTopicNotFound) || time.Since(deleted) > waitsFor/3 {
		t.Errorf("a consume of the deleted topic ended with %v after %s", err, time.Since(deleted))
	}
	fresh := l.create()
	if fresh.Incarnation == old.Incarnation {
		t.Fatal("the new life has the old id")
	}
	if err := cl.Ack(ctx, "orders", held.Deliveries[0].ReceiptHandle); !client.HasCode(err, client.CodeLeaseLost) {
		t.Errorf("a handle of the old life: %v", err)
	}
	for i := range 60 { // keys, so that both partitions get some
		m := client.Message{Payload: fmt.Appendf(nil, "new-%d", i), Key: fmt.Appendf(nil, "k%d", i)}
		if _, err := cl.Produce(ctx, "orders", m, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l.discarded(20)
	if report := sweepJSON(t, c, 1, "--dry-run"); !report.unreachable("storage-1") {
		t.Errorf("while it is down: %+v", report.Nodes)
	}
	c.Free("storage-1")
	c.WaitReady("storage-1", pid)

	got := drain(ctx, t, cl, "orders", 60)
	for i := range 60 {
		if s := fmt.Sprintf("new-%d", i); got[s] != 1 {
			t.Errorf("%s came %d times", s, got[s])
		}
	}
	if r, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 10, Wait: time.Second}); err != nil || len(r.Deliveries) != 0 {
		t.Errorf("something else came: %+v, %v", r.Deliveries, err)
	}
	l.replays(60)
	l.until("the sweep reclaims something", func() bool {
		l.leaveBehind("storage-2", old) // what a purge has missed; the node's own pass of each minute may come first
		return sweepJSON(t, c, 0).Summary.Reclaimed > 0
	})
	l.nothingLeft(old)
	if report := sweepJSON(t, c, 0); report.Summary.Gone != 0 || report.Summary.Live == 0 {
		t.Errorf("after the sweep: %+v", report.Summary)
	}
	l.replays(60)
}

// lives is one topic of two partitions, in several lives.
type lives struct {
	t   *testing.T
	c   *harness.Cluster
	cl  *client.Client
	ctx context.Context
}

func (l *lives) create() client.Topic {
	l.t.Helper()
	topic, err := l.cl.CreateTopic(l.ctx, client.TopicSpec{Name: "orders", Partitions: 2})
	if err != nil {
		l.t.Fatal(err)
	}
	return topic
}

// ledBy is a partition that a node leads.
func (l *lives) ledBy(node string) uint32 {
	l.t.Helper()
	var led uint32
	l.until(node+" leads a partition", func() bool {
		details, err := l.cl.Topic(l.ctx, "orders")
		if err != nil {
			l.t.Fatal(err)
		}
		for _, p := range details.PartitionDetails {
			if p.Leader != nil && *p.Leader == node {
				led = p.Index
				return true
			}
		}
		return false
	})
	return led
}

// waitsFor is the wait of a consume that a delete must end, long before it is over. That
// it ends within 1 s is held by the gateway's tests of ended lives, where the clock is
// not the machine's; here it is the machine's time from the delete to the answer.
const waitsFor = 30 * time.Second

// wait begins a consume that stays, and returns how it ends.
func (l *lives) wait(partition uint32) <-chan error {
	l.t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := l.cl.Receive(l.ctx, "orders", client.ReceiveOptions{Wait: waitsFor, Partition: client.Pin(partition)})
		ended <- err
	}()
	l.until("a consume waits", func() bool { return l.metric("narad_consume_waiting") == 1 })
	return ended
}

func (l *lives) until(what string, ok func() bool) {
	l.t.Helper()
	if err := harness.Until(l.ctx, 20*time.Second, ok); err != nil {
		l.t.Fatalf("%s: %v", what, err)
	}
}

func (l *lives) metric(name string) float64 {
	l.t.Helper()
	var v float64
	l.until(name+" is told", func() bool { // a busy gateway may not answer at once
		v = gauge(l.c, "gateway-1", name)
		return v >= 0
	})
	return v
}

// discarded waits until exactly that many records were given up.
func (l *lives) discarded(n float64) {
	l.t.Helper()
	l.until("held records are discarded", func() bool { return l.metric("narad_dispatch_discarded_total") >= n })
	if got, held := l.metric("narad_dispatch_discarded_total"), l.metric("narad_dispatch_held_records"); got != n || held > n {
		l.t.Errorf("%v records discarded, want %v; %v held", got, n, held)
	}
}

// replays reads both partitions from the log start: n records, all of the new life.
func (l *lives) replays(n int) {
	l.t.Helper()
	for p := range uint32(2) {
		page, err := l.cl.ReplayOnce(l.ctx, "orders", client.ReplayOptions{Partition: p})
		if err != nil || page.LogStart != 0 {
			l.t.Fatalf("partition %d starts at %d: %v", p, page.LogStart, err)
		}
		for rec, err := range l.cl.Replay(l.ctx, "orders", client.ReplayOptions{Partition: p}) {
			if err != nil {
				l.t.Fatal(err)
			}
			if !strings.HasPrefix(string(rec.Payload), "new-") {
				l.t.Errorf("replay of the new life serves %q", rec.Payload)
			}
			n--
		}
	}
	if n != 0 {
		l.t.Errorf("%d records more or less than there should be", n)
	}
}

// leaveBehind puts a directory of the old life beside the new one's, as a purge that
// was missed would: set aside, with the old marker, and some bytes in it.
func (l *lives) leaveBehind(node string, old client.Topic) {
	l.t.Helper()
	aside := filepath.Join(l.c.Dir, node, "topics", "orders.stale-"+old.Incarnation)
	if err := os.MkdirAll(filepath.Join(aside, "p00000"), 0o700); err != nil {
		l.t.Fatal(err)
	}
	err := errors.Join(os.WriteFile(filepath.Join(aside, "incarnation"), markerOf(old.Incarnation), 0o600),
		os.WriteFile(filepath.Join(aside, "p00000", "00000000000000000000.log"), make([]byte, 4096), 0o600))
	if err != nil {
		l.t.Fatal(err)
	}
}

// nothingLeft looks at the disks: no name and no marker of the old life.
func (l *lives) nothingLeft(old client.Topic) {
	l.t.Helper()
	for _, node := range l.c.IDs(harness.Storage) {
		err := filepath.WalkDir(filepath.Join(l.c.Dir, node), func(path string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // files of a replica come and go
			}
			if err != nil {
				return err
			}
			raw := []byte(path)
			if e.Name() == "incarnation" {
				if raw, err = os.ReadFile(path); err != nil {
					return err
				}
			}
			if strings.Contains(string(raw), old.Incarnation) {
				l.t.Errorf("%s is left of the old life", path)
			}
			return nil
		})
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// markerOf is what a directory's marker holds (libs/topicdir).
func markerOf(incarnation string) []byte {
	return fmt.Appendf(nil, "%s %08x\n", incarnation, crc32.Checksum([]byte(incarnation), crc32.MakeTable(crc32.Castagnoli)))
}
