//go:build e2e

package scenarios

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
)

// dripping sends head at once and then a byte a second until the server ends the
// connection, and returns what it answered and how long it let that go on.
func dripping(t *testing.T, addr, head string, limit time.Duration) (answer string, took time.Duration) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return "", 0
	}
	defer conn.Close()
	begin := time.Now()
	if err := conn.SetDeadline(begin.Add(limit)); err != nil {
		t.Error(err)
		return "", 0
	}
	if _, err := conn.Write([]byte(head)); err != nil {
		t.Errorf("%.40q: %v", head, err)
		return "", 0
	}
	ended := make(chan struct{})
	var dripper sync.WaitGroup
	dripper.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			if _, err := conn.Write([]byte("x")); err != nil {
				return
			}
		}
	})
	raw, err := io.ReadAll(conn)
	took = time.Since(begin)
	close(ended)
	dripper.Wait()
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		t.Errorf("%.60q: the connection is still open after %s", head, took)
	}
	return string(raw), took
}

// honest runs produce, consume and ack rounds until stop is closed, and returns
// how many there were and the slowest.
func honest(t *testing.T, base string, stop <-chan struct{}) (rounds int, slowest time.Duration) {
	for {
		select {
		case <-stop:
			return rounds, slowest
		default:
		}
		begin := time.Now()
		handle := lease(t, base, "orders")
		if status, body := call(t, "POST", base+"/v1/topics/orders/ack?receipt_handle="+handle, ""); status != 204 {
			t.Errorf("ack: %d %s", status, body)
		}
		slowest = max(slowest, time.Since(begin))
		rounds++
	}
}

// unread takes leases of large messages on a connection that never reads a byte,
// closes it, and checks that the leases come back at once, not when they expire.
func unread(t *testing.T, base, addr string) {
	const messages, size = 28, 1 << 20
	const least = 8 // more MiB than the sockets between the two buffer
	payload := strings.Repeat("x", size)
	for range messages {
		if status, body := call(t, "POST", base+"/v1/topics/large/produce", payload); status != 202 {
			t.Errorf("produce: %d %s", status, body)
			return
		}
	}
	var topic struct {
		Backlog  int `json:"backlog"`
		InFlight int `json:"in_flight"`
	}
	shows := func(limit time.Duration, what func() bool) bool {
		return harness.Until(t.Context(), limit, func() bool {
			_, body := call(t, "GET", base+"/v1/topics/large", "")
			return json.Unmarshal([]byte(body), &topic) == nil && what()
		}) == nil
	}
	if !shows(time.Minute, func() bool { return topic.Backlog == messages }) {
		t.Errorf("the large messages are not committed after a minute: %+v", topic)
		return
	}
	for range 5 { // an answer may hold fewer messages than were asked for, and be buffered whole
		before := topic.InFlight
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Error(err)
			return
		}
		if _, err := io.WriteString(conn, "POST /v1/topics/large/consume?wait=5s&max=15&max_bytes=16777216&visibility_timeout_ms=600000 HTTP/1.1\r\nHost: g\r\n\r\n"); err != nil {
			t.Error(err)
			return
		}
		taken := shows(10*time.Second, func() bool { return topic.InFlight >= before+least })
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if !taken {
			continue
		}
		if !shows(30*time.Second, func() bool { return topic.InFlight <= before }) { // the leases last 10 minutes
			t.Errorf("30 s after the reader went away %d messages are still leased", topic.InFlight-before)
		}
		return
	}
	t.Errorf("no answer had %d messages: %+v", least, topic)
}

// TestSlowClients: clients that send a byte a second, that never read, or that
// only sit there are ended within the limits, and honest ones notice nothing.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0]
	addr := strings.TrimPrefix(base, "http://")
	for _, name := range []string{"orders", "large"} {
		if status, body := call(t, "POST", base+"/v1/topics", `{"name":"`+name+`","partitions":1}`); status != 201 {
			t.Fatalf("create: %d %s", status, body)
		}
	}
	before := now(t, c)
	for range 500 {
		idle, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer idle.Close()
	}
	var slow, good sync.WaitGroup
	const produce = "POST /v1/topics/orders/produce HTTP/1.1\r\nHost: g\r\n"
	for range 20 {
		slow.Go(func() { // a header that does not end: no answer within 10 s
			if answer, took := dripping(t, addr, produce+"X-A: ", 20*time.Second); answer != "" || took < 8*time.Second {
				t.Errorf("slow header: %q after %s", answer, took)
			}
		})
		slow.Go(func() { // a body that does not end: 408 after 30 s
			answer, took := dripping(t, addr, produce+"Content-Length: 100\r\n\r\n", 40*time.Second)
			if !strings.HasPrefix(answer, "HTTP/1.1 408 ") || !strings.Contains(answer, `"code":"request_timeout"`) || !strings.Contains(answer, `"applied":"no"`) || took < 25*time.Second {
				t.Errorf("slow body: %q after %s", answer, took)
			}
		})
	}
	slow.Go(func() { // chunked, and never a whole chunk
		answer, _ := dripping(t, addr, produce+"Transfer-Encoding: chunked\r\n\r\n64\r\n", 40*time.Second)
		if !strings.HasPrefix(answer, "HTTP/1.1 408 ") {
			t.Errorf("slow chunk: %q", answer)
		}
	})
	for _, port := range []string{*c.Node("gateway-1").Ops, *c.Node("storage-1").Ops, *c.Node("voter-1").RPC, *c.Node("storage-1").RPC} {
		slow.Go(func() {
			if answer, _ := dripping(t, port, "GET /healthz HTTP/1.1\r\nHost: g\r\nX-A: ", 20*time.Second); strings.HasPrefix(answer, "HTTP/1.1 200") {
				t.Errorf("half a header was answered on %s: %q", port, answer)
			}
		})
	}
	slow.Go(func() { unread(t, base, addr) })
	stop := make(chan struct{})
	for range 4 {
		good.Go(func() {
			rounds, slowest := honest(t, base, stop)
			t.Logf("%d honest rounds, the slowest took %s", rounds, slowest)
			if rounds < 100 || slowest > 15*time.Second { // a wake-up that is lost costs the 5 s of a wait
				t.Errorf("honest clients suffered: %d rounds, the slowest took %s", rounds, slowest)
			}
		})
	}
	slow.Wait()
	close(stop)
	good.Wait()
	stillServes(t, c, before)
}

// garbage is what scanners, mistakes and malice send to a port.
func garbage(t *testing.T) [][]byte {
	t.Helper()
	noise := make([]byte, 1<<20)
	if _, err := rand.Read(noise); err != nil {
		t.Fatal(err)
	}
	out := [][]byte{
		nil,
		{0},
		noise, noise[:100], []byte(strings.Repeat("\x00", 1<<16)), []byte(strings.Repeat("\xff", 1<<16)),
		[]byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), // the begin of TLS
		[]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
		[]byte("GET / HTTP/1.1\r\n\r\n"), []byte("GET /\r\n"), []byte("\r\n\r\n\r\n"), []byte("SSH-2.0-x\r\n"), []byte("*1\r\n$4\r\nPING\r\n"),
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n"), []byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"),
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"),
		[]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\nx"),
		[]byte("POST /rpc/v1/commit HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\nx"),
		[]byte("GET " + strings.Repeat("a", 1<<20)), []byte("GET / HTTP/1.1\r\n" + strings.Repeat("A: b\r\n", 200_000)),
	}
	// Raft's plane: a type byte and msgpack that announces far more than comes.
	for kind := range byte(8) {
		for _, claim := range []string{"\x86\xa7Entries\xdd\xff\xff\xff\xff", "\xdf\xff\xff\xff\xff", "\x81\xa6Leader\xc6\xff\xff\xff\xff", "\x85\xa4Size\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", "\xc1", "\x80"} {
			out = append(out, append([]byte{kind}, claim...))
		}
		out = append(out, append([]byte{kind}, noise[:5000]...))
	}
	return out
}

// TestGarbageOnEveryPort: bytes that are no request of any kind crash nobody,
// take no memory, and everything works afterwards.
func TestGarbageOnEveryPort(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0]
	if status, body := call(t, "POST", base+"/v1/topics", `{"name":"orders"}`); status != 201 {
		t.Fatalf("create: %d %s", status, body)
	}
	before := now(t, c)
	peaks := map[string]int{}
	for _, n := range before.nodes {
		peaks[n.ID] = peakMiB(t, n.PID)
	}
	var ports []string
	for _, n := range before.nodes {
		for _, a := range []*string{n.HTTP, n.RPC, n.Raft, n.Ops} {
			if a != nil {
				ports = append(ports, *a)
			}
		}
	}
	all := garbage(t)
	var senders sync.WaitGroup
	for _, port := range ports {
		senders.Go(func() {
			for _, g := range all {
				spit(t, port, g)
			}
		})
	}
	senders.Wait()
	t.Logf("%d kinds of garbage to %d ports", len(all), len(ports))
	for _, n := range before.nodes {
		if grown := peakMiB(t, n.PID) - peaks[n.ID]; grown > 100 {
			t.Errorf("%s grew by %d MiB", n.ID, grown)
		}
		if log := nodeLog(t, c, n.ID); len(log) > 200<<10 {
			t.Errorf("%s filled its log with %d bytes", n.ID, len(log))
		}
	}
	// Refusals are said at level ERROR, at most once a minute each, so that a peer that
	// is set up wrong is found; more than that would fail above by its size.
	stillServes(t, c, before, "refused a raft connection", "refused a call with too large a body", "refused a malformed call")
}

// spit sends bytes and goes away after a moment; what comes back does not matter.
func spit(t *testing.T, addr string, g []byte) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Errorf("%s does not take connections: %v", addr, err)
		return
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Error(err)
		return
	}
	_, _ = conn.Write(g)
	_, _ = io.CopyN(io.Discard, conn, 4<<10)
}

// TestExpectContinue: 100 comes only when the request would be taken so far.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0]
	if status, body := call(t, "POST", base+"/v1/topics", `{"name":"orders"}`); status != 201 {
		t.Fatalf("create: %d %s", status, body)
	}
	for _, r := range []struct {
		topic  string
		length int
		first  int // status of the first answer
	}{
		{"orders", 5, 100}, {"orders", 2 << 20, 413}, {"nobody", 5, 404}, {"..", 5, 400},
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST /v1/topics/%s/produce HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", r.topic, r.length)
		in := bufio.NewReader(conn)
		line, err := in.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, fmt.Sprintf("HTTP/1.1 %d ", r.first)) {
			t.Errorf("%+v: %q, %v", r, line, err)
			continue
		}
		if r.first != 100 {
			continue
		}
		if _, err := in.ReadString('\n'); err != nil { // the empty line
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != 202 {
			t.Errorf("after the body: %+v, %v", resp, err)
		}
	}
}

// moment is what stillServes compares with: the processes and the ends of their logs.
type moment struct {
	nodes []harness.Node
	logs  map[string]int
}

func now(t *testing.T, c *harness.Cluster) moment {
	t.Helper()
	m := moment{c.Nodes(), map[string]int{}}
	for _, n := range m.nodes {
		m.logs[n.ID] = len(nodeLog(t, c, n.ID))
	}
	return m
}

// stillServes checks that since before nothing restarted, failed or grew, and that a message
// passes; but for log lines with one of the expected texts.
func stillServes(t *testing.T, c *harness.Cluster, before moment, expected ...string) {
	t.Helper()
	base := c.URLs()[0]
	handle := lease(t, base, "orders")
	if status, body := call(t, "POST", base+"/v1/topics/orders/ack?receipt_handle="+handle, ""); status != 204 {
		t.Errorf("ack: %d %s", status, body)
	}
	for _, n := range before.nodes {
		if pid := c.Node(n.ID).PID; pid != n.PID {
			t.Errorf("%s has restarted", n.ID)
		}
		for line := range strings.Lines(nodeLog(t, c, n.ID)[before.logs[n.ID]:]) {
			if alarming(line) && !slices.ContainsFunc(expected, func(s string) bool { return strings.Contains(line, s) }) {
				t.Errorf("the log of %s says %.400s", n.ID, line)
			}
		}
		if peak := peakMiB(t, n.PID); peak > 400 {
			t.Errorf("%s took %d MiB at its peak", n.ID, peak)
		}
	}
}

// alarming tells a line of a log that somebody would be called for.
func alarming(line string) bool {
	return slices.ContainsFunc([]string{"panic", "level=ERROR", "goroutine ", "BUG:", "FATAL:"}, func(s string) bool { return strings.Contains(line, s) })
}

func nodeLog(t *testing.T, c *harness.Cluster, id string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Dir, "run", id+".log"))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// peakMiB is the largest resident size of a process so far.
func peakMiB(t *testing.T, pid int) (mib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	if _, err := fmt.Sscan(after, &mib); err != nil {
		t.Fatal(err)
	}
	return mib >> 10
}
