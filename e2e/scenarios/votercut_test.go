//go:build e2e

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

const (
	// voterCut is some elections long: a voter that is alone stands for several.
	voterCut = 6 * time.Second
	// alonePause is between two writes that nobody may acknowledge, each with tryLimit.
	alonePause, tryLimit = 250 * time.Millisecond, 2 * time.Second
	writePause           = 50 * time.Millisecond // between writes that a voter misses
	// rejoins is how often a follower is cut off at most: a machine that stands still
	// makes elections of its own, not each time.
	rejoins = 2
)

// follows waits until a voter is ready and has what the leader has.
func (c *cuts) follows(t *testing.T, id string) {
	t.Helper()
	if err := harness.Until(c.ctx, healLimit, func() bool {
		return c.n.Ready(id) && c.series(id, "narad_raft_has_leader") == "1" && c.series(id, "narad_raft_applied_index") == c.series(c.leader(t), "narad_raft_applied_index")
	}); err != nil {
		t.Errorf("%s has not caught up within %s of the heal; %s leads; logs in %s", id, healLimit, c.leader(t), c.n.Dir)
	}
}

// epoch is who leads the metastore, and under which epoch.
func (c *cuts) epoch(t *testing.T) (leader string, epoch uint64) {
	t.Helper()
	if err := harness.Until(c.ctx, healLimit, func() bool {
		q, err := c.cl.Quorum(c.ctx)
		if err != nil || q.LeaderID == nil || q.LeaderEpoch == nil {
			return false
		}
		leader, epoch = *q.LeaderID, *q.LeaderEpoch
		return true
	}); err != nil {
		t.Fatalf("nobody tells the leader and its epoch within %s; logs in %s", healLimit, c.n.Dir)
	}
	return leader, epoch
}

// followerCutOff: a voter that follows is alone for a while, misses writes and stands
// for election in vain. When it is back it follows the leader that there was, under the
// epoch that there was: it had no right to a new one.
func (c *cuts) followerCutOff(t *testing.T) {
	for try := 1; ; try++ {
		leader, epoch := c.epoch(t)
		follower := c.n.IDs(harness.Voter)[0]
		if follower == leader {
			follower = c.n.IDs(harness.Voter)[1]
		}
		heal := c.n.Cut(follower)
		defer heal()
		writes, slowest := 0, time.Duration(0)
		for end := time.Now().Add(voterCut); time.Now().Before(end); writes++ {
			slowest = max(slowest, c.write(t, newLeaderLimit))
			wait(c.ctx, writePause)
		}
		if err := harness.Until(c.ctx, healLimit, func() bool { return c.series(follower, "narad_raft_has_leader") == "0" }); err != nil {
			t.Errorf("%s has a leader, cut off from all: this shows nothing", follower)
		}
		heal()
		begin := time.Now()
		c.follows(t, follower)
		now, later := c.epoch(t)
		t.Logf("%s missed %d writes, the slowest of %s, and had them %s after the heal; %s led under epoch %d before, %s under %d after", follower, writes, slowest, time.Since(begin), leader, epoch, now, later)
		if now == leader && later == epoch {
			return
		}
		if try == rejoins {
			t.Errorf("%d times another voter led, or under another epoch, after a follower was back", try)
			return
		}
	}
}

// nobodyHasAMajority: every voter is alone, while gateways and storage nodes reach all
// of them. No write is acknowledged, messages flow, and after the heal what had been
// acknowledged is there, what was surely refused is not, and writes go on.
func (c *cuts) nobodyHasAMajority(t *testing.T) {
	kept := create(c.ctx, t, c.cl, client.TopicSpec{Name: "kept", Partitions: 1, RetentionMS: retention(1).RetentionMS})
	leader, voters := c.leader(t), c.n.IDs(harness.Voter)
	others := slices.DeleteFunc(slices.Clone(voters), func(id string) bool { return id == leader })
	heal, healOthers := c.n.CutBetween(leader, others...), c.n.CutBetween(others[0], others[1])
	defer heal()
	defer healOthers()
	accepted := c.ledger.Accepted()
	tries := c.refusedCreates(t)
	if more := c.ledger.Accepted() - accepted; more < 100 {
		t.Errorf("%d messages were accepted meanwhile: they need no metastore leader", more)
	}
	for _, id := range voters {
		if leading.MatchString(c.n.Metrics(id)) {
			t.Errorf("%s still leads, without a majority", id)
		}
	}
	// The others do not reach each other yet: the old leader, whose log is the longest, is
	// elected, and what it has stored and could not acknowledge is done.
	heal()
	t.Logf("nobody had a majority for %s; a write was acknowledged %s after the heal", voterCut, c.write(t, healLimit))
	healOthers()
	for _, id := range voters {
		c.follows(t, id)
	}
	got := map[string]client.Topic{}
	for topic, err := range c.cl.Topics(c.ctx, "") {
		if err != nil {
			t.Fatal(err)
		}
		got[topic.Name] = topic
	}
	if now := got[kept.Name]; now.ETag() != kept.ETag() || now.RetentionMS != kept.RetentionMS {
		t.Errorf("%s was %s and is %s: what was acknowledged before is lost", kept.Name, kept.ETag(), now.ETag())
	}
	for name, surelyNot := range tries {
		if _, there := got[name]; there && surelyNot {
			t.Errorf("%s is there; its create was refused without effect", name)
		}
	}
}

// refusedCreates tries to create topics through both gateways, in turn, for as long as a
// cut, and returns when all have been answered: each tells whether it was surely refused.
func (c *cuts) refusedCreates(t *testing.T) map[string]bool {
	t.Helper()
	var once []*client.Client
	for _, u := range c.n.URLs() {
		cl, err := client.New(client.Config{URL: u, Retry: client.Retry{Attempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		once = append(once, cl)
	}
	var mu sync.Mutex // guards tries
	tries := map[string]bool{}
	during, end := context.WithTimeout(c.ctx, voterCut)
	defer end()
	var creates sync.WaitGroup
	harness.Every(during, alonePause, func(n int) {
		creates.Go(func() {
			one, cancel := context.WithTimeout(c.ctx, tryLimit)
			defer cancel()
			name := fmt.Sprintf("alone-%d", n)
			_, err := once[n%len(once)].CreateTopic(one, client.TopicSpec{Name: name, Partitions: 1})
			if err == nil {
				t.Errorf("%s was created: nobody has a majority", name)
			}
			var e *client.Error
			mu.Lock()
			defer mu.Unlock()
			tries[name] = errors.As(err, &e) && e.Applied == client.AppliedNo
		})
	})
	creates.Wait()
	return tries
}
