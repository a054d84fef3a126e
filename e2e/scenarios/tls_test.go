//go:build e2e

package scenarios

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/tlsconf/certs"
)

// secured is a cluster of `narad dev --tls`.
type secured struct {
	*harness.Cluster
	testing.TB
	dir string // of the certificates
	ca  *certs.Authority
}

func startSecured(t *testing.T) secured {
	t.Helper()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 1, Args: []string{"--tls"}})
	s := secured{Cluster: c, TB: t, dir: filepath.Join(c.Dir, "certs")}
	var err error
	if s.ca, err = certs.Open(s.dir); err != nil {
		t.Fatal(err)
	}
	return s
}

// shown returns the serial of the certificate that a port shows to a member.
func (s secured) shown(addr string) string {
	at := certs.NodePaths(s.dir, "gateway-1")
	own, err := tls.LoadX509KeyPair(at.Cert, at.Key)
	if err != nil {
		return "" // in the middle of a replacement
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca.Cert)
	d := &net.Dialer{Timeout: 5 * time.Second}
	conn, err := tls.DialWithDialer(d, "tcp", addr, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{own}})
	if err != nil {
		return ""
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

// replace gives a node a new certificate, file by file.
func (s secured) replace(id string) {
	s.Helper()
	next, err := s.ca.Node(s.TempDir(), id, []string{"127.0.0.1"}, time.Hour)
	at := certs.NodePaths(s.dir, id)
	if err = errors.Join(err, os.Rename(next.Key, at.Key), os.Rename(next.Cert, at.Cert)); err != nil {
		s.Fatal(err)
	}
}

// reign is the leader and its epoch as voter-1 sees them, once it sees one.
func (s secured) reign() string {
	s.Helper()
	var doc struct {
		LeaderID    string `json:"leader_id"`
		LeaderEpoch uint64 `json:"leader_epoch"`
	}
	var last error
	if err := harness.Until(context.Background(), 20*time.Second, func() bool {
		var resp *http.Response
		if resp, last = http.Get("http://" + *s.Node("voter-1").Ops + "/quorum"); last != nil {
			return false
		}
		defer resp.Body.Close()
		last = json.NewDecoder(resp.Body).Decode(&doc)
		return last == nil && doc.LeaderID != ""
	}); err != nil {
		s.Fatalf("voter-1 sees no leader: %v", last)
	}
	return fmt.Sprintf("%s under epoch %d", doc.LeaderID, doc.LeaderEpoch)
}

// steadyTries is how often the leader may have to stay: a machine that stands still for half
// a second makes elections of its own, not each time.
const steadyTries = 2

// logLines counts the lines of all nodes' logs.
func (s secured) logLines() int {
	s.Helper()
	n := 0
	for _, node := range s.Nodes() {
		raw, err := os.ReadFile(filepath.Join(s.Dir, "run", node.ID+".log"))
		if err != nil {
			s.Fatal(err)
		}
		n += strings.Count(string(raw), "\n")
	}
	return n
}

// TestCertificatesAreReplacedUnderLoad: every node's certificate is replaced while
// messages flow. Nothing is lost, repeated or refused, the leader stays, and new
// connections show and take the new certificates.
func TestCertificatesAreReplacedUnderLoad(t *testing.T) {
	s := startSecured(t)
	cl, ctx := connect(t, s.Cluster)
	create(ctx, t, cl, client.TopicSpec{Name: "secure", Partitions: 4})
	w := harness.Load{Client: cl, Topic: "secure", Ledger: harness.NewLedger()}
	producing, stopProducing := context.WithCancel(ctx)
	consuming, stopConsuming := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	producers.Go(func() { w.Produce(producing, "tls", 10*time.Millisecond) })
	for range 2 {
		consumers.Go(func() { w.Consume(consuming, t) })
	}

	for try := 1; ; try++ {
		led := s.reign()
		s.replaceAll(ctx, try)
		now := s.reign()
		if now == led {
			break
		}
		if try == steadyTries {
			t.Errorf("%d times another voter led, or under another epoch, after the certificates were replaced: %s, and then %s", try, led, now)
			break
		}
	}
	stopProducing()
	producers.Wait()
	if harness.Until(ctx, 30*time.Second, func() bool { n, _ := w.Ledger.Missing(); return n == 0 }) != nil {
		t.Log("not everything arrived in time")
	}
	stopConsuming()
	consumers.Wait()
	w.Ledger.Judge(t, func(time.Time, time.Time) bool { return false })
	if w.Ledger.Unknown() > 0 {
		t.Errorf("%d messages were refused or unknown", w.Ledger.Unknown())
	}

	// Every connection of a node that starts again is made with new certificates.
	pid := s.Node("storage-1").PID
	s.Terminate("storage-1")
	s.WaitReady("storage-1", pid)
	produceN(ctx, t, cl, "secure", "after", 20)
	drain(ctx, t, cl, "secure", 20)
}

// replaceAll replaces every node's certificate, for the so manieth time, and waits until the
// new ones are in use.
func (s secured) replaceAll(ctx context.Context, times int) {
	s.Helper()
	before := map[string]string{}
	for _, n := range s.Nodes() {
		for _, addr := range []string{*n.RPC, *n.Raft} {
			if harness.Until(ctx, 20*time.Second, func() bool { before[addr] = s.shown(addr); return before[addr] != "" }) != nil {
				s.Fatalf("%s does not speak TLS at %s", n.ID, addr)
			}
		}
		s.replace(n.ID)
	}
	for addr, was := range before {
		if harness.Until(ctx, 20*time.Second, func() bool { now := s.shown(addr); return now != "" && now != was }) != nil {
			s.Errorf("%s still shows its old certificate", addr)
		}
	}
	counted := fmt.Sprintf("narad_tls_reloads_total{plane=\"nodes\"} %d\n", times)
	for _, n := range s.Nodes() {
		if harness.Until(ctx, 20*time.Second, func() bool { return strings.Contains(s.Metrics(n.ID), counted) }) != nil {
			s.Errorf("%s does not count its new certificate", n.ID)
		}
	}
}

// TestStrangerStaysOut: a storage node of another authority asks to be let in for
// a while. The cluster keeps its leader, and says so in a few lines.
func TestStrangerStaysOut(t *testing.T) {
	s := startSecured(t)
	dir := t.TempDir()
	other, err := certs.Init(filepath.Join(dir, "certs"), "other", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	at, err := other.Node(filepath.Join(dir, "certs"), "storage-2", []string{"127.0.0.1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var join []string
	for _, id := range s.IDs(harness.Voter) {
		join = append(join, *s.Node(id).RPC)
	}
	led, lines := s.reign(), s.logLines()
	ops := testkit.FreeAddr(t)
	log := s.run("storage-node", "--node-id", "storage-2", "--data-dir", filepath.Join(dir, "data"), "--ops-addr", ops,
		"--tls-cert", at.Cert, "--tls-key", at.Key, "--tls-ca", certs.AuthorityPaths(filepath.Join(dir, "certs")).Cert,
		"--join", strings.Join(join, ","))

	const patience = 15 * time.Second // seven rounds of its join loop
	for try := 1; ; try++ {
		if harness.Until(context.Background(), patience, func() bool { status, _ := readyz(ops); return status == http.StatusOK }) == nil {
			t.Error("the stranger is ready")
		}
		now, more := s.reign(), s.logLines()-lines
		if try == 1 && more < 1 || now == led && more > 15 {
			t.Errorf("the cluster wrote %d lines about it", more)
		}
		if now == led {
			break
		}
		if try == steadyTries {
			t.Errorf("%d times another voter led, or under another epoch, while a stranger asked: %s, and then %s", try, led, now)
			break
		}
		led, lines = now, s.logLines()
	}
	if _, body := readyz(ops); !strings.Contains(body, "not_admitted") {
		t.Errorf("the stranger says %s", body)
	}
	raw, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(raw), "unknown authority") || strings.Count(string(raw), "\n") > 40 {
		t.Errorf("the stranger says (%v): %s", err, raw)
	}
	cl, ctx := connect(t, s.Cluster)
	create(ctx, t, cl, client.TopicSpec{Name: "still"})
	produceN(ctx, t, cl, "still", "m", 5)
	drain(ctx, t, cl, "still", 5)
}

func readyz(addr string) (int, string) {
	resp, err := http.Get("http://" + addr + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// TestClientPortAndSweeperOverTLS: a gateway serves clients over TLS, and its
// certificate is replaced without a restart; the sweeper makes its pass.
func TestClientPortAndSweeperOverTLS(t *testing.T) {
	s := startSecured(t)
	at, err := s.ca.Node(s.dir, "gateway-2", []string{"127.0.0.1"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	http1, ops := testkit.FreeAddr(t), testkit.FreeAddr(t)
	s.run("ingress-gateway", "--node-id", "gateway-2", "--data-dir", t.TempDir(), "--http-addr", http1, "--ops-addr", ops,
		"--http-tls-cert", at.Cert, "--http-tls-key", at.Key, "--drain-delay", "0s",
		"--tls-cert", at.Cert, "--tls-key", at.Key, "--tls-ca", certs.AuthorityPaths(s.dir).Cert,
		"--join", *s.Node("voter-1").RPC)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(s.ca.Cert)
	cl, err := client.New(client.Config{
		URL:        "https://" + http1,
		HTTPClient: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := harness.Until(ctx, 60*time.Second, func() bool { status, _ := readyz(ops); return status == http.StatusOK }); err != nil {
		t.Fatalf("the gateway is not ready: %v", err)
	}
	create(ctx, t, cl, client.TopicSpec{Name: "outside"})
	produceN(ctx, t, cl, "outside", "m", 20)
	drain(ctx, t, cl, "outside", 20)
	// A task with a certificate that names no host is nobody's server, and welcome.
	task, err := s.ca.Node(s.dir, "purge-sweeper", nil, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(harness.Binary(t, "purge-sweeper"), "--dry-run", "--join", *s.Node("voter-2").RPC,
		"--tls-cert", task.Cert, "--tls-key", task.Key, "--tls-ca", certs.AuthorityPaths(s.dir).Cert).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "outside") {
		t.Errorf("the sweeper: %v, %s", err, out)
	}

	was := s.shown(http1)
	s.replace("gateway-2")
	if harness.Until(ctx, 20*time.Second, func() bool { now := s.shown(http1); return now != "" && now != was }) != nil || was == "" {
		t.Error("the client port still shows its old certificate")
	}
	if resp, err := http.Get("http://" + http1 + "/v1/info"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("plain HTTP is answered: %s", resp.Status)
	}
}

// run runs a program beside the cluster until the test ends, and returns its log.
func (s secured) run(program string, args ...string) (log string) {
	s.Helper()
	f, err := os.Create(filepath.Join(s.TempDir(), "log"))
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command(harness.Binary(s, program), append([]string{
		"--rpc-addr", "127.0.0.1:0", "--raft-addr", "127.0.0.1:0", "--gossip-addr=", "--advertise", "127.0.0.1",
	}, args...)...)
	cmd.Stdout, cmd.Stderr = f, f
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			s.Errorf("%s did not stop in order: %v", program, err)
		}
		_ = f.Close()
	})
	return f.Name()
}

// TestPlaneMustBeChosen: plaintext is never spoken because a flag was forgotten.
func TestPlaneMustBeChosen(t *testing.T) {
	dir := t.TempDir()
	ca, err := certs.Init(dir, "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	at, err := ca.Node(dir, "n1", []string{"voter.example"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"--tls-cert", at.Cert, "--tls-key", at.Key, "--tls-ca", certs.AuthorityPaths(dir).Cert}
	for _, program := range []string{"metastore-voter", "storage-node", "ingress-gateway", "purge-sweeper"} {
		base := []string{"--join", "127.0.0.1:1"}
		if program != "purge-sweeper" {
			base = append(base, "--data-dir", filepath.Join(dir, "data"), "--node-id", "n1", "--ops-addr", "127.0.0.1:0", "--gossip-addr=", "--advertise", "127.0.0.1")
		} else {
			base = append(base, "--dry-run")
		}
		for want, args := range map[string][]string{
			"--insecure":                  nil,
			"either plaintext or TLS":     append([]string{"--insecure"}, files...),
			"without --tls-key, --tls-ca": files[:2],
			"TLS between nodes: read":     {"--tls-cert", "gone", "--tls-key", at.Key, "--tls-ca", "gone"},
			"does not name the host":      files,
		} {
			if program == "ingress-gateway" {
				args = append([]string{"--http-addr", "127.0.0.1:0"}, args...)
			}
			if program == "purge-sweeper" && want == "does not name the host" {
				continue // nobody dials it
			}
			cmd := exec.Command(harness.Binary(t, program), append(base, args...)...)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), want) {
				t.Errorf("%s with %v: %v, %s", program, args, err, out)
			}
		}
	}
}
