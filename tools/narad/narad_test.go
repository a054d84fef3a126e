package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// mainVar makes this test binary act as narad.
const mainVar = "NARADTEST_ACT_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVar) != "" {
		main()
	}
	os.Exit(m.Run())
}

func contains(t *testing.T, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%q is missing in:\n%s", p, got)
		}
	}
}

func TestCommands(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	contains(t, sh.must("", "topic", "add", "orders", "--partitions", "6", "--retention", "2d", "--reroute=false"), "orders: created")
	contains(t, strings.Join(b.calls, "\n"), `{"name":"orders","partitions":6,"reroute":false,"retention_ms":172800000}`)
	contains(t, sh.must("", "topic", "add", "orders", "--if-absent"), "there already")
	contains(t, sh.must("", "topic", "ls"), "NAME", "orders", "7d")
	contains(t, sh.must("", "topic", "edit", "orders", "--visibility-timeout", "1m"), "now version 2")
	contains(t, strings.Join(b.calls, "\n"), `{"visibility_timeout_ms":60000}`)
	contains(t, sh.must("", "topic", "info", "orders"), "etag", "3f9a17c4e2b08d51-2", "storage-1", "backlog")
	contains(t, sh.must("", "cluster", "members"), "storage-1", "alive", "41%")
	contains(t, sh.must("", "cluster", "quorum"), "leader voter-1, epoch 7 with its own entries from 10, committed below 12 by voter-1 (majority 1), answered by voter-1\n\n", "SEEN BY")
	contains(t, sh.must("", "version"), "narad 0.")
	contains(t, sh.must("", "completion", "bash"), "complete ")
	contains(t, sh.must("", "completion", "zsh"), "#compdef narad")
	sh.must("", "topic", "rm", "orders", "--yes")
	if len(b.topics) != 0 {
		t.Error("the topic is still there")
	}
}

func TestPublish(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	sh.must("", "topic", "add", "t")
	if out := sh.must("", "pub", "t", "one", "--key", "k", "--content-type", "text/plain"); out != "id-0\n" {
		t.Errorf("printed %q", out)
	}
	if out := sh.must("two\n", "pub", "t", "--json"); out != `{"id":"id-1","incarnation":"3f9a17c4e2b08d51"}`+"\n" {
		t.Errorf("printed %q", out)
	}
	sh.must("", "pub", "t", "--", "--not-a-flag")
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(strings.Repeat("line\n", 1500)+"\nlast"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, stderr, exit := sh.run("", "pub", "t", "--file", file, "--lines", "--attr", "a=1")
	if exit != 0 || out != "1501 messages\n" || stderr != "1 empty lines left out\n" {
		t.Errorf("exit %d, %q, %q", exit, out, stderr)
	}
	rs := b.topics["t"].records
	if len(rs) != 1504 || string(rs[0].Key) != "k" || string(rs[1].Payload) != "two\n" || string(rs[2].Payload) != "--not-a-flag" ||
		string(rs[3].Payload) != "line" || string(rs[1503].Payload) != "last" || string(rs[3].Attrs[0].Value) != "1" {
		t.Errorf("%d records; first %+v", len(rs), rs[:4])
	}
}

func TestSubscribe(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	sh.must("", "topic", "add", "t")
	sh.must("one\ntwo\nthree\nfour\nfive\n", "pub", "t", "--lines")
	if out := sh.must("", "sub", "t", "--peek", "--count", "2"); out != "one\ntwo\n" {
		t.Errorf("peek printed %q", out)
	}
	if s := b.topics["t"]; s.leased != 0 {
		t.Errorf("peek leased %d", s.leased)
	}
	b.refuseAcks = 1 // is repeated
	if out := sh.must("", "sub", "t", "--count", "2"); out != "one\ntwo\n" {
		t.Errorf("printed %q", out)
	}
	if out := sh.must("", "--json", "sub", "t", "--count", "2", "--wait", "1s"); out != `{"id":"id-2","payload_text":"three","receipt_handle":"H2"}`+"\n"+
		`{"id":"id-3","payload_text":"four","receipt_handle":"H3"}`+"\n" {
		t.Errorf("printed %q", out)
	}
	if out := sh.must("", "sub", "t", "--no-ack", "--wait", "0s", "--meta"); !strings.Contains(out, "partition 0 offset 4") || !strings.HasSuffix(out, "\nfive\n") {
		t.Errorf("printed %q", out)
	}
	if got := strings.Join(b.topics["t"].acked, " "); got != "H1 H0 H2 H3" {
		t.Errorf("acked %s", got)
	}
	_, stderr, exit := sh.run("", "sub", "t", "--count", "1", "--wait", "10ms")
	if exit != 1 || !strings.Contains(stderr, "got 0 of 1 messages") {
		t.Errorf("exit %d: %s", exit, stderr)
	}
}

func TestReplay(t *testing.T) {
	_, url := newBroker(t)
	sh := newShell(t, url)
	sh.must("", "topic", "add", "t")
	sh.must(strings.Repeat("x\n", 1203), "pub", "t", "--lines")
	if out := sh.must("", "replay", "t"); strings.Count(out, "x\n") != 1203 {
		t.Errorf("replayed %d", strings.Count(out, "x\n"))
	}
	if out := sh.must("", "replay", "t", "--partition", "0", "--offset", "1200", "--json"); strings.Count(out, "\n") != 3 || !strings.HasPrefix(out, `{"id":"id-1200",`) {
		t.Errorf("replayed %q", out)
	}
	if out := sh.must("", "replay", "t", "--count", "701"); strings.Count(out, "x\n") != 701 {
		t.Errorf("replayed %d", strings.Count(out, "x\n"))
	}
}

func TestExitStatusAndHints(t *testing.T) {
	_, url := newBroker(t)
	sh := newShell(t, url)
	sh.must("", "topic", "add", "t")
	for _, tc := range []struct {
		args string
		exit int
		says string
	}{
		{"no-such-command", 2, "it has: topic, children, pub"},
		{"topic no-such", 2, "it has: add, ls"},
		{"topic ls --bogus", 2, "bogus"},
		{"topic add", 2, "wants NAME"},
		{"topic add t", 1, "--if-absent"},
		{"topic add u --retention x", 2, "want a duration"},
		{"topic edit t", 2, "nothing to change"},
		{"topic rm t", 2, "confirm with --yes"},
		{"topic info nothing", 1, "narad topic ls"},
		{"pub t a --file b", 2, "give one"},
		{"pub t a --attr b", 2, "name=value"},
		{"sub t --count -1", 2, "negative"},
		{"replay t --offset 3", 2, "needs --partition"},
		{"--server http://127.0.0.1:1 topic ls", 1, "narad dev"},
		{"--server gopher://h topic ls", 2, "want http"},
		{"dev --voters 2", 2, "1, 3 or 5"},
		{"ctx use nowhere", 1, "narad ctx ls"},
	} {
		_, stderr, exit := sh.run("", strings.Fields(tc.args)...)
		if exit != tc.exit || !strings.Contains(stderr, tc.says) || !strings.HasPrefix(stderr, "narad: ") {
			t.Errorf("narad %s: exit %d (want %d), says %q (want %q)", tc.args, exit, tc.exit, stderr, tc.says)
		}
	}
}

func TestContexts(t *testing.T) {
	_, url := newBroker(t)
	sh := newShell(t, "")
	sh.must("", "ctx", "add", "away", "http://127.0.0.1:1,"+url)
	sh.must("", "ctx", "add", "here", url)
	contains(t, sh.must("", "ctx", "ls"), "*  here  "+url, "   away  ")
	sh.must("", "topic", "add", "t")
	sh.must("", "ctx", "use", "away")
	contains(t, sh.must("", "topic", "ls"), "t ") // the second of two servers answers
	info, err := os.Stat(filepath.Join(sh.home, "config", "narad", "contexts.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	sh.must("", "ctx", "rm", "away")
	if _, _, exit := sh.run("", "ctx", "add", "x", "http://me:pw@h"); exit != 2 {
		t.Errorf("a url with a secret: exit %d", exit)
	}
}

func TestQuorumOfOperatorPorts(t *testing.T) {
	_, url := newBroker(t)
	sh := newShell(t, "http://127.0.0.1:1")
	port := strings.TrimPrefix(url, "http://")
	contains(t, sh.must("", "cluster", "quorum", "--ops", port+","+port), "voter-1")
	contains(t, sh.must("", "cluster", "quorum", "--ops", port), "leader voter-1, epoch 7 with its own entries from 10, committed below 12 by voter-1 (majority 1), answered by voter-1\n\nSEEN BY")
	out, stderr, exit := sh.run("", "cluster", "quorum", "--json", "--ops", port, "--ops", "127.0.0.1:1")
	if exit != 1 || strings.Count(out, "\n") != 1 || !strings.Contains(stderr, "127.0.0.1:1") {
		t.Errorf("exit %d, %q, %q", exit, out, stderr)
	}
}

// TestClusterState: the exit status of `cluster status` is for scripts and probes.
func TestClusterState(t *testing.T) {
	b, url := newBroker(t)
	sh := newShell(t, url)
	b.status = `{"status":"ok","as_of":"2026-11-29T20:04:05.123Z","problems":[]}`
	contains(t, sh.must("", "cluster", "status"), "ok as of 2026-11-29 20:04:05Z")
	b.status = `{"status":"degraded","as_of":"2026-11-29T20:04:05.123Z","problems":[
 {"code":"member_dead","severity":"page","subject":"storage-1","since":"2026-11-29T20:03:05.123Z","detail":"silent","do":"start it"},
 {"code":"quorum_at_risk","severity":"page","subject":"metastore","since":null,"detail":"one more","do":"start another"}]}`
	out, stderr, exit := sh.run("", "cluster", "status")
	contains(t, out, "degraded", "member_dead", "storage-1", "2026-11-29 20:03:05Z", "silent", "-> start it", "quorum_at_risk")
	contains(t, stderr, "the cluster is degraded: 2 problems")
	asJSON, _, exitJSON := sh.run("", "cluster", "status", "--json")
	if exit != 1 || exitJSON != 1 || strings.Count(asJSON, "\n") != 1 || !strings.Contains(asJSON, `"since":null`) {
		t.Errorf("exit %d, as JSON %d: %q", exit, exitJSON, asJSON)
	}

	contains(t, sh.must("", "cluster", "forget", "ghost"), "ghost: forgotten")
	if out := sh.must("", "cluster", "forget", "--json", "ghost"); out != `{"id":"ghost","forgotten":true}`+"\n" {
		t.Errorf("as JSON: %q", out)
	}
	contains(t, strings.Join(b.calls, "\n"), "POST /v1/cluster/members/ghost/forget")
	if _, stderr, exit := sh.run("", "cluster", "forget", "storage-1"); exit != 1 || !strings.Contains(stderr, "what to do: decommission the member") {
		t.Errorf("exit %d: %s", exit, stderr)
	}
	if _, _, exit := sh.run("", "cluster", "forget"); exit != 2 {
		t.Errorf("forget whom: exit %d", exit)
	}
	sh.url = "http://127.0.0.1:1" // it asks nobody
	contains(t, sh.must("", "cluster", "constants"), "heartbeat ", "every 5s; dead after 30s", "at most 4 followed")
}

func TestDevWithoutPrograms(t *testing.T) {
	sh := newShell(t, "")
	t.Setenv("PATH", t.TempDir())
	dir := filepath.Join(t.TempDir(), "data")
	_, stderr, exit := sh.run("", "dev", "--base-port", "31007", "--data-dir", dir)
	if exit != 1 || !strings.Contains(stderr, "neither beside narad nor in PATH") {
		t.Errorf("exit %d: %s", exit, stderr)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("a data directory was made for nothing")
	}
}

// The completion script of bash, run by bash, against this program.
func TestCompletion(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "narad")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bash, "-c", `source <(narad completion bash)
complete_line() { COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _narad_complete; echo "${COMPREPLY[@]}"; }
complete_line narad to
complete_line narad topic rm
complete_line narad sub --pe`)
	cmd.Env = append(os.Environ(), mainVar+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "topic\nrm\n--peek\n" {
		t.Errorf("completed %q (%v)", out, err)
	}
}

// A flag says once what it means by default.
func TestHelpNamesOneDefault(t *testing.T) {
	_, url := newBroker(t)
	sh := newShell(t, url)
	for _, name := range []string{"pub", "sub", "replay"} {
		for line := range strings.Lines(sh.must("", name, "--help")) {
			if strings.Count(line, "default:") > 1 {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	contains(t, sh.must("", "pub", "--help"), "(default: 5s)")
}
