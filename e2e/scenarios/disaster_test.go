//go:build e2e

package scenarios

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// attachLimit is how long members that run may take to find a cluster that was
// founded anew: they look for one after 15 s without a leader.
const attachLimit = 90 * time.Second

var confirmation = regexp.MustCompile(`--confirm (\d+/\d+)\.`)

// beforeTheDisaster starts a cluster with messages of which some were consumed.
func beforeTheDisaster(t *testing.T) (c *harness.Cluster, cl *client.Client, ctx context.Context, settled map[string]int) {
	t.Helper()
	c = harness.Start(t, harness.Options{Voters: 3, StorageNodes: 2, Gateways: 1})
	cl, ctx = connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 4})
	produceN(ctx, t, cl, "orders", "before", 100)
	return c, cl, ctx, drain(ctx, t, cl, "orders", 30)
}

// TestDrillRecover is the drill of the voter's README: two of three voters lose
// their disks while messages are being accepted, and the third one's is enough.
func TestDrillRecover(t *testing.T) {
	t.Parallel()
	c, cl, ctx, settled := beforeTheDisaster(t)
	id := clusterID(ctx, t, cl)
	running := pidsOf(c, harness.Storage, harness.Gateway)
	before := time.Now()
	stopVoters(c)
	loseDisk(t, c, "voter-2")
	loseDisk(t, c, "voter-3")
	produceN(ctx, t, cl, "orders", "while-lost", 50)

	survivor := filepath.Join(c.Dir, "voter-1")
	fresh := filepath.Join(c.Dir, "voter-1.recovered")
	out, err := found(t, c, "voter-1", fresh, "--recover", survivor)
	if m := confirmation.FindStringSubmatch(out); err == nil || m == nil {
		t.Fatalf("without a confirmation: %v\n%s", err, out)
	} else if out, err = found(t, c, "voter-1", fresh, "--recover", survivor, "--confirm", m[1]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	replaceDisk(t, c, "voter-1", fresh)
	c.Free("voter-1")
	untilIt(ctx, t, "voter-1 is ready", func() bool { return c.Ready("voter-1") })
	c.Free("voter-2")
	c.Free("voter-3")
	waitAttached(ctx, t, c, cl, id, running)
	t.Logf("everybody is ready %s after the voters were lost", time.Since(before).Round(100*time.Millisecond))
	if _, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "after"}); err != nil {
		t.Error(err)
	}
	produceN(ctx, t, cl, "orders", "after", 50)
	got := drain(ctx, t, cl, "orders", 170)
	wantAll(t, settled, got, map[string]int{"before": 100, "while-lost": 50, "after": 50})
	untilIt(ctx, t, "three voters again", func() bool {
		q, err := cl.Quorum(ctx)
		return err == nil && len(q.CommittedBy) == 3
	})
	t.Logf("three voters again %s after they were lost", time.Since(before).Round(100*time.Millisecond))
}

// TestDrillRestore is the other drill: all voters are destroyed after a backup was
// made. What was created after it is unknown and stays on disk.
func TestDrillRestore(t *testing.T) {
	t.Parallel()
	c, cl, ctx, settled := beforeTheDisaster(t)
	file := filepath.Join(c.Dir, "metadata.backup")
	var out []byte
	var err error
	if harness.Until(ctx, 20*time.Second, func() bool { // a gateway whose replica is behind refuses
		out, err = exec.Command(harness.Binary(t, "narad"), "--server", c.URLs()[0], "cluster", "backup", file).CombinedOutput()
		return err == nil
	}) != nil {
		t.Fatalf("%v: %s", err, out)
	}
	later, err := cl.CreateTopic(ctx, client.TopicSpec{Name: "later", Partitions: 1})
	if err != nil {
		t.Fatal(err)
	}
	produceN(ctx, t, cl, "later", "unknown", 10)
	drain(ctx, t, cl, "later", 5)
	dirs := directoriesOf(t, c, later.Name)
	produceN(ctx, t, cl, "orders", "after-backup", 50)
	id := clusterID(ctx, t, cl)
	running := pidsOf(c, harness.Storage, harness.Gateway)
	before := time.Now()
	stopVoters(c)
	for _, v := range c.IDs(harness.Voter) {
		loseDisk(t, c, v)
	}
	fresh := filepath.Join(c.Dir, "voter-1")
	if out, err := found(t, c, "voter-1", fresh, "--restore", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := found(t, c, "voter-1", fresh, "--restore", file); err == nil {
		t.Errorf("over a directory in use: %s", out)
	}
	for _, v := range c.IDs(harness.Voter) {
		c.Free(v)
	}
	waitAttached(ctx, t, c, cl, id, running)
	t.Logf("everybody is ready %s after the voters were lost", time.Since(before).Round(100*time.Millisecond))
	produceN(ctx, t, cl, "orders", "after-restore", 20)
	got := drain(ctx, t, cl, "orders", 140)
	wantAll(t, settled, got, map[string]int{"before": 100, "after-backup": 50, "after-restore": 20})
	if _, err := cl.Topic(ctx, "later"); err == nil {
		t.Error("the backup knows a topic that was created after it")
	}
	if now := directoriesOf(t, c, later.Name); now == "" || now != dirs {
		t.Errorf("what the backup does not know was touched: %q, was %q", now, dirs)
	}
}

// found runs the voter's program to found a cluster, as `narad dev` would start it.
func found(t *testing.T, c *harness.Cluster, id, dir string, more ...string) (string, error) {
	t.Helper()
	raft := *c.Node(id).Raft
	host, _, err := net.SplitHostPort(raft)
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{"--node-id", id, "--data-dir", dir, "--raft-addr", raft, "--advertise", host, "--insecure"}, more...)
	out, err := exec.Command(harness.Binary(t, harness.Voter), args...).CombinedOutput()
	return string(out), err
}

func stopVoters(c *harness.Cluster) {
	for _, id := range c.IDs(harness.Voter) {
		c.Hold(id)
	}
	for _, id := range c.IDs(harness.Voter) {
		c.Kill(id)
	}
}

func loseDisk(t *testing.T, c *harness.Cluster, id string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(c.Dir, id)); err != nil {
		t.Fatal(err)
	}
}

// replaceDisk puts a founded directory in the place of the old one, which is kept.
func replaceDisk(t *testing.T, c *harness.Cluster, id, fresh string) {
	t.Helper()
	dir := filepath.Join(c.Dir, id)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(fresh, dir); err != nil {
		t.Fatal(err)
	}
}

func pidsOf(c *harness.Cluster, roles ...string) map[string]int {
	pids := map[string]int{}
	for _, role := range roles {
		for _, id := range c.IDs(role) {
			pids[id] = c.Node(id).PID
		}
	}
	return pids
}

// waitAttached waits until voter-1 and all that ran are ready, in the same
// processes and the same cluster.
func waitAttached(ctx context.Context, t *testing.T, c *harness.Cluster, cl *client.Client, id string, running map[string]int) {
	t.Helper()
	for node := range running {
		untilIt(ctx, t, node+" is ready", func() bool {
			m, err := cl.Member(ctx, node)
			// A heartbeat's age is the leader's own word: the new one has heard it.
			return err == nil && m.Status == "alive" && m.HeartbeatAgeMS != nil && c.Ready(node) && c.Ready("voter-1")
		})
	}
	for node, pid := range running {
		if now := c.Node(node).PID; now != pid {
			t.Errorf("%s was started again: process %d, was %d", node, now, pid)
		}
	}
	if now := clusterID(ctx, t, cl); now != id {
		t.Errorf("the cluster is %q, was %q", now, id)
	}
}

func untilIt(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	if err := harness.Until(ctx, attachLimit, ok); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func clusterID(ctx context.Context, t *testing.T, cl *client.Client) string {
	t.Helper()
	info, err := cl.Info(ctx)
	if err != nil || info.ClusterID == "" {
		t.Fatalf("cluster id %q: %v", info.ClusterID, err)
	}
	return info.ClusterID
}

// wantAll holds what came, before and after, against how many of each prefix there
// were: each once, none of the settled ones again.
func wantAll(t *testing.T, settled, got map[string]int, want map[string]int) {
	t.Helper()
	have := map[string]int{}
	for _, part := range []map[string]int{settled, got} {
		for text := range part {
			prefix := text[:strings.LastIndexByte(text, '-')]
			have[prefix]++
			if settled[text] > 0 && got[text] > 0 {
				t.Errorf("%s was settled before and came again", text)
			}
		}
	}
	if fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("messages %v, want %v", have, want)
	}
}

// directoriesOf lists the directories of a topic on all storage nodes.
func directoriesOf(t *testing.T, c *harness.Cluster, name string) string {
	t.Helper()
	var found []string
	for _, id := range c.IDs(harness.Storage) {
		err := filepath.WalkDir(filepath.Join(c.Dir, id, "topics", name), func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				found = append(found, path)
			}
			return nil // files come and go below a running node
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return strings.Join(found, "\n")
}
