//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// serverIn finds a Raft server, by its node id.
func serverIn(q client.Quorum, id string) client.QuorumServer {
	for _, s := range q.Servers {
		if s.ID == id {
			return s
		}
	}
	return client.QuorumServer{}
}

// quorumLed waits until the quorum has a leader: on a busy machine voters elect by themselves.
func quorumLed(ctx context.Context, t *testing.T, cl *client.Client) (q client.Quorum) {
	t.Helper()
	var last error
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		q, last = cl.Quorum(ctx)
		return last == nil && q.LeaderID != nil
	}); err != nil {
		t.Fatalf("nobody leads the quorum: %+v, %v", q, last)
	}
	return q
}

// another is a voter that is none of these.
func another(c *harness.Cluster, not ...string) string {
	for _, id := range c.IDs(harness.Voter) {
		if !strings.Contains(" "+strings.Join(not, " ")+" ", " "+id+" ") {
			return id
		}
	}
	return ""
}

// TestWipedVoterVotesAgain: a voter loses its disk and is started under its old
// id at once. It stays out until its old self is dead, then it joins, catches up,
// is promoted, and its vote counts.
func TestWipedVoterVotesAgain(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "before", Partitions: 1})
	q := quorumLed(ctx, t, cl)
	lost := another(c, *q.LeaderID)
	pid := c.Node(lost).PID
	c.Hold(lost)
	begin := time.Now()
	c.Kill(lost)
	if err := os.Rename(filepath.Join(c.Dir, lost), filepath.Join(c.Dir, lost+".lost")); err != nil {
		t.Fatal(err)
	}
	c.Free(lost)
	early := true // as long as its old self is not dead
	// Its old self is dead after 30 s, and leaders promote after 12 s: each election that a
	// busy machine makes begins both anew.
	if err := harness.Until(ctx, 3*time.Minute, func() bool {
		q, err := cl.Quorum(ctx)
		if err != nil {
			return false
		}
		s := serverIn(q, lost)
		if early = early && time.Since(begin) < 20*time.Second; early && s.Reachable && s.State == "follower" {
			t.Fatalf("it takes part after %s: %+v", time.Since(begin), s)
		}
		return s.Suffrage == "voter" && s.Reachable && s.State == "follower" && s.Lag != nil && *s.Lag == 0
	}); err != nil {
		q, _ := cl.Quorum(ctx)
		t.Fatalf("it is no voter again: %+v", q)
	}
	t.Logf("a voter again after %s", time.Since(begin))
	c.WaitReady(lost, pid)
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		q = quorumLed(ctx, t, cl)
		strange := slices.ContainsFunc(q.Servers, func(s client.QuorumServer) bool { return strings.Contains(s.ID, "#") || !s.Member })
		return len(q.Servers) == 5 && q.Majority == 2 && !strange
	}); err != nil {
		t.Fatalf("%+v", q)
	}
	down := another(c, lost, *q.LeaderID)
	c.Hold(down)
	c.Kill(down)
	var last error
	if err := harness.Until(ctx, 30*time.Second, func() bool { // who led may not lead any more
		_, _, last = cl.CreateTopicIfAbsent(ctx, client.TopicSpec{Name: "after", Partitions: 1})
		return last == nil
	}); err != nil {
		t.Errorf("its vote does not count: %v", last)
	}
}

// TestLeaderThatStoodStillSaysNothingOld: a leader is stopped, another is elected
// and a topic deleted. What waited at the old one is what it does first when it
// goes on; it must neither say that the name is taken nor that it was created.
func TestLeaderThatStoodStillSaysNothingOld(t *testing.T) {
	t.Parallel()
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 1, Gateways: 1})
	cl, ctx := connect(t, c)
	create(ctx, t, cl, client.TopicSpec{Name: "orders", Partitions: 1})
	q := quorumLed(ctx, t, cl)
	old := c.Node(*q.LeaderID)
	goOn := c.Freeze(old.ID)
	t.Cleanup(goOn)
	if err := harness.Until(ctx, time.Minute, func() bool {
		err := cl.DeleteTopic(ctx, "orders", "")
		return err == nil || client.HasCode(err, client.CodeTopicNotFound) // one whose outcome was unknown was done
	}); err != nil {
		t.Fatal("nobody else leads")
	}
	const askers = 16
	answers := make(chan error, askers)
	calls := rpc.NewClient(rpc.ClientConfig{NodeID: "test", ClusterID: func() string { return "" }})
	t.Cleanup(calls.Close)
	voter := metaapi.NewClient(calls.Peer(old.ID, *old.RPC))
	spec := topic.DefaultConfig()
	spec.Partitions = 1
	ask := func() {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, err := voter.CreateTopic(ctx, &metaapi.CreateTopicRequest{Name: "orders", Config: spec})
		answers <- err
	}
	for range askers {
		go ask() // the kernel takes them while it stands still
	}
	time.AfterFunc(300*time.Millisecond, goOn)
	for range askers {
		err := <-answers
		var p *problem.Problem
		if !errors.As(err, &p) {
			t.Errorf("the old leader said %v", err)
			continue
		}
		switch p.Code {
		case problem.NotMetastoreLeader, problem.NotReady, problem.OutcomeUnknown, problem.Overloaded:
		default:
			t.Errorf("the old leader said %v", err)
		}
	}
	var last error
	unknown := false // whether an earlier one may have made it
	if err := harness.Until(ctx, 30*time.Second, func() bool {
		_, last = cl.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 1})
		unknown = unknown || client.HasCode(last, client.CodeOutcomeUnknown)
		return last == nil || client.HasCode(last, client.CodeTopicExists)
	}); err != nil || last != nil && !unknown {
		t.Errorf("the name is free: %v", last)
	}
}
