//go:build e2e

package scenarios

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// TestClusterSaysWhatIsWrong: status, quorum and forget of a whole cluster, from
// sound over a dead storage node and voter to no leader at all, and back.
func TestClusterSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 2, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 4})
	// codes are what a look finds, as "code subject", but for the disk of this machine.
	codes := func() (status string, list []string) {
		s, err := cl.Status(ctx)
		if err != nil {
			t.Logf("status: %v", err)
			return "", nil
		}
		for _, p := range s.Problems {
			if p.Code != "disk_nearly_full" {
				list = append(list, p.Code+" "+p.Subject)
			}
		}
		return s.Status, list
	}
	until := func(limit time.Duration, what string, want ...string) {
		t.Helper()
		var last []string
		if err := harness.Until(ctx, limit, func() bool {
			status, list := codes()
			last = list
			if len(want) == 0 {
				return status != "" && len(list) == 0
			}
			return status == "degraded" && !slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(list, w) })
		}); err != nil {
			t.Fatalf("%s: not within %s; found %q, want %q", what, limit, last, want)
		}
	}
	until(20*time.Second, "sound")

	var q client.Quorum
	var err error
	if harness.Until(ctx, 20*time.Second, func() bool { // who is busy may miss the 2 s of one look
		q, err = cl.Quorum(ctx)
		return err == nil && q.LeaderID != nil && q.AnsweredBy == *q.LeaderID && len(q.Servers) == 6 && q.Majority == 2 &&
			!slices.ContainsFunc(q.Servers, func(s client.QuorumServer) bool {
				return !s.Reachable || !s.Member || s.Applied == nil || s.LEO == nil || (s.LastContactMS == nil) != (s.ID == *q.LeaderID)
			})
	}) != nil {
		t.Fatalf("%+v, %v", q, err)
	}
	forgetRefuses(t, c, cl)

	var voter string // that follows
	for _, id := range c.IDs(harness.Voter) {
		if id != *q.LeaderID {
			voter = id
		}
	}
	down := []string{"storage-1", voter}
	pids := map[string]int{}
	stop := func(ids ...string) {
		for _, id := range ids {
			pids[id] = c.Node(id).PID
			c.Hold(id)
			c.Kill(id)
		}
	}
	stop(down...)
	until(20*time.Second, "at once", "member_unreachable storage-1", "voter_unreachable "+voter, "quorum_at_risk metastore")
	until(90*time.Second, "after the silence that makes a member dead", "member_dead storage-1", "voter_unreachable "+voter, "quorum_at_risk metastore")
	n := 0
	if harness.Until(ctx, 20*time.Second, func() bool {
		_, found := codes()
		n = len(slices.DeleteFunc(found, func(s string) bool { return !strings.HasPrefix(s, "partition_no_leader orders/") }))
		return n == 2
	}) != nil {
		t.Errorf("%d of 4 partitions are named as without a leader", n)
	}
	var out []byte
	if harness.Until(ctx, 20*time.Second, func() bool {
		out, err = exec.Command(harness.Binary(t, "narad"), "--server", c.URLs()[0], "cluster", "status").CombinedOutput()
		var exit *exec.ExitError
		return errors.As(err, &exit) && exit.ExitCode() == 1 && strings.Contains(string(out), "member_dead")
	}) != nil {
		t.Errorf("narad cluster status: %v: %s", err, out)
	}

	stop(*q.LeaderID)
	until(40*time.Second, "without a leader", "no_metastore_leader metastore", "voter_unreachable "+voter, "voter_unreachable "+*q.LeaderID)
	onceInTime(t, "the quorum without a leader, within 6 s", func() (kept bool, figures string) {
		begin := time.Now()
		alone, err := cl.Quorum(ctx)
		took := time.Since(begin)
		good := err == nil && alone.LeaderID == nil && alone.AnsweredBy == "gateway-1" && alone.HighWatermark != nil && q.HighWatermark != nil && *alone.HighWatermark >= *q.HighWatermark
		for _, s := range alone.Servers {
			want := s.ID != voter && s.ID != "storage-1" && s.ID != *q.LeaderID
			good = good && s.Reachable == want && (s.Applied != nil) == want
		}
		if !good {
			return false, fmt.Sprintf("%s: %+v, %v", took, alone, err)
		}
		return took <= 6*time.Second, took.String()
	})

	for id := range pids {
		c.Free(id)
	}
	for id, pid := range pids {
		c.WaitReady(id, pid)
	}
	until(60*time.Second, "sound again")
}

// forgetRefuses: what is a member, and what is nothing, is not forgotten.
func forgetRefuses(t *testing.T, c *harness.Cluster, cl *client.Client) {
	t.Helper()
	for id, want := range map[string]client.Code{
		"storage-1": "has_member_record", "voter-1": "has_member_record", "gateway-1": "has_member_record",
		"nobody": "member_not_found", "": "route_not_found",
	} {
		var e *client.Error
		if err := cl.ForgetMember(t.Context(), id); !errors.As(err, &e) || e.Code != want {
			t.Errorf("forget %q: %v, want %s", id, err, want)
		}
	}
	resp, err := http.Post(c.URLs()[0]+"/v1/cluster/members/nobody/forget", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a body where none belongs: %s", resp.Status)
	}
	q, err := cl.Quorum(t.Context())
	if err != nil || len(q.Servers) != 6 {
		t.Errorf("servers after the refusals: %+v, %v", q.Servers, err)
	}
}
