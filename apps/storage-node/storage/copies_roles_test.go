package storage_test

import (
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

func (c *trio) suspected(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.suspects[id]
}

// An election costs its calls, and no second of waiting for something that failed
// under the assignment before.
func TestElectionsAreQuick(t *testing.T) {
	inTrio(t, func(c *trio) {
		n := uint64(0)
		for range 5 {
			for _, to := range []string{"s2", "s3", "s1"} {
				n++
				c.mustCommit(c.assignment().Leader, batch(1, n))
				c.inSync(c.assignment().Leader, "s1", "s2", "s3")
				began := time.Now()
				c.mustElect(to)
				if took := time.Since(began); took > 300*time.Millisecond {
					t.Fatalf("%s served after %v; %s", to, took, c.nodes[to].logs.all())
				}
			}
		}
	})
}

// A leader that says nothing, as one that is paused, is reported long before its
// fetches fail.
func TestSilentLeaderIsReported(t *testing.T) {
	inTrio(t, func(c *trio) {
		pass(2 * time.Second)
		if c.suspected("s1") > 0 {
			t.Fatal("an idle leader is suspected")
		}
		goOn := make(chan struct{})
		defer close(goOn)
		c.mu.Lock()
		c.spoil = func(string, string, *nodeapi.FetchRequest, *nodeapi.FetchResult) { <-goOn }
		c.mu.Unlock()
		began := time.Now()
		c.until("it is reported", func() bool { return c.suspected("s1") > 0 })
		if took := time.Since(began); took > 3*time.Second {
			t.Fatalf("after %v", took)
		}
		c.mu.Lock()
		c.spoil = nil
		c.mu.Unlock()
	})
}

// A node that does not lead what the metastore says that it leads is reported: it
// answers, so that nothing else would end that state.
func TestLeaderThatDoesNotLeadIsReported(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.inSync("s1", "s2", "s3")
		// The entry names s2, which promised nothing.
		c.change(func(a *topicAssignment) { a.Leader = "s2"; a.LeaderEpoch++ })
		c.until("it is reported", func() bool { return c.suspected("s2") > 0 })
		st, err := c.nodes["s2"].role.Replica().Standing(t.Context(), &nodeapi.StandingRequest{Partitions: topicRefs(c)})
		if err != nil || st.Partitions[0].Leads {
			t.Fatalf("it leads without a promise: %+v, %v", st, err)
		}
		c.mustElect("s3")
		c.inSync("s3", "s1", "s2")
	})
}

// The topic goes while everything is under way: no node takes that for a broken disk.
func TestDeleteUnderLoad(t *testing.T) {
	inTrio(t, func(c *trio) {
		stop := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for n := uint64(1); ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_, _ = c.commit("s1", batch(1, n)) // what it answers after the delete is not the question
				pass(time.Millisecond)
			}
		}()
		pass(500 * time.Millisecond)
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		c.meta.DeleteTopic(trioTopic)
		pass(2 * time.Second)
		close(stop)
		<-ended
		for id, m := range c.nodes {
			if m.logs.says("FATAL") > 0 {
				t.Fatalf("%s: %s", id, m.logs.all())
			}
		}
	})
}

// What consumers settled is known to whoever leads next, also when the leader that
// knew it last is gone: a majority had it.
func TestSettledStaysSettledAcrossElections(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 20)...))
		leader := "s1"
		settled := 0
		for _, next := range []string{"s2", "s3", "s1"} {
			got := c.take(leader, 4)
			c.ack(leader, got)
			settled += len(got)
			pass(2 * time.Second) // positions travel every 100 ms, and are synced every second
			c.inSync(leader, "s1", "s2", "s3")
			c.nodes[leader].powerCut()
			c.mustElect(next)
			first := c.take(next, 1)
			if len(first) != 1 || payload(first[0]) != ordered(settled+1, settled+1)[0] {
				t.Fatalf("after %s: %+v, %d were settled", leader, first, settled)
			}
			c.nodes[leader].start()
			c.inSync(next, leader)
			leader = next
			c.mustElect(next) // the lease of the one just taken ends
		}
	})
}

// A leader begins with the high watermark that it had stored, which may lie below
// what is committed: a copy that has everything below it has not caught up yet.
func TestInheritedHighWatermarkIsNotCaughtUp(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.inSync("s1", "s2", "s3")
		pass(10 * time.Second) // it is stored everywhere
		c.nodes["s3"].shutDown()
		c.mustCommit("s1", batch(1, seqs(11, 10)...))
		c.nodes["s1"].powerCut()
		c.nodes["s2"].powerCut()
		c.mu.Lock()
		c.spoil = func(_, _ string, q *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
			for i := range res.Partitions {
				if q.From == "s3" && len(res.Partitions[i].Batches) > 0 {
					res.Partitions[i].Batches = nil
					pass(20 * time.Millisecond)
				}
			}
		}
		c.mu.Unlock()
		for _, id := range []string{"s1", "s2", "s3"} {
			c.nodes[id].start()
		}
		c.mustElect("s1")
		pass(5 * time.Second)
		if !c.nodes["s3"].role.CatchingUp() {
			t.Fatal("it lacks ten records and says that it has caught up")
		}
		c.mu.Lock()
		c.spoil = nil
		c.mu.Unlock()
		c.until("it has caught up", func() bool { return !c.nodes["s3"].role.CatchingUp() })
		c.nodes["s2"].kill()
		c.mustElect("s3")
		c.wantRead("s3", ordered(1, 20))
	})
}

// The destination of a move whose source is dead has nothing to fetch, perhaps for
// long. Nobody waits for that copy, so neither does the node's readiness.
func TestDestinationOfAStalledMoveIsReady(t *testing.T) {
	inFull(t, 10, func(c *trio) {
		for _, id := range []string{"s1", "s2", "s3"} {
			c.nodes[id].kill()
		}
		c.change(func(a *topic.Assignment) {
			a.Replicas = slices.Clone(a.Replicas[:2])
			a.Observers = []topic.Replica{{Node: "s3", DiskID: c.nodes["s3"].disk}}
			a.ConfigVersion++
		})
		c.nodes["s3"].start()
		c.until("s3 is ready", func() bool { return !c.nodes["s3"].role.CatchingUp() })
	})
}
