//go:build e2e

package scenarios

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// readyReasons reads a readiness document.
func readyReasons(t *testing.T, ops, path string) (status int, codes []string) {
	t.Helper()
	resp, err := http.Get("http://" + ops + path)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	var doc struct {
		Status  string `json:"status"`
		NodeID  string `json:"node_id"`
		Role    string `json:"role"`
		Release string `json:"release"`
		Reasons []struct {
			Code   string `json:"code"`
			Detail string `json:"detail"`
		} `json:"reasons"`
		Degraded []json.RawMessage `json:"degraded"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if doc.NodeID == "" || doc.Role == "" || doc.Release == "" || doc.Reasons == nil || doc.Degraded == nil || (doc.Status == "ready") != (resp.StatusCode == 200) {
		t.Errorf("%s: %d %+v", path, resp.StatusCode, doc)
	}
	for _, r := range doc.Reasons {
		if r.Detail == "" {
			t.Errorf("%s: reason %s says nothing", path, r.Code)
		}
		codes = append(codes, r.Code)
	}
	return resp.StatusCode, codes
}

// TestReadiness: what probes see before admission, while the voters are down, and after.
func TestReadiness(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders"})
	gateway, storage := *c.Node("gateway-1").Ops, *c.Node("storage-1").Ops
	// A node that stood still for a moment has lost sight of the leader, and finds it again.
	for _, ops := range []string{gateway, storage, *c.Node("voter-1").Ops} {
		var status int
		var codes []string
		if err := harness.Until(ctx, 20*time.Second, func() bool {
			status, codes = readyReasons(t, ops, "/readyz")
			return status == 200 && len(codes) == 0
		}); err != nil {
			t.Errorf("all is well: %d %v", status, codes)
		}
	}
	for _, ops := range []string{gateway, storage, *c.Node("voter-1").Ops} {
		var status int
		var body string
		if err := harness.Until(ctx, 20*time.Second, func() bool {
			status, body = call(t, "GET", "http://"+ops+"/quorum", "")
			return status == 200 && strings.Contains(body, `"leader_id":"voter-1"`) && strings.Count(body, `"suffrage"`) == 1
		}); err != nil {
			t.Errorf("/quorum shows something else than this program's own view: %d %s", status, body)
		}
	}
	if status, _ := call(t, "GET", "http://"+storage+"/readyz/accept", ""); status != 404 {
		t.Errorf("/readyz/accept of a storage node: %d", status)
	}

	voter := c.Node("voter-1").PID
	c.Hold("voter-1")
	c.Kill("voter-1")
	for _, ops := range []string{gateway, storage} {
		notReady := func() bool {
			status, codes := readyReasons(t, ops, "/readyz")
			return status == 503 && (slices.Contains(codes, "no_leader") || slices.Contains(codes, "leader_contact_stale"))
		}
		if err := harness.Until(ctx, 20*time.Second, notReady); err != nil {
			t.Errorf("%s is ready 20 s after the only voter died", ops)
		}
	}
	if err := harness.Until(ctx, 20*time.Second, func() bool {
		_, codes := readyReasons(t, gateway, "/readyz")
		return slices.Contains(codes, "no_leader")
	}); err != nil {
		t.Error("20 s after the only voter died the gateway does not say no_leader")
	}
	if status, codes := readyReasons(t, gateway, "/readyz/accept"); status != 200 || len(codes) > 0 {
		t.Errorf("/readyz/accept without a leader: %d %v", status, codes)
	}
	if status, body := call(t, "POST", c.URLs()[0]+"/v1/topics/orders/produce", "x"); status != 202 {
		t.Errorf("produce without a leader: %d %s", status, body)
	}
	var status int
	var body string
	if err := harness.Until(ctx, 20*time.Second, func() bool { // it may have left on a connection whose end was not read yet
		status, body = call(t, "POST", c.URLs()[0]+"/v1/topics", `{"name":"new"}`)
		return status != 504
	}); err != nil || status != 503 || !strings.Contains(body, "no_metastore_leader") {
		t.Errorf("create without a leader: %d %s", status, body)
	}
	if m := c.Metrics("gateway-1"); !strings.Contains(m, "\nnarad_raft_has_leader 0\n") {
		t.Error("narad_raft_has_leader is not 0 without a leader")
	}

	// A gateway that starts now has never been caught up: it says so, and lives.
	old := c.Node("gateway-1").PID
	c.Kill("gateway-1")
	begin := time.Now()
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		status, body := call2("GET", "http://"+gateway+"/healthz")
		return status == 200 && strings.Contains(body, `"status":"ok"`)
	}); err != nil {
		t.Error("no /healthz from a gateway that starts without voters")
	}
	t.Logf("/healthz %s after the kill", time.Since(begin))
	if status, codes := readyReasons(t, gateway, "/readyz/accept"); status != 503 || len(codes) == 0 {
		t.Errorf("/readyz/accept before the first contact: %d %v", status, codes)
	}
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		status, body := call2("POST", c.URLs()[0]+"/v1/topics/orders/produce")
		return status == 503 && strings.Contains(body, `"not_ready"`)
	}); err != nil {
		t.Error("produce before the first contact is not refused with not_ready")
	}
	c.Free("voter-1")
	c.WaitReady("voter-1", voter)
	c.WaitReady("gateway-1", old)
	c.WaitReady("storage-1", 0)
	if got := drain(ctx, t, cl, "orders", 1); got["x"] != 1 {
		t.Errorf("the message of the time without a leader: %v", got)
	}
}

// call2 is call for a server that may not be there: status 0.
func call2(method, url string) (int, string) {
	req, err := http.NewRequest(method, url, strings.NewReader("x"))
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	_, _ = body.ReadFrom(resp.Body) // what came is what is compared
	return resp.StatusCode, body.String()
}

// TestMetricNames: the names that alerts rely on are there on each program, and
// what clients ask for at random makes no series.
func TestMetricNames(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0]
	if status, body := call(t, "POST", base+"/v1/topics", `{"name":"orders"}`); status != 201 {
		t.Fatal(status, body)
	}
	if status, body := call(t, "POST", base+"/v1/topics/orders/ack?receipt_handle="+lease(t, base, "orders"), ""); status != 204 {
		t.Fatal(status, body)
	}
	everyone := []string{"narad_raft_has_leader", "narad_raft_last_contact_seconds", "narad_raft_applied_index", "narad_members", "go_goroutines", "process_resident_memory_bytes"}
	for id, names := range map[string][]string{
		"gateway-1": {
			"narad_accept_total", "narad_accept_seconds_bucket", "narad_wal_fsync_seconds_bucket", "narad_wal_backlog_records", "narad_wal_backlog_oldest_seconds",
			"narad_wal_failed", "narad_dispatch_batch_records_bucket", "narad_dispatch_seconds_bucket", "narad_consume_waiting", "narad_http_requests_total", "narad_disk_free_bytes",
		},
		"storage-1": {
			"narad_commit_seconds_bucket", "narad_commit_records_total", "narad_partition_fsync_seconds_bucket", "narad_leases", "narad_consumer_corrupt_skipped_total",
			"narad_disk_free_bytes", "narad_partitions_open", "narad_storage_draining",
		},
		"voter-1": {"narad_dead_marking_refused", "narad_controller_leading"},
	} {
		text := "\n" + c.Metrics(id)
		for _, name := range slices.Concat(names, everyone) {
			if !strings.Contains(text, "\n"+name+"{") && !strings.Contains(text, "\n"+name+" ") {
				t.Errorf("%s does not show %s", id, name)
			}
		}
	}
	addr := strings.TrimPrefix(base, "http://")
	ask := func(from, to int) {
		for i := from; i < to; i++ {
			for _, line := range []string{
				fmt.Sprintf("GET /v1/x%d", i), fmt.Sprintf("M%d /v1/topics", i), fmt.Sprintf("POST /v1/topics/nobody-%d/produce", i), fmt.Sprintf("GET /v1/topics/nobody-%d", i),
			} {
				method, _, _ := strings.Cut(line, " ")
				if _, _, err := raw(addr, bad{line: line, body: ""}.bytes(), method); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	ask(0, 1)
	before := strings.Count(c.Metrics("gateway-1"), "\n")
	ask(1, 100)
	// What the node does on its own may make a few: an answer that came late, say.
	if after := strings.Count(c.Metrics("gateway-1"), "\n"); before == 0 || after < before || after > before+20 {
		t.Errorf("400 requests for what is not there made %d lines of metrics %d", before, after)
	}
	if m := c.Metrics("gateway-1"); strings.Contains(m, "nobody") || strings.Contains(m, "/v1/x") {
		t.Error("metrics carry what clients wrote")
	}
	var status int
	var body string
	if err := harness.Until(t.Context(), 20*time.Second, func() bool { // a partition that does not answer in time is left out
		status, body = call(t, "GET", "http://"+*c.Node("storage-1").Ops+"/metrics/topics", "")
		return status == 200 && strings.Contains(body, `narad_topic_backlog_messages{topic="orders"} 0`)
	}); err != nil {
		t.Errorf("/metrics/topics: %d %s", status, body)
	}
}

// TestLogsHoldNothingOfUsers: at level debug, through success and every kind of
// failure, no payload, key, attribute, content type or receipt handle reaches a
// log or a metric.
func TestLogsHoldNothingOfUsers(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1, Args: []string{"--log-level", "debug"}})
	cl, ctx := connect(t, c)
	base, addr := c.URLs()[0], strings.TrimPrefix(c.URLs()[0], "http://")
	const marker = "MaRkEr7f3a"
	create(ctx, t, cl, client.TopicSpec{Name: "orders", VisibilityTimeoutMS: 1000})
	message := client.Message{
		Payload: []byte("payload " + marker), Key: []byte("key " + marker), ContentType: "text/" + marker,
		Attributes: map[string]string{"a": "value " + marker, strings.ToLower(marker): "x"},
	}
	for range 3 {
		if _, err := cl.Produce(ctx, "orders", message, client.ProduceOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cl.ProduceBatch(ctx, "orders", []client.Message{message, message}, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 1, Wait: 30 * time.Second})
	if err != nil || len(got.Deliveries) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	handle := got.Deliveries[0].ReceiptHandle
	for _, op := range []string{"nack?delay_ms=0&", "ack?", "extend?visibility_timeout_ms=1000&"} { // the last two are too late
		call(t, "POST", base+"/v1/topics/orders/"+op+"receipt_handle="+handle, "")
	}
	const produce = "POST /v1/topics/orders/produce"
	for _, b := range []bad{
		{line: produce + "?key=" + marker + "%zz", body: marker},
		{line: produce + "?" + marker + "=1", body: marker},
		{line: produce + "/batch", body: `{"messages":[{"payload":"` + marker + `","` + marker + `":1}]}`},
		{line: produce + "/batch", body: `{"messages":[{"payload":"` + marker},
		{line: produce, body: marker, head: "Content-Encoding: gzip\r\n"},
		{line: produce, body: marker, head: "Narad-Attr-Narad-X: " + marker + "\r\n"},
		{line: produce, body: marker, head: "Content-Type: application/vnd.narad.batch\r\nX-Secret: " + marker + "\r\n"},
		{line: produce, body: marker, head: "Authorization: Basic " + marker + "\r\nCookie: " + marker + "\r\n"},
		{line: "POST /v1/topics/orders/ack?receipt_handle=" + marker},
		{line: "POST /v1/topics/orders/ack", body: `{"receipt_handles":["` + marker + `"]}`},
		{line: "POST /v1/topics", body: `{"name":"a","` + marker + `":1}`},
		{line: "GET /v1/" + marker},
		{line: marker + " /v1/topics"},
	} {
		method, _, _ := strings.Cut(b.line, " ")
		if _, _, err := raw(addr, b.bytes(), method); err != nil {
			t.Errorf("%s: %v", b.name(), err)
		}
	}
	for _, n := range c.Nodes() { // what is no request at all
		for _, a := range []*string{n.HTTP, n.RPC, n.Raft, n.Ops} {
			if a != nil {
				spit(t, *a, []byte(marker+" "+marker+"\r\n\r\n"))
				spit(t, *a, []byte("GET /"+marker+" HTTP/1.1\r\n"+marker+"\r\n\r\n"))
			}
		}
	}
	c.Kill("storage-1") // dispatch and consume fail, are repeated and succeed
	if _, err := cl.Produce(ctx, "orders", message, client.ProduceOptions{}); err != nil {
		t.Fatal(err)
	}
	n := 0 // one of the six was acked
	if err := harness.Until(ctx, 2*time.Minute, func() bool {
		got, err = cl.Receive(ctx, "orders", client.ReceiveOptions{Max: 1, Wait: 10 * time.Second})
		if len(got.Deliveries) > 0 && cl.Ack(ctx, "orders", got.Deliveries[0].ReceiptHandle) == nil {
			n++
		}
		return n == 5
	}); err != nil {
		t.Fatalf("after %d: %+v, %v", n, got, err)
	}
	texts := map[string]string{}
	for _, n := range c.Nodes() {
		texts["log of "+n.ID], texts["metrics of "+n.ID] = nodeLog(t, c, n.ID), c.Metrics(n.ID)
		if !strings.Contains(texts["log of "+n.ID], "level=DEBUG") {
			t.Errorf("the log of %s has no debug lines: this test sees less than it should", n.ID)
		}
	}
	dev, err := os.ReadFile(filepath.Join(c.Dir, "dev.log"))
	if err != nil {
		t.Fatal(err)
	}
	texts["dev.log"] = string(dev)
	for where, text := range texts {
		for _, secret := range []string{strings.ToLower(marker), strings.ToLower(base64.StdEncoding.EncodeToString([]byte(marker)))[:10], strings.ToLower(handle)} {
			for line := range strings.Lines(text) {
				if strings.Contains(strings.ToLower(line), secret) {
					t.Errorf("the %s holds %q: %.300s", where, secret, line)
				}
			}
		}
	}
}

// TestProgramsExplainThemselves: --help lists every setting, and a setting that
// cannot be is refused with its name and status 2.
func TestProgramsExplainThemselves(t *testing.T) {
	t.Parallel()
	member := strings.Fields("config node-id data-dir rpc-addr raft-addr gossip-addr ops-addr advertise join nats-url nats-creds-file nats-tls-ca zone insecure tls-cert tls-key tls-ca cluster-secret-file log-level log-format help version")
	for name, flags := range map[string][]string{
		harness.Voter:   append(strings.Fields("initial-members single"), member...),
		harness.Storage: append(strings.Fields("topic-metrics"), member...),
		harness.Gateway: append(strings.Fields("http-addr auth http-tls-cert http-tls-key drain-delay no-wal max-message-bytes max-connections max-waiting idle-timeout max-body-memory disk-watermark"), member...),
		"purge-sweeper": strings.Fields("config join nats-url nats-creds-file nats-tls-ca insecure tls-cert tls-key tls-ca log-level log-format dry-run json timeout yes help version"),
	} {
		out, status := finish(t, name, "--help")
		for _, flag := range flags {
			if status != 0 || !strings.Contains(out, "--"+flag+" ") && !strings.Contains(out, "--"+flag+",") {
				t.Errorf("%s --help (status %d) does not tell of --%s", name, status, flag)
			}
		}
		for content, want := range map[string]string{"no-such-key: 1\n": "no-such-key", "insecure: perhaps\n": "insecure", "join: {a: b}\n": "join", "insecure: [\n": "c.yaml", "- 1\n": "c.yaml"} {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, status := finish(t, name, "--config", file); status != 2 || !strings.Contains(out, want) {
				t.Errorf("%s with %q in its file: status %d: %s", name, content, status, out)
			}
		}
		if out, status := finish(t, name, "--no-such-flag"); status != 2 || !strings.Contains(out, "no-such-flag") {
			t.Errorf("%s --no-such-flag: status %d: %s", name, status, out)
		}
		if out, status := finish(t, name); status != 2 || !strings.Contains(out, "--") {
			t.Errorf("%s without settings: status %d: %s", name, status, out)
		}
	}
}

// finish runs a program that ends by itself.
func finish(t *testing.T, name string, args ...string) (output string, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Binary(t, name), args...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
