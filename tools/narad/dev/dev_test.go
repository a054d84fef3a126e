package dev

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
)

func TestClusterStartsAndStopsInOrder(t *testing.T) {
	r := run(t, Size{3, 2, 2})
	r.ready()
	for _, id := range []string{"voter-1", "voter-2", "voter-3", "storage-1", "storage-2", "gateway-1", "gateway-2"} {
		e := r.node(id)
		if !alive(e.PID) || strings.TrimSpace(r.read("run/"+id+".pid")) != strconv.Itoa(e.PID) {
			t.Errorf("%s: pid %d, pid file %q", id, e.PID, r.read("run/"+id+".pid"))
		}
		if e.RPC == nil || e.Raft == nil || e.Ops == nil || (e.HTTP != nil) != (e.Role == Gateway) {
			t.Errorf("addresses of %+v", e)
		}
		if log := r.read("run/" + id + ".log"); !strings.Contains(log, "started "+id) || strings.Contains(log, "leaked") {
			t.Errorf("log of %s: %s", id, log)
		}
	}
	if want := fmt.Sprintf("http://127.0.0.1:%d", r.c.cfg.BasePort); r.c.URLs()[0] != want || !strings.HasPrefix(r.read("ready"), want+"\n") {
		t.Errorf("urls %v, ready file %q", r.c.URLs(), r.read("ready"))
	}
	pid := r.node("voter-1").PID
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
	order := strings.Fields(r.read("stopped"))
	if len(order) != 7 || alive(pid) {
		t.Fatalf("stopped %v, voter alive: %t", order, alive(pid))
	}
	for i, prefix := range []string{"gateway", "gateway", "storage", "storage", "voter", "voter", "voter"} {
		if !strings.HasPrefix(order[i], prefix) {
			t.Errorf("stopped in the order %v", order)
		}
	}
	if exists(filepath.Join(r.dir, "ready")) {
		t.Error("the ready file is left")
	}
	if r.node("voter-1").PID != 0 || r.read("run/voter-1.pid") != "" {
		t.Error("a stopped node still has a pid")
	}
}

func TestKilledNodeIsStartedAgain(t *testing.T) {
	r := run(t, Size{1, 1, 1})
	r.ready()
	since := time.Now()
	old := r.kill("storage-1")
	testkit.Poll(t, limit, "another process runs", func() bool { pid := r.node("storage-1").PID; return pid > 0 && pid != old })
	if d := time.Since(since); d < 900*time.Millisecond {
		t.Errorf("started again after %v, want a second", d)
	}
	if err := r.finish(); err != nil {
		t.Fatal(err)
	}
}

func TestHoldKeepsANodeDown(t *testing.T) {
	r := run(t, Size{1, 1, 1})
	r.ready()
	r.touch("run/storage-1.hold")
	r.kill("storage-1")
	testkit.Poll(t, limit, "the node is down", func() bool { return r.node("storage-1").PID == 0 })
	// The gateway is killed later and comes back: by then a node without a hold would be back too.
	old := r.kill("gateway-1")
	testkit.Poll(t, limit, "the gateway is back", func() bool { pid := r.node("gateway-1").PID; return pid > 0 && pid != old })
	if pid := r.node("storage-1").PID; pid != 0 {
		t.Fatalf("a held node runs as %d", pid)
	}
	if err := os.Remove(filepath.Join(r.dir, "run", "storage-1.hold")); err != nil {
		t.Fatal(err)
	}
	testkit.Poll(t, limit, "the node is back", func() bool { return alive(r.node("storage-1").PID) })
	r.touch("run/storage-1.hold")
	r.kill("storage-1")
	testkit.Poll(t, limit, "the node is down again", func() bool { return r.node("storage-1").PID == 0 })
	if err := r.finish(); err != nil { // a held node does not hold up the stop
		t.Fatal(err)
	}
}

func TestReadyFileWaitsForEveryNode(t *testing.T) {
	r := run(t, Size{1, 1, 1}, "unready-storage-1", "ready")
	testkit.Poll(t, limit, "all run", func() bool {
		return !exists(filepath.Join(r.dir, "ready")) && strings.Contains(r.read("run/storage-1.log"), "started") &&
			strings.Contains(r.read("run/gateway-1.log"), "started")
	})
	if err := os.Remove(filepath.Join(r.dir, "unready-storage-1")); err != nil {
		t.Fatal(err)
	}
	r.ready()
}

// A voter that came late is ready before it votes: who ended another one then would end
// the majority.
func TestReadyFileWaitsForVotes(t *testing.T) {
	r := run(t, Size{3, 0, 1}, "voteless-voter-1", "ready")
	// It is asked once every node is ready, and again only by one that waits.
	testkit.Poll(t, limit, "the leading voter was asked", func() bool { return strings.Count(r.read("asked"), "voter-1") > 1 })
	if exists(filepath.Join(r.dir, "ready")) {
		t.Error("ready before every voter has its vote")
	}
	if err := os.Remove(filepath.Join(r.dir, "voteless-voter-1")); err != nil {
		t.Fatal(err)
	}
	r.ready()
}

func TestVotesAreWaitedForSoLong(t *testing.T) {
	r := runWith(t, Size{3, 0, 0}, func(c *Cluster) { c.voteWait = 10 * time.Millisecond }, "voteless-voter-1")
	r.ready()
}

func TestDeafNodeIsKilledAtTheSecondRequest(t *testing.T) {
	r := run(t, Size{1, 1, 1}, "stubborn-storage-1")
	r.ready()
	pid := r.node("storage-1").PID
	r.stop()
	testkit.Poll(t, limit, "the gateway has stopped", func() bool { return strings.Contains(r.read("stopped"), "gateway-1") })
	if !alive(pid) {
		t.Error("the node was not given its time")
	}
	r.c.Kill()
	if err := r.finish(); err == nil || !strings.Contains(err.Error(), "storage-1 did not stop in time and was killed") {
		t.Errorf("got %v", err)
	}
	if alive(pid) {
		t.Error("it still runs")
	}
}

func TestChildrenDieWithDev(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a child's life to its parent's")
	}
	dir := t.TempDir()
	cmd := devProcess(t, dir)
	testkit.Poll(t, limit, "the cluster is ready", func() bool { return exists(filepath.Join(dir, "ready")) })
	pids := []int{findNode(t, dir, "voter-1").PID, findNode(t, dir, "storage-1").PID, findNode(t, dir, "gateway-1").PID}
	for _, pid := range pids {
		if !alive(pid) {
			t.Fatalf("pids %v", pids)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	testkit.Poll(t, limit, "the children are gone", func() bool { return !alive(pids[0]) && !alive(pids[1]) && !alive(pids[2]) })
}

func TestRefusals(t *testing.T) {
	base := freeBase(t)
	l, err := net.Listen("tcp", address(base))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := t.TempDir()
	if _, err := New(fakeConfig(dir, base, Size{1, 1, 1})); err == nil || !strings.Contains(err.Error(), address(base)+" is in use") {
		t.Errorf("busy port: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []Size{{0, 1, 1}, {2, 1, 1}, {1, 20, 1}, {1, -1, 1}} {
		if _, err := New(fakeConfig(dir, base, s)); err == nil {
			t.Errorf("%+v was taken", s)
		}
	}
	if _, err := New(fakeConfig(dir, base, Size{1, 1, 1})); err != nil {
		t.Fatal(err)
	}
	if _, err := New(fakeConfig(dir, base, Size{1, 3, 2})); err != nil {
		t.Errorf("more storage nodes over the same data: %v", err)
	}
	if _, err := New(fakeConfig(dir, base, Size{3, 1, 1})); err == nil || !strings.Contains(err.Error(), "--voters 1") {
		t.Errorf("other voters over the same data: %v", err)
	}
	if _, err := Find("no-such-program-of-narad"); err == nil || !strings.Contains(err.Error(), "PATH") {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestArguments(t *testing.T) {
	at := func(size Size, change func(*Config)) (*layout, error) {
		cfg := Config{Size: size, BasePort: 7942, DataDir: "/d", LogLevel: "info"}
		if change != nil {
			change(&cfg)
		}
		return plan(cfg)
	}
	one, err := at(Size{1, 1, 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const common = " --gossip-addr=GOSSIP --nats-url=nats://127.0.0.1:7946 --advertise 127.0.0.1 --log-format text --log-level info --insecure "
	want := []string{
		"--node-id voter-1 --data-dir /d/voter-1 --rpc-addr 127.0.0.1:7999 --raft-addr 127.0.0.1:8000 --ops-addr 127.0.0.1:8001" + common + "--single",
		"--node-id storage-1 --data-dir /d/storage-1 --rpc-addr 127.0.0.1:7996 --raft-addr 127.0.0.1:7997 --ops-addr 127.0.0.1:7998" + common + "--join 127.0.0.1:7999",
		"--node-id gateway-1 --data-dir /d/gateway-1 --rpc-addr 127.0.0.1:7993 --raft-addr 127.0.0.1:7994 --ops-addr 127.0.0.1:7995" + common +
			"--http-addr 127.0.0.1:7942 --auth none --drain-delay 0s --join 127.0.0.1:7999",
	}
	for i, n := range one.nodes {
		want[i] = strings.Replace(want[i], "GOSSIP", "127.0.0.1:"+strconv.Itoa(7943+i), 1)
		if got := strings.Join(n.args, " "); got != want[i] {
			t.Errorf("got  %s\nwant %s", got, want[i])
		}
	}
	secure, err := at(Size{1, 1, 1}, func(c *Config) { c.TLS = true })
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range secure.nodes {
		files := "--tls-cert /d/certs/" + n.id + ".pem --tls-key /d/certs/" + n.id + "-key.pem --tls-ca /d/certs/ca.pem --cluster-secret-file /d/certs/cluster-secret"
		if got := strings.Join(n.args, " "); got != strings.Replace(want[i], "--insecure", files, 1) {
			t.Errorf("with TLS %s", got)
		}
	}
	three, err := at(Size{3, 9, 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(three.nodes[1].args, " ")
	for _, part := range []string{
		"--initial-members voter-1=127.0.0.1:8000,voter-2=127.0.0.1:7997,voter-3=127.0.0.1:7994",
		"--join 127.0.0.1:7999,127.0.0.1:7996,127.0.0.1:7993",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("voter-2 is started with %s", got)
		}
	}
	without, err := at(Size{1, 1, 1}, func(c *Config) { c.TLS, c.NoGossip = true, true })
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range append(without.nodes, three.nodes...) { // none wanted; no room for it
		if args := strings.Join(n.args, " "); !strings.Contains(args, "--gossip-addr= ") || strings.Contains(args, "secret") {
			t.Errorf("without gossip %s", args)
		}
	}
	large, err := at(Size{3, 6, 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkPorts(t, three, false)
	checkPorts(t, large, true)
	full, err := at(Size{1, 13, 4}, nil) // two ports are left: too few for gossip
	if err != nil || full.bus == "" {
		t.Fatalf("%+v, %v", full, err)
	}
	checkPorts(t, full, false)
	if full, err = at(Size{1, 19, 0}, nil); err != nil || full.bus != "" || !strings.Contains(strings.Join(full.nodes[0].args, " "), "--nats-url= ") {
		t.Errorf("without room for a bus: %+v, %v", full, err)
	}
	theirs, err := at(Size{1, 1, 1}, func(c *Config) { c.NATSURL = "nats://a:4222" })
	if err != nil || theirs.bus != "" || !strings.Contains(strings.Join(theirs.nodes[2].args, " "), "--nats-url=nats://a:4222 ") {
		t.Errorf("with a bus of one's own: %+v, %v", theirs, err)
	}
	if _, err := at(Size{1, 1, 1}, func(c *Config) { c.NATSURL = "nats://bob:hunter2@a:4222" }); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password in the URL: %v", err)
	}
}

// checkPorts: each within the span, and nobody else's.
func checkPorts(t *testing.T, l *layout, gossip bool) {
	t.Helper()
	seen := map[string]string{}
	for _, n := range append([]node{{id: "bus", http: l.bus}}, l.nodes...) {
		if n.id != "bus" && gossip != (n.gossip != "") {
			t.Errorf("gossip of %s at %q", n.id, n.gossip)
		}
		for _, a := range []string{n.http, n.rpc, n.raft, n.ops, n.gossip} {
			if a == "" {
				continue
			}
			_, port, err := net.SplitHostPort(a)
			if err != nil {
				t.Fatal(err)
			}
			if p, err := strconv.Atoi(port); err != nil || p < 7942 || p >= 7942+PortSpan || seen[a] != "" {
				t.Errorf("%s of %s: outside the span, or that of %s", a, n.id, seen[a])
			}
			seen[a] = n.id
		}
	}
}
