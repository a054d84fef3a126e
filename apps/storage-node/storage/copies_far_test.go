package storage_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
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
