//go:build e2e

package scenarios

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
)

// call does one plain HTTP request, as curl would, and returns status and body.
func call(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded") // what curl -d sends
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(raw)
}

// TestQuickstartAsTheReadmeSays walks through the README's first commands.
func TestQuickstartAsTheReadmeSays(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0] + "/v1/topics"
	if status, body := call(t, "POST", base, `{"name":"orders"}`); status != 201 {
		t.Fatalf("create: %d %s", status, body)
	}
	if status, body := call(t, "POST", base+"/orders/produce", "hello"); status != 202 {
		t.Fatalf("produce: %d %s", status, body)
	}
	var status int
	var body string
	if err := harness.Until(t.Context(), time.Minute, func() bool { // a busy machine may take longer than one wait
		status, body = call(t, "POST", base+"/orders/consume?wait=5s", "")
		return status == 200
	}); err != nil {
		t.Fatalf("consume: %d %s", status, body)
	}
	var m struct {
		Text   string `json:"payload_text"`
		Handle string `json:"receipt_handle"`
		Count  int    `json:"delivery_count"`
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil || status != 200 || m.Text != "hello" || m.Count != 1 {
		t.Fatalf("consume: %d %s (%v)", status, body, err)
	}
	for range 2 { // the second one is a repeat and is answered alike
		if status, body := call(t, "POST", base+"/orders/ack?receipt_handle="+m.Handle, ""); status != 204 {
			t.Fatalf("ack: %d %s", status, body)
		}
	}
	// Without a wait, the leader has a moment only to answer, else the partition is unavailable.
	if err := harness.Until(t.Context(), 20*time.Second, func() bool {
		status, body = call(t, "GET", base+"/orders/consume?wait=0s", "")
		return status != 503
	}); err != nil || status != 204 {
		t.Errorf("consume of an empty topic: %d %s", status, body)
	}
	dev, err := os.ReadFile(filepath.Join(c.Dir, "dev.log"))
	if err != nil || !strings.Contains(string(dev), "curl") || !strings.Contains(string(dev), c.URLs()[0]) {
		t.Errorf("narad dev printed no commands to try: %s (%v)", dev, err)
	}
	c.Stop()
}

// narad runs the command line against a cluster.
func narad(t *testing.T, c *harness.Cluster, stdin string, args ...string) (out string, exit int) {
	t.Helper()
	cmd := exec.Command(harness.Binary(t, "narad"), append([]string{"--server", c.URLs()[0]}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if err != nil {
		return stdout.String() + stderr.String(), cmd.ProcessState.ExitCode()
	}
	return stdout.String(), 0
}

func TestCommandLine(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, exit := narad(t, c, stdin, args...)
		if exit != 0 {
			t.Fatalf("narad %s: exit %d: %s", strings.Join(args, " "), exit, out)
		}
		return out
	}
	must("", "topic", "add", "jobs", "--partitions", "2")
	if out := must("", "topic", "ls"); !strings.Contains(out, "jobs") {
		t.Errorf("topic ls: %s", out)
	}
	must("", "pub", "jobs", "one")
	must("two", "pub", "jobs")
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte("three\nfour\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must("", "pub", "jobs", "--file", file, "--lines")
	out := must("", "--json", "sub", "jobs", "--count", "4", "--wait", "10s")
	for _, want := range []string{"one", "two", "three", "four"} {
		if !strings.Contains(out, want) {
			t.Errorf("sub did not print %q: %s", want, out)
		}
	}
	if lines := strings.Count(strings.TrimSpace(out), "\n") + 1; lines != 4 {
		t.Errorf("sub --json printed %d lines, want 4: %s", lines, out)
	}
	if out := must("", "replay", "jobs", "--partition", "0"); out == "" {
		t.Error("replay printed nothing")
	}
	if out := must("", "cluster", "members"); !strings.Contains(out, "storage-1") || !strings.Contains(out, "alive") {
		t.Errorf("cluster members: %s", out)
	}
	if out := must("", "cluster", "quorum"); !strings.Contains(out, "voter-1") {
		t.Errorf("cluster quorum: %s", out)
	}
	must("", "topic", "rm", "jobs", "--yes")
	exit := 0
	if err := harness.Until(t.Context(), 20*time.Second, func() bool { // the gateway's replica may lag
		out, exit = narad(t, c, "", "topic", "info", "jobs")
		return exit != 0
	}); err != nil || exit != 1 {
		t.Errorf("info of a deleted topic: exit %d: %s", exit, out)
	}
	if _, exit := narad(t, c, "", "no-such-command"); exit != 2 {
		t.Errorf("an unknown command exits with %d, want 2", exit)
	}
	must("", "version")
}

// TestParkedConsumersCostNothing: a thousand waiting consumers on an idle topic
// use no processor time worth mentioning, and one message reaches one of them at once.
func TestParkedConsumersCostNothing(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0] + "/v1/topics"
	if status, body := call(t, "POST", base, `{"name":"idle"}`); status != 201 {
		t.Fatal(status, body)
	}
	const waiters = 300
	tr := &http.Transport{MaxConnsPerHost: waiters, MaxIdleConnsPerHost: waiters}
	defer tr.CloseIdleConnections()
	hc := &http.Client{Transport: tr, Timeout: 40 * time.Second}
	type answer struct {
		status int
		body   string
		at     time.Time
	}
	answers := make(chan answer, waiters)
	for range waiters {
		go func() {
			resp, err := hc.Post(base+"/idle/consume?wait=30s", "", nil)
			if err != nil {
				answers <- answer{body: err.Error()}
				return
			}
			defer resp.Body.Close()
			raw, _ := io.ReadAll(resp.Body)
			answers <- answer{resp.StatusCode, string(raw), time.Now()}
		}()
	}
	if err := harness.Until(t.Context(), 10*time.Second, func() bool { return gauge(c, "gateway-1", "narad_consume_waiting") == waiters }); err != nil {
		t.Errorf("not all %d consumers have parked", waiters)
	}
	before := cpuSeconds(t, c)
	<-time.After(5 * time.Second)
	used := cpuSeconds(t, c) - before
	t.Logf("%d parked consumers: %.3f CPU seconds of all programs in 5 s", waiters, used)
	if used > 1.0 { // a tenth of both cores; polling consumers would take far more
		t.Errorf("idle consumers used %.2f CPU seconds in 5 s", used)
	}
	served := 0
	onceInTime(t, "a message reaches a parked consumer within 1 s", func() (bool, string) {
		sent := time.Now()
		if status, body := call(t, "POST", base+"/idle/produce", "wake"); status != 202 {
			t.Fatal(status, body)
		}
		got := <-answers
		if got.status != 200 || !strings.Contains(got.body, "wake") {
			t.Fatalf("first answer: %d %s", got.status, got.body)
		}
		served++
		took := got.at.Sub(sent)
		return took <= time.Second, took.String()
	})
	// The others wait on for the same message, until there is nothing to wait for.
	if status, body := call(t, "DELETE", base+"/idle", ""); status != 204 {
		t.Fatal(status, body)
	}
	for range waiters - served {
		if a := <-answers; a.status != 404 || !strings.Contains(a.body, "topic_not_found") {
			t.Fatalf("another consumer got %d %s", a.status, a.body)
		}
	}
}

// cpuSeconds is the processor time of all programs of a cluster so far.
func cpuSeconds(t *testing.T, c *harness.Cluster) float64 {
	t.Helper()
	var sum float64
	for _, n := range c.Nodes() {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		var user, system float64
		if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
			t.Fatal(err)
		}
		sum += (user + system) / 100 // USER_HZ
	}
	return sum
}
