package storage_test

import (
	"bytes"
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// large is a batch of one record of n bytes that are not compressed.
func large(id int, seq uint64, n int) []byte {
	var b record.Builder
	b.Reset(stream(id), 0, record.Oldest{})
	m := record.Message{Payload: bytes.Repeat([]byte{byte(seq)}, n)}
	if err := b.Add(seq, record.AppendBody(nil, &m)); err != nil {
		panic(err)
	}
	return append([]byte(nil), b.Finish(record.CodecNone)...)
}

// A copy that lacks few and large records is far behind as well: what it gets at once
// is bounded, commits go on beside it, and it gets everything although it asks again
// long before anything new is there.
func TestFarCopyCatchesUpBesideCommits(t *testing.T) {
	t.Run("commits", func(t *testing.T) { farCopyCatchesUp(t, true) })
	t.Run("nothing new", func(t *testing.T) { farCopyCatchesUp(t, false) })
}

func farCopyCatchesUp(t *testing.T, commits bool) {
	t.Helper()
	inTrio(t, func(c *trio) {
		const count, size = 48, 1 << 20
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s1", "s2", "s3")
		c.nodes["s3"].kill()
		for i := range uint64(count) {
			c.mustCommit("s1", large(2, i+1, size))
		}
		var began time.Time
		var came, early int
		c.mu.Lock()
		c.spoil = func(from, _ string, _ *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
			c.mu.Lock()
			defer c.mu.Unlock()
			for i := range res.Partitions {
				n := len(res.Partitions[i].Batches)
				if from != "s3" || n < size {
					continue
				}
				if began.IsZero() {
					began = time.Now()
				}
				if time.Since(began) < 50*time.Millisecond {
					early += n
				}
				came += n
			}
		}
		c.mu.Unlock()
		c.nodes["s3"].start()
		seq := uint64(1)
		c.until("s3 has caught up", func() bool {
			if commits {
				seq++
				c.mustCommit("s1", batch(1, seq))
			}
			return !c.nodes["s3"].role.CatchingUp() && c.replicas("s1")["s3"].Lag == 0
		})
		c.mu.Lock()
		took := time.Since(began)
		// A burst of 4 MiB, and 50 ms of what begins with 64 MiB/s and is doubled.
		if early < size || early > count*size/2 {
			t.Errorf("%d bytes at once", early)
		}
		if came < count*size || took > 2*time.Second {
			t.Errorf("%d bytes within %s", came, took)
		}
		c.mu.Unlock()
		if end, lag := c.replicas("s1")["s1"].LogEnd, c.replicas("s1")["s3"].Lag; end < count || lag != 0 {
			t.Errorf("the log ends at %d, s3 lacks %d", end, lag)
		}
	})
}

// A copy that is behind is synced in pieces while commits wait for its disk, and batch by
// batch when none does: a disk whose syncs are slow would be slow for nothing.
func TestFarCopyIsSyncedInPiecesForTheSakeOfCommits(t *testing.T) {
	for name, commits := range map[string]bool{"commits": true, "nobody commits": false} {
		t.Run(name, func(t *testing.T) {
			inTrio(t, func(c *trio) {
				const count, size = 32, 1 << 20
				c.mustCommit("s1", batch(1, 1))
				c.inSync("s1", "s1", "s2", "s3")
				s3 := c.nodes["s3"]
				s3.kill()
				for i := range uint64(count) {
					c.mustCommit("s1", large(2, i+1, size))
				}
				var far, syncs atomic.Int64 // large writes, and syncs of what they went to
				s3.rule = func(op vfs.Op) vfs.Fault {
					switch {
					case !strings.Contains(op.Path, "/"+trioTopic+"/"):
					case op.Kind == vfs.OpWrite && op.Len >= 64<<10:
						far.Add(1)
					case op.Kind == vfs.OpSync && far.Load() > 0:
						syncs.Add(1)
					}
					return vfs.Fault{}
				}
				other := topic.Ref{Topic: "other", Incarnation: 9}
				c.meta.PutTopic(topic.Topic{Name: other.Topic, Incarnation: other.Incarnation, Version: 1, Config: onePartition()}, []topic.Assignment{
					{Ref: other, Leader: "s3", LeaderEpoch: 1, Replicas: []topic.Replica{{Node: "s3", DiskID: s3.disk}}},
				})
				c.sever("s1", "s3") // it has been up for a while when it begins
				s3.start()
				pass(2 * time.Second)
				c.heal("s1", "s3")
				seq := uint64(0)
				c.until("s3 has caught up", func() bool {
					if seq++; commits {
						target := nodeapi.Target{Ref: other, DiskID: s3.disk, Epoch: 1}
						if _, err := s3.role.Node().Commit(context.Background(), &nodeapi.CommitRequest{Target: target, Batch: batch(3, seq)}); err != nil {
							t.Fatal(err)
						}
					}
					return !s3.role.CatchingUp() && c.replicas("s1")["s3"].Lag == 0
				})
				if n := syncs.Load(); commits && n < 3*count || !commits && n > 2*count {
					t.Errorf("%d syncs of %d MiB", n, count)
				}
			})
		})
	}
}
