package storage_test

import (
	"context"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// A fetch that waits for news says nothing any more once its process has been
// replaced by another one: that one may have another copy, recorded meanwhile.
func TestFetchOfAnEndedProcessIsNotAskedAgain(t *testing.T) {
	inTrio(t, func(c *trio) {
		at := c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		a := c.assignment()
		copied, _ := a.ReplicaOn("s2")
		boot := c.nodes["s2"].boot
		c.nodes["s2"].shutDown()
		for _, wake := range []bool{true, false} {
			done := make(chan error, 1)
			began := make(chan struct{})
			go func() {
				close(began)
				_, err := c.nodes["s1"].role.Replica().Fetch(context.Background(), &nodeapi.FetchRequest{
					From: "s2", Disk: copied.DiskID, Boot: boot, WaitMS: nodeapi.MaxFetchWaitMS, MaxBytes: 1 << 20,
					Partitions: []nodeapi.FetchPartition{{
						Target: c.target("s1"), Copy: copied.CopyID, Offset: at.HighWatermark, LastEpoch: a.LeaderEpoch,
						HWM: at.HighWatermark, PositionSeen: 1 << 60, MaxBytes: 1 << 20,
					}},
				})
				done <- err
			}()
			<-began
			pass(100 * time.Millisecond) // it waits
			c.meta.PutMember(topic.Member{ID: "s2", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: copied.DiskID, BootNonce: boot + 100})
			if wake {
				next := c.mustCommit("s1", batch(1, 2))
				wantProblem(t, <-done, problem.IDInUse)
				at = next
				c.meta.PutMember(topic.Member{ID: "s2", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: copied.DiskID, BootNonce: boot})
				continue
			}
			wantProblem(t, <-done, problem.IDInUse)
		}
	})
}

// A process that was not primed does not lead: the one before it was, and fell between
// that and the election. What was settled is not delivered again.
func TestElectedAfterARestartWithoutPositions(t *testing.T) {
	inFull(t, 10, func(c *trio) {
		pass(2 * time.Second) // the high watermark is stored
		c.sever("s1", "s2")
		c.ack("s1", c.take("s1", 10))
		pass(2 * time.Second) // s3 has heard of it
		c.nodes["s1"].kill()
		c.change(func(a *topic.Assignment) { a.Leader, a.LeaderEpoch = "", a.LeaderEpoch+1 })
		epoch := c.assignment().LeaderEpoch
		prime := func(epoch topic.Epoch) error {
			at := c.target("s2")
			at.Epoch = epoch
			return c.nodes["s2"].role.Replica().Prime(context.Background(), &nodeapi.PrimeRequest{Items: []nodeapi.PrimeItem{
				{Target: at, Positions: [][]byte{c.fence("s3", c.assignment().LeaderEpoch).Position}},
			}})
		}
		if a := c.fence("s2", epoch); a.Status != nodeapi.FencePromised {
			t.Fatalf("s2 answers %+v", a)
		}
		for _, other := range []topic.Epoch{epoch - 1, epoch + 1} {
			wantProblem(t, prime(other), problem.NotReady)
		}
		if err := prime(epoch); err != nil {
			t.Fatal(err)
		}
		c.nodes["s2"].kill()
		c.nodes["s2"].start()
		c.change(func(a *topic.Assignment) { a.Leader = "s2" })
		c.until("it is reported as one that does not lead", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.suspects["s2"] > 0
		})
		c.mustElect("s2")
		if ds := c.take("s2", 10); len(ds) != 0 {
			t.Errorf("%d records are delivered again", len(ds))
		}
	})
}

// What the controller and other nodes sent under an election, or before it, arrives late
// or twice: the leader of the epoch goes on, and so do its followers.
func TestLateAndRepeatedCalls(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		before := c.assignment()
		c.mustElect("s2")
		at := c.mustCommit("s2", batch(1, 2))
		c.inSync("s2", "s1", "s3")
		a := c.assignment()
		prime := func(id string, epoch topic.Epoch) error {
			to := c.target(id)
			to.Epoch = epoch
			return c.nodes[id].role.Replica().Prime(context.Background(), &nodeapi.PrimeRequest{Items: []nodeapi.PrimeItem{{Target: to, Positions: [][]byte{{1}}}}})
		}
		fetch := func(epoch topic.Epoch, offset int64, last topic.Epoch) nodeapi.FetchAnswer {
			t.Helper()
			from, _ := a.ReplicaOn("s3")
			to := c.target("s2")
			to.Epoch = epoch
			res, err := c.nodes["s2"].role.Replica().Fetch(context.Background(), &nodeapi.FetchRequest{
				From: "s3", Disk: from.DiskID, Boot: c.nodes["s3"].boot, MaxBytes: 1 << 20,
				Partitions: []nodeapi.FetchPartition{{Target: to, Copy: from.CopyID, Offset: offset, LastEpoch: last, MaxBytes: 1 << 20}},
			})
			if err != nil || len(res.Partitions) != 1 {
				t.Fatalf("%+v, %v", res, err)
			}
			return res.Partitions[0]
		}
		for id := range c.nodes {
			for _, epoch := range []topic.Epoch{before.LeaderEpoch, a.LeaderEpoch} {
				if got := c.fence(id, epoch); got.Status != nodeapi.FenceStale {
					t.Errorf("a late fence of epoch %d at %s: %+v", epoch, id, got)
				}
			}
		}
		wantProblem(t, prime("s1", a.LeaderEpoch), problem.NotReady)
		wantProblem(t, prime("s2", before.LeaderEpoch), problem.NotReady)
		if err := prime("s2", a.LeaderEpoch); err != nil {
			t.Errorf("a repeated prime of the one that leads: %v", err)
		}
		from, _ := before.ReplicaOn("s1")
		_, err := c.nodes["s1"].role.Replica().Handover(context.Background(), &nodeapi.HandoverRequest{
			Target: nodeapi.Target{Ref: a.Ref, DiskID: from.DiskID, Epoch: before.LeaderEpoch}, To: "s2", ToDisk: c.nodes["s2"].disk,
		})
		wantProblem(t, err, problem.NotPartitionLeader)
		if got := fetch(before.LeaderEpoch, 2, before.LeaderEpoch); got.Status != nodeapi.FetchStaleEpoch {
			t.Errorf("a fetch of the epoch before: %+v", got)
		}
		if got := fetch(a.LeaderEpoch, 2, before.LeaderEpoch); got.Status != nodeapi.FetchOK || got.HWM != at.HighWatermark {
			t.Errorf("a fetch from further back: %+v", got)
		}
		c.mustCommit("s2", batch(1, 3))
		c.inSync("s2", "s1", "s3")
		if now := c.assignment(); now.LeaderEpoch != a.LeaderEpoch || now.Leader != "s2" {
			t.Errorf("led by %q under %d, was epoch %d", now.Leader, now.LeaderEpoch, a.LeaderEpoch)
		}
		// A hand-over that nobody waits for any more: the leader holds for a moment and goes on.
		to, _ := a.ReplicaOn("s3")
		for range 2 {
			if _, err := c.nodes["s2"].role.Replica().Handover(context.Background(), &nodeapi.HandoverRequest{Target: c.target("s2"), To: "s3", ToDisk: to.DiskID}); err != nil {
				t.Fatal(err)
			}
		}
		c.until("the leader goes on", func() bool { _, err := c.commit("s2", batch(1, 4)); return err == nil })
		c.wantRead("s2", ordered(1, 4))
	})
}
