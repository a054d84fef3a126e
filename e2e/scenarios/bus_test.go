//go:build e2e

package scenarios

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/testkit"
)

// serveNATS runs a NATS server in the test until stop is called.
func serveNATS(t *testing.T, addr string) (stop func()) {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: n, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	return func() { s.Shutdown(); s.WaitForShutdown() }
}

// purges reads how many broadcasts of purges a node counted.
func purges(c *harness.Cluster, id, outcome string) float64 {
	m := regexp.MustCompile(`narad_bus_messages_total\{outcome="` + outcome + `",subject="topic_purged"\} (\S+)`).FindStringSubmatch(c.Metrics(id))
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return -1
	}
	return v
}

// TestBusOutcomes: with a NATS server that is absent, there, flooded with garbage and
// forged purges, and gone again, everything that a client sees is the same; with one
// that is there, storage nodes hear of deletes at once.
func TestBusOutcomes(t *testing.T) {
	addr := testkit.FreeAddr(t)
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1, Args: []string{"--nats-url", "nats://" + addr}})
	cl, ctx := connect(t, c)
	await := func(what string, ok func() bool) {
		t.Helper()
		if err := harness.Until(ctx, 20*time.Second, ok); err != nil {
			t.Fatalf("gave up waiting until %s; logs in %s", what, c.Dir)
		}
	}
	onDisk := func(name string) (left []string) {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(c.Dir, "storage-*", "topics", name+"*"))
		if err != nil {
			t.Fatal(err)
		}
		return left
	}
	// life makes a topic, uses it, deletes it, and waits until nothing of it is on a
	// disk; it returns how long the delete took.
	life := func(name string) time.Duration {
		t.Helper()
		create(ctx, t, cl, client.TopicSpec{Name: name, Partitions: 4})
		produceN(ctx, t, cl, name, "m", 20)
		if got := drain(ctx, t, cl, name, 20); len(got) != 20 {
			t.Fatalf("%d of 20 messages", len(got))
		}
		if len(onDisk(name)) == 0 {
			t.Fatal("nothing is on a disk: the test looks in the wrong place")
		}
		begin := time.Now()
		if err := cl.DeleteTopic(ctx, name, ""); err != nil {
			t.Fatal(err)
		}
		took := time.Since(begin)
		await("nothing of "+name+" is on a disk", func() bool { return len(onDisk(name)) == 0 })
		t.Logf("%s: deleted after %s, off the disks after %s", name, took, time.Since(begin))
		return took
	}
	nodes := []string{"gateway-1", "storage-1", "storage-2"}
	// lives repeats a life until its delete was quick: one alone may be late for want of a
	// processor.
	lives := func(name string) {
		t.Helper()
		onceInTime(t, "with the bus "+name+" a delete does not wait for it", func() (kept bool, figures string) {
			took := life(name)
			return took <= 2*time.Second, took.String()
		})
	}
	lives("absent")
	stop := serveNATS(t, addr)
	defer func() { stop() }()
	await("all are connected", func() bool {
		for _, id := range nodes {
			if gauge(c, id, "narad_bus_connected") != 1 {
				return false
			}
		}
		return true
	})
	// What was said before may be heard, or lost: nobody may have listened yet.
	await("the first delete is told", func() bool {
		return purges(c, "gateway-1", "published")+purges(c, "gateway-1", "failed") >= 1
	})
	heard := purges(c, "storage-1", "received")
	lives("there")
	await("the storage nodes hear of the delete", func() bool {
		return purges(c, "storage-1", "received") > heard && purges(c, "storage-2", "received") > 0
	})

	live, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "kept", Partitions: 4})
	if err != nil {
		t.Fatal(err)
	}
	produceN(ctx, t, cl, "kept", "m", 20)
	info, err := cl.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	forger, err := nats.Connect("nats://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3000 {
		payload := fmt.Sprintf(`{"v":1,"id":"%016x","from":"gateway-1","sent_at":"","topic":"kept","incarnation":"%s"}`, i, live.Incarnation)
		if i%2 == 0 {
			payload = "\xff" + payload
		}
		if err := forger.Publish("narad."+info.ClusterID+".v1.topic_purged", []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	if err := forger.Flush(); err != nil {
		t.Fatal(err)
	}
	forger.Close()
	await("garbage is counted", func() bool { return purges(c, "storage-1", "ignored") >= 1500 })
	lives("flooded")
	if got := drain(ctx, t, cl, "kept", 20); len(got) != 20 {
		t.Errorf("%d of 20 messages of a live topic are left after a forged purge", len(got))
	}
	stop()
	await("all have noticed", func() bool { return gauge(c, "gateway-1", "narad_bus_connected") == 0 })
	lives("gone")
	for _, id := range nodes {
		if err := harness.Until(ctx, 20*time.Second, func() bool { return c.Ready(id) }); err != nil {
			t.Errorf("%s is not ready: readiness must not follow the bus", id)
		}
	}
}

// TestAStorageNodeNoticesThatItDrains: with a bus and without one, within a moment, from
// the decommission to the cancel; meanwhile it is ready and serves what it holds. What
// strangers say on the bus changes nothing.
func TestAStorageNodeNoticesThatItDrains(t *testing.T) {
	addr := testkit.FreeAddr(t)
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 2, Gateways: 1, Args: []string{"--nats-url", "nats://" + addr}})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 4})
	produceN(ctx, t, cl, "orders", "m", 20)
	if got := drain(ctx, t, cl, "orders", 20); len(got) != 20 {
		t.Fatalf("%d of 20 messages", len(got))
	}
	thaw := c.Freeze("storage-2") // nothing can move there, so that the decommission goes on
	defer thaw()
	draining := func() bool { return gauge(c, "storage-1", "narad_storage_draining") == 1 }
	leave := func(how string) {
		t.Helper()
		begin := time.Now()
		if err := cl.Decommission(ctx, "storage-1", false); err != nil {
			t.Fatal(err)
		}
		if err := harness.Until(ctx, 20*time.Second, draining); err != nil {
			t.Fatalf("%s: it does not notice; logs in %s", how, c.Dir)
		}
		noticed := time.Since(begin)
		var status int
		var body string
		if err := harness.Until(ctx, 20*time.Second, func() bool {
			status, body = call(t, "GET", "http://"+*c.Node("storage-1").Ops+"/readyz", "")
			return status == 200 && regexp.MustCompile(`"degraded":\[\{"code":"draining"`).MatchString(body)
		}); err != nil {
			t.Errorf("%s: /readyz of one that drains: %d %s", how, status, body)
		}
		begin = time.Now()
		if err := cl.CancelDecommission(ctx, "storage-1"); err != nil {
			t.Fatal(err)
		}
		if err := harness.Until(ctx, 20*time.Second, func() bool { return !draining() }); err != nil {
			t.Fatalf("%s: it does not notice the cancel; logs in %s", how, c.Dir)
		}
		t.Logf("%s: noticed %s after the request, and the cancel %s after that", how, noticed, time.Since(begin))
	}
	leave("without a bus")
	stop := serveNATS(t, addr)
	defer func() { stop() }()
	if err := harness.Until(ctx, 20*time.Second, func() bool {
		return gauge(c, "storage-1", "narad_bus_connected") == 1 && gauge(c, "voter-1", "narad_bus_connected") == 1
	}); err != nil {
		t.Fatal("nobody is connected")
	}
	leave("with a bus")
	info, err := cl.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	forger, err := nats.Connect("nats://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer forger.Close()
	heard := heardDrains(c, "storage-1")
	for _, payload := range []string{
		`{"v":1,"id":"0000000000000001","from":"voter-1","sent_at":"","member":"storage-1","draining":true}`,
		`{"v":1,"id":"0000000000000002","from":"voter-1","sent_at":"","member":"storage-2","draining":true}`,
		"\xff garbage",
		`{"v":1,"id":"0000000000000003","from":"voter-1","sent_at":"","member":"storage-1","draining":true}`,
	} {
		if err := forger.Publish("narad."+info.ClusterID+".v1.member_draining", []byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	if err := forger.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := harness.Until(ctx, 10*time.Second, func() bool { return heardDrains(c, "storage-1") >= heard+3 }); err != nil {
		t.Fatal("what strangers say is not heard: this proves nothing")
	}
	drains := -1.0
	if err := harness.Until(ctx, 20*time.Second, func() bool {
		drains = gauge(c, "storage-1", "narad_storage_draining")
		return drains >= 0 // else it did not answer
	}); err != nil || drains > 0 {
		t.Errorf("it believes a stranger: %v, %v", drains, err)
	}
	produceN(ctx, t, cl, "orders", "again", 5)
	stop()
	leave("with a bus that is gone")
}

// heardDrains reads how many broadcasts about members that drain a node has heard.
func heardDrains(c *harness.Cluster, id string) float64 {
	m := regexp.MustCompile(`narad_bus_messages_total\{outcome="received",subject="member_draining"\} (\S+)`).FindStringSubmatch(c.Metrics(id))
	if m == nil {
		return -1
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return -1
	}
	return v
}
