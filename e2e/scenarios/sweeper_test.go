//go:build e2e

package scenarios

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
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
	} `json:"entries"`
}

// of finds the entry of an incarnation, as "kind verdict action".
func (s swept) of(incarnation string) (found, name string) {
	for _, e := range s.Entries {
		if e.Incarnation != nil && *e.Incarnation == incarnation {
			found, name = e.Kind+" "+e.Verdict+" "+e.Action, e.Name
		}
	}
	return found, name
}

// sweep runs the shipped sweeper against a cluster.
func sweep(t *testing.T, c *harness.Cluster, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var voters []string
	for _, id := range c.IDs(harness.Voter) {
		voters = append(voters, *c.Node(id).RPC)
	}
	return runSweeper(t, append([]string{"--join", strings.Join(voters, ",")}, args...)...)
}

func runSweeper(t *testing.T, args ...string) (stdout, stderr string, status int) {
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

func sweepJSON(t *testing.T, c *harness.Cluster, wantStatus int) (s swept) {
	t.Helper()
	out, errs, status := sweep(t, c, "--dry-run", "--json")
	if status != wantStatus {
		t.Fatalf("exit status %d, want %d\n%s%s", status, wantStatus, out, errs)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSweeperListsAStaleDirectory: a topic is deleted and created again while
// its storage node is down. The sweeper says that the node was not seen, then
// that the old life's directory is gone, and touches nothing.
func TestSweeperListsAStaleDirectory(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create := func() client.Topic {
		topic, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 2})
		if err != nil {
			t.Fatal(err)
		}
		return topic
	}
	old := create()
	produceN(ctx, t, cl, "orders", "old", 20)
	drain(ctx, t, cl, "orders", 20)
	if found, _ := sweepJSON(t, c, 0).of(old.Incarnation); found != "serving live keep" {
		t.Errorf("before the delete: %q", found)
	}

	pid := c.Node("storage-1").PID
	c.Hold("storage-1")
	c.Kill("storage-1")
	if err := cl.DeleteTopic(ctx, "orders", old.ETag()); err != nil {
		t.Fatal(err)
	}
	fresh := create()
	down := sweepJSON(t, c, 1)
	if n := down.Nodes; len(n) != 2 || n[1].ID != "storage-1" || n[1].Reachable || n[1].Complete || !n[0].Complete {
		t.Errorf("while it is down: %+v", n)
	}
	c.Free("storage-1")
	c.WaitReady("storage-1", pid)

	if found, _ := sweepJSON(t, c, 0).of(old.Incarnation); !strings.HasSuffix(found, " gone reclaim") {
		t.Errorf("after its return: %q", found)
	}
	produceN(ctx, t, cl, "orders", "new", 20)
	drain(ctx, t, cl, "orders", 20) // so that the new life's directory stands, and the old one is set aside
	report := sweepJSON(t, c, 0)
	if found, _ := report.of(fresh.Incarnation); found != "serving live keep" {
		t.Errorf("the new life: %q", found)
	}
	found, name := report.of(old.Incarnation)
	if found != "quarantine gone reclaim" {
		t.Errorf("the old life: %q", found)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "storage-1", name, "p00000")); err != nil {
		t.Errorf("a dry run left no copy: %v", err)
	}
	table, _, status := sweep(t, c, "--dry-run")
	if status != 0 || !strings.Contains(table, old.Incarnation) || !strings.Contains(table, "nothing was changed") {
		t.Errorf("exit status %d\n%s", status, table)
	}
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
