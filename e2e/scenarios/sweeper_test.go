//go:build e2e

package scenarios

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/narad-mq/narad/e2e/harness"
)

// swept is what a test reads of a sweeper's report.
type swept struct {
	Nodes []struct {
		ID        string `json:"id"`
		Reachable bool   `json:"reachable"`
		Complete  bool   `json:"complete"`
	} `json:"nodes"`
	Entries []struct {
		Node        string  `json:"node"`
		Topic       string  `json:"topic"`
		Incarnation *string `json:"incarnation"`
		Kind        string  `json:"kind"`
		Name        string  `json:"name"`
		Verdict     string  `json:"verdict"`
		Action      string  `json:"action"`
		Outcome     string  `json:"outcome"`
		Why         string  `json:"why"`
	} `json:"entries"`
	Summary struct {
		Live           int   `json:"live"`
		Gone           int   `json:"gone"`
		Reclaimed      int   `json:"reclaimed"`
		ReclaimedBytes int64 `json:"reclaimed_bytes"`
	} `json:"summary"`
}

func (s swept) unreachable(node string) bool {
	for _, n := range s.Nodes {
		if n.ID == node {
			return !n.Reachable && !n.Complete
		}
	}
	return false
}

// sweep runs the shipped sweeper against a cluster.
func sweep(t testing.TB, c *harness.Cluster, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var voters []string
	for _, id := range c.IDs(harness.Voter) {
		voters = append(voters, *c.Node(id).RPC)
	}
	return runSweeper(t, append([]string{"--join", strings.Join(voters, ",")}, args...)...)
}

func runSweeper(t testing.TB, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	cmd := exec.Command(harness.Binary(t, "purge-sweeper"), append([]string{"--insecure"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func sweepJSON(t *testing.T, c *harness.Cluster, wantStatus int, args ...string) (s swept) {
	t.Helper()
	out, errs, status := sweep(t, c, append(args, "--json")...)
	if status != wantStatus {
		t.Fatalf("exit status %d, want %d\n%s%s", status, wantStatus, out, errs)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSweeperRefusesSettings: a job that cannot work says so with its own status.
func TestSweeperRefusesSettings(t *testing.T) {
	for want, args := range map[string][]string{
		"--join": nil, "--nats-url": {"--join", "127.0.0.1:1", "--nats-creds-file", "nobody"},
	} {
		out, errs, status := runSweeper(t, args...)
		if status != 2 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: exit status %d, %q, %q", want, status, out, errs)
		}
	}
}
