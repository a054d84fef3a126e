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
	inTrio(t, func(c *trio) {
		for i := 1; i <= 10; i++ {
			c.mustCommit("s1", batch(1, uint64(i)))
		}
		c.inSync("s1", "s2", "s3")
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
