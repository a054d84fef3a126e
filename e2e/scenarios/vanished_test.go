//go:build e2e

package scenarios

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// vanishing is a partition whose only copy is on a node of which it is the only one.
type vanishing struct {
	t     *testing.T
	c     *harness.Cluster
	cl    *client.Client
	topic string
	index uint32
	node  string
}

// drill lets the directory of a lone copy vanish twice from the disk that it is recorded
// on, the node stopped: it is put back once, and given up once. What is accepted for the
// partition meanwhile comes each time, and nothing empty is served in its place.
func (v vanishing) drill(ctx context.Context) {
	v.t.Helper()
	v.produce(ctx, "kept", true)
	v.awaitRecorded(ctx)
	away := filepath.Join(v.c.Dir, "away")
	v.vanish(ctx, away)
	v.produce(ctx, "held", false)
	v.held(ctx)
	v.mustNotServe()
	v.awaitStatus(ctx, true)
	if err := os.Rename(away, v.dir()); err != nil { // while the node runs
		v.t.Fatal(err)
	}
	// Between both is what the leader wrote when it began anew.
	if got := v.receive(ctx, 2); len(got) != 2 || got[0] != "0 kept" || !strings.HasSuffix(got[1], " held") {
		v.t.Errorf("put back, it serves %q", got)
	}
	v.awaitStatus(ctx, false)
	v.vanish(ctx, away)
	v.produce(ctx, "fresh", false)
	v.held(ctx)
	out, err := exec.Command(harness.Binary(v.t, "narad"), "--server", v.c.URLs()[0], "topic", "reset", v.topic, fmt.Sprint(v.index), "--accept-data-loss").CombinedOutput()
	if err != nil {
		v.t.Fatalf("%v: %s", err, out)
	}
	if got := v.receive(ctx, 1); !slices.Equal(got, []string{"0 fresh"}) {
		v.t.Errorf("reset, it serves %q", got)
	}
	v.awaitStatus(ctx, false)
}

// awaitStatus waits until `narad cluster status` names the partition as lost, with since
// when and what to do, and the leading voter counts it; or neither.
func (v vanishing) awaitStatus(ctx context.Context, lost bool) {
	v.t.Helper()
	subject := fmt.Sprintf("%s/%d", v.topic, v.index)
	said := ""
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		out, _ := exec.CommandContext(ctx, harness.Binary(v.t, "narad"), "--server", v.c.URLs()[0], "--json", "cluster", "status").Output() // exit 1: degraded
		said = string(out)
		var doc struct{ Problems []client.ClusterProblem }
		if json.Unmarshal(out, &doc) != nil {
			return false
		}
		named := slices.ContainsFunc(doc.Problems, func(p client.ClusterProblem) bool {
			return p.Code == "partition_no_leader" && p.Subject == subject && p.Since != nil && strings.HasPrefix(p.Detail, "lost: ") &&
				strings.Contains(p.Do, fmt.Sprintf("p%05d", v.index)) && strings.Contains(p.Do, "--accept-data-loss")
		})
		counted := -1.0
		for _, id := range v.c.IDs(harness.Voter) {
			counted = max(counted, gauge(v.c, id, "narad_partitions_lost"))
		}
		return named == lost && (!lost || counted > 0) // others may be lost, too
	}); err != nil {
		v.t.Errorf("lost: %t; cluster status says %s", lost, said)
	}
}

// vanish moves the directory away while the node is down, and waits until the partition is
// said to be lost.
func (v vanishing) vanish(ctx context.Context, away string) {
	v.t.Helper()
	dir, pid := v.dir(), v.c.Node(v.node).PID
	v.c.Hold(v.node)
	v.c.Terminate(v.node)
	if err := os.Rename(dir, away); err != nil {
		v.t.Fatal(err)
	}
	v.c.Free(v.node)
	v.c.WaitReady(v.node, pid)
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		info, err := v.cl.Topic(ctx, v.topic)
		return err == nil && info.PartitionDetails[v.index].Status == "lost"
	}); err != nil {
		v.t.Fatal("topic details do not say that it is lost")
	}
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		return strings.Contains(v.c.Metrics(v.node), "\nnarad_lost_partitions 1\n")
	}); err != nil {
		v.t.Error("the node does not count what it lost")
	}
	if _, err := os.Stat(dir); err == nil {
		v.t.Error("there is a directory where the copy has to be put back")
	}
}

func (v vanishing) dir() string {
	v.t.Helper()
	dirs, err := filepath.Glob(filepath.Join(v.c.Dir, v.node, "topics", v.topic, fmt.Sprintf("p%05d", v.index)))
	if err != nil || len(dirs) > 1 {
		v.t.Fatalf("%q, %v", dirs, err)
	}
	return filepath.Join(v.c.Dir, v.node, "topics", v.topic, fmt.Sprintf("p%05d", v.index))
}

// awaitRecorded waits until the metastore knows which copy the node has: before that, one
// that vanishes begins empty. Only a backup shows it.
func (v vanishing) awaitRecorded(ctx context.Context) {
	v.t.Helper()
	recorded := regexp.MustCompile(`"node":"` + v.node + `","disk_id":"[0-9a-f]+","copy_id"`)
	file := filepath.Join(v.c.Dir, "recorded.backup")
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		if exec.CommandContext(ctx, harness.Binary(v.t, "narad"), "--server", v.c.URLs()[0], "cluster", "backup", file).Run() != nil {
			return false // its replica has not caught up yet
		}
		raw, err := os.ReadFile(file)
		return os.Remove(file) == nil && err == nil && recorded.Match(raw)
	}); err != nil {
		v.t.Fatal("the copy is not recorded")
	}
}

func (v vanishing) produce(ctx context.Context, payload string, committed bool) {
	v.t.Helper()
	if _, err := v.cl.Produce(ctx, v.topic, client.Message{Payload: []byte(payload), Partition: &v.index}, client.ProduceOptions{Committed: committed}); err != nil {
		v.t.Fatalf("produce %q: %v", payload, err)
	}
}

// held waits until a gateway says that it holds accepted messages: until then it may not
// have looked.
func (v vanishing) held(ctx context.Context) {
	v.t.Helper()
	backlog := regexp.MustCompile(`\nnarad_wal_backlog_records(\{[^}]*\})? [1-9]`)
	if err := harness.Until(ctx, 30*time.Second, func() bool { return backlog.MatchString(v.c.Metrics(v.c.IDs(harness.Gateway)[0])) }); err != nil {
		v.t.Error("the gateway does not hold what it accepted")
	}
}

// mustNotServe: a consume is refused, and not answered with nothing from an empty log. It
// waits, so that the node is asked: who has no time for that is told of nothing.
func (v vanishing) mustNotServe() {
	v.t.Helper()
	resp, err := http.Post(fmt.Sprintf("%s/v1/topics/%s/consume?partition=%d&wait=3s", v.c.URLs()[0], v.topic, v.index), "", nil) // the client would try for long
	if err != nil {
		v.t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		v.t.Errorf("a consume of what is lost: %s", resp.Status)
	}
}

// receive takes and acks n messages of the partition: "OFFSET PAYLOAD" each, by offset.
func (v vanishing) receive(ctx context.Context, n int) (got []string) {
	v.t.Helper()
	begin := time.Now()
	for len(got) < n && time.Since(begin) < 90*time.Second {
		res, err := v.cl.Receive(ctx, v.topic, client.ReceiveOptions{Max: n, Wait: 5 * time.Second, Partition: &v.index})
		if err != nil {
			continue // not yet
		}
		for _, d := range res.Deliveries {
			got = append(got, fmt.Sprintf("%d %s", d.Offset, d.Payload))
			if err := v.cl.Ack(ctx, v.topic, d.ReceiptHandle); err != nil {
				v.t.Errorf("ack: %v", err)
			}
		}
	}
	slices.Sort(got)
	return got
}
