package storage_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func ordered(from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("1-%d", i))
	}
	return out
}

func (c *trio) wantRead(id string, want []string) {
	c.t.Helper()
	got, err := c.read(id)
	if err != nil || !slices.Equal(got, want) {
		c.t.Fatalf("%s has %d records, %v; want %d", id, len(got), err, len(want))
	}
}

func TestFollowerCatchesUp(t *testing.T) {
	inTrio(t, func(c *trio) {
		for i := 1; i <= 20; i++ {
			c.mustCommit("s1", batch(1, uint64(i)))
		}
		c.inSync("s1", "s1", "s2", "s3")
		c.nodes["s3"].kill()
		for i := 21; i <= 200; i++ {
			c.mustCommit("s1", batch(1, uint64(i)))
		}
		if lag := c.replicas("s1")["s3"]; lag.Lag < 180 {
			t.Fatalf("a dead replica: %+v", lag)
		}
		c.nodes["s3"].start()
		if !c.nodes["s3"].role.CatchingUp() {
			t.Fatal("it has not fetched anything and says that it has caught up")
		}
		c.until("s3 has caught up", func() bool { return !c.nodes["s3"].role.CatchingUp() })
		c.inSync("s1", "s3")
		c.nodes["s2"].kill()
		c.mustElect("s3")
		c.wantRead("s3", ordered(1, 200))
	})
}

// A replica that had what was never committed cuts it when it returns, and counts
// again; the producer numbers go with the records, those of committed ones stay.
func TestReturningReplicaCutsItsTail(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		c.sever("s1", "s2")
		c.sever("s1", "s3")
		_, err := c.commit("s1", batch(1, 2, 3))
		wantProblem(t, err, problem.OutcomeUnknown)
		c.sever("voter", "s1")
		c.mustElect("s2")
		c.mustCommit("s2", batch(2, 1))
		for _, id := range []string{"s2", "s3", "voter"} {
			c.heal("s1", id)
		}
		c.inSync("s2", "s1", "s3")
		if c.nodes["s1"].logs.says("an uncommitted tail was cut") != 1 {
			t.Fatal(c.nodes["s1"].logs.all())
		}
		c.mustElect("s1")
		if res := c.mustCommit("s1", batch(1, 1)); res.Duplicates != 1 || res.Appended != 0 {
			t.Fatalf("a committed record came again: %+v", res)
		}
		if res := c.mustCommit("s1", batch(1, 2, 3)); res.Duplicates != 0 || res.Appended != 2 {
			t.Fatalf("records that were cut came again: %+v", res)
		}
		c.nodes["s2"].kill()
		c.mustCommit("s1", batch(2, 2)) // s1 and s3 are a majority
		c.wantRead("s1", []string{"1-1", "2-1", "1-2", "1-3", "2-2"})
	})
}

// A leader that no majority fetches from commits nothing, serves nothing after
// three seconds, takes nothing more, and says that it does not lead.
func TestLeaderWithoutFollowers(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.sever("s1", "s2")
		c.mustCommit("s1", batch(1, 2)) // one follower is enough
		c.sever("s1", "s3")
		cut := time.Now()
		_, err := c.commit("s1", batch(1, 3))
		wantProblem(t, err, problem.OutcomeUnknown)
		served := time.Duration(0)
		for time.Since(cut) < 6*time.Second {
			if _, err := c.read("s1"); err == nil {
				served = time.Since(cut)
			}
			pass(50 * time.Millisecond)
		}
		if served > 3500*time.Millisecond {
			t.Fatalf("it served for %v", served)
		}
		end := c.replicas("s1")["s1"].LogEnd
		_, err = c.commit("s1", batch(1, 4))
		wantProblem(t, err, problem.PartitionUnavailable)
		if now := c.replicas("s1")["s1"].LogEnd; now != end {
			t.Fatalf("it appended what nobody commits: %d, %d", end, now)
		}
		st, err := c.nodes["s1"].role.Replica().Standing(t.Context(), &nodeapi.StandingRequest{Partitions: topicRefs(c)})
		if err != nil || st.Partitions[0].Leads {
			t.Fatalf("it says that it leads: %+v, %v", st, err)
		}
		if c.suspects["s1"] == 0 {
			t.Fatal("nobody reported it")
		}
		c.heal("s1", "s3")
		c.until("it serves again", func() bool { _, err := c.read("s1"); return err == nil })
		if res := c.mustCommit("s1", batch(1, 3)); res.Duplicates != 1 {
			t.Fatalf("what it had appended: %+v", res)
		}
		c.wantRead("s1", ordered(1, 3))
	})
}

// The wanted replica takes over without a committed record or an acknowledgement
// lost, while producers go on.
func TestHandOverUnderLoad(t *testing.T) {
	inTrio(t, func(c *trio) {
		acked := 0
		send := func(n int) {
			for range n {
				c.until("a commit", func() bool {
					_, err := c.commit(c.assignment().Leader, batch(1, uint64(acked+1)))
					return err == nil
				})
				acked++
			}
		}
		for _, to := range []string{"s2", "s3", "s1"} {
			send(20)
			done := make(chan error, 1)
			go func() {
				err := c.handOver(to)
				for i := 0; err != nil && i < 20; i++ { // one that has not fetched under this epoch yet is not waited for
					pass(100 * time.Millisecond)
					err = c.handOver(to)
				}
				done <- err
			}()
			send(20)
			if err := <-done; err != nil || c.assignment().Leader != to {
				t.Fatalf("to %s: %v, %+v", to, err, c.assignment())
			}
			send(1)
		}
		c.wantRead("s1", ordered(1, acked))
	})
}

// A leader that holds for a hand-over that does not come goes on as soon as it is told; by
// a call for an older epoch it is not.
func TestHandOverIsCalledOff(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s1", "s2", "s3")
		ask := func(to string, epoch topic.Epoch) error {
			req := &nodeapi.HandoverRequest{Target: c.target("s1"), To: to}
			req.Epoch = epoch
			if to != "" {
				req.ToDisk = c.nodes[to].disk
			}
			_, err := c.nodes["s1"].role.Replica().Handover(context.Background(), req)
			return err
		}
		held := func() {
			t.Helper()
			_, err := c.commit("s1", batch(1, 2))
			wantProblem(t, err, problem.PartitionUnavailable)
		}
		epoch := c.assignment().LeaderEpoch
		if err := ask("s2", epoch); err != nil {
			t.Fatal(err)
		}
		held()
		wantProblem(t, ask("", epoch-1), problem.StaleEpoch, problem.NotPartitionLeader)
		held()
		if err := ask("", epoch); err != nil {
			t.Fatal(err)
		}
		c.mustCommit("s1", batch(1, 2))
	})
}

// A graceful stop hands the leadership over, and what was settled stays settled.
func TestStopHandsOver(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		got := c.take("s1", 6)
		c.ack("s1", got[:4])
		c.inSync("s1", "s2", "s3")
		c.nodes["s1"].shutDown()
		next := c.assignment().Leader
		if next != "s2" && next != "s3" {
			t.Fatalf("led by %q", next)
		}
		if n := c.nodes[next].logs.says("partition cannot be served"); n > 0 {
			t.Fatal(c.nodes[next].logs.all())
		}
		c.until("it serves", func() bool { _, err := c.read(next); return err == nil })
		var again []string
		for _, d := range c.take(next, 100) {
			again = append(again, payload(d))
		}
		if !slices.Equal(again, ordered(5, 10)) {
			t.Fatalf("delivered after the hand-over: %v", again)
		}
		c.nodes["s1"].start()
		c.inSync(next, "s1")
	})
}

// A promise stands on the disk before it is answered.
func TestFenceOutlivesAPowerCut(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.inSync("s1", "s2", "s3")
		epoch := c.assignment().LeaderEpoch
		c.change(func(a *topicAssignment) { a.Leader = ""; a.LeaderEpoch++ })
		if a := c.fence("s2", epoch+1); a.Status != nodeapi.FencePromised || a.PromisedEpoch != epoch+1 {
			t.Fatalf("%+v", a)
		}
		c.nodes["s2"].powerCut()
		c.nodes["s2"].start()
		c.until("an older one is refused", func() bool {
			a := c.fence("s2", epoch)
			return a.Status == nodeapi.FenceStale && a.PromisedEpoch == epoch+1
		})
		c.mustElect("s2")
		if a := c.fence("s2", c.assignment().LeaderEpoch); a.Status != nodeapi.FenceStale {
			t.Fatalf("a fence for an epoch that has a leader: %+v", a)
		}
	})
}

// The topic goes: so do all copies.
func TestDeleteRemovesAllCopies(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		c.meta.DeleteTopic(trioTopic)
		c.until("all directories are gone", func() bool {
			for _, m := range c.nodes {
				if left, err := m.fs.ReadDir("/data/topics"); err == nil && len(left) > 0 {
					return false
				}
			}
			return true
		})
	})
}
