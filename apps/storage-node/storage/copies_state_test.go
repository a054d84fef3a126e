package storage_test

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// What followers know of a high watermark and of positions is on their disks within
// about a second, whatever ends them: they tell it when they are asked for a promise,
// and the one of them that leads next delivers nothing again that was settled.
func TestFollowersSaveTheirStateEverySecond(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.fill(1, 20)
		c.ack("s1", c.take("s1", 7))
		c.inSync("s1", "s2", "s3")
		committed := c.replicas("s1")["s1"].LogEnd
		pass(2 * time.Second)
		for _, id := range []string{"s2", "s3", "s1"} {
			c.nodes[id].powerCut()
		}
		c.nodes["s2"].start()
		c.nodes["s3"].start()
		c.change(func(a *topic.Assignment) { a.Leader, a.LeaderEpoch = "", a.LeaderEpoch+1 })
		for _, id := range []string{"s2", "s3"} {
			a := c.fence(id, c.assignment().LeaderEpoch)
			if a.Status != nodeapi.FencePromised || a.HWM != committed || len(a.Position) == 0 {
				t.Errorf("%s had stored %d of %d, and %d bytes of positions (status %d)", id, a.HWM, committed, len(a.Position), a.Status)
			}
		}
		c.mustElect("s2")
		if got := c.take("s2", 20); len(got) != 13 {
			t.Errorf("%d of 20 records come again, 7 were settled", len(got))
		}
	})
}

// A leader that only commits sends its positions once: every second it saves its high
// watermark, and positions may be megabytes.
func TestPositionsThatDoNotChangeAreNotSentAgain(t *testing.T) {
	inTrio(t, func(c *trio) {
		sent := 0
		c.fill(1, 5)
		c.ack("s1", c.take("s1", 5))
		pass(3 * time.Second)
		c.mu.Lock()
		c.spoil = func(_, _ string, _ *nodeapi.FetchRequest, res *nodeapi.FetchResult) {
			for i := range res.Partitions {
				if res.Partitions[i].Position != nil {
					c.mu.Lock()
					sent++
					c.mu.Unlock()
				}
			}
		}
		c.mu.Unlock()
		for i := range 20 {
			c.fill(6+i, 6+i)
			pass(500 * time.Millisecond)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if sent != 0 {
			t.Errorf("sent %d times", sent)
		}
	})
}
