package storage_test

import (
	"testing"
	"time"
)

// A leader shows how far the slowest replica is behind, in records and in seconds since
// it had everything; a follower shows nothing, and neither does the leader of level ones.
func TestLagIsShown(t *testing.T) {
	inTrio(t, func(c *trio) {
		want := func(when, id string, records, low, high float64) {
			t.Helper()
			if n := c.nodes[id].gauge("narad_replica_lag_records"); n != records {
				t.Errorf("%s: %s shows a lag of %v records, want %v", when, id, n, records)
			}
			if s := c.nodes[id].gauge("narad_replica_lag_seconds"); s < low || s > high {
				t.Errorf("%s: %s shows a lag of %v s, want %v to %v", when, id, s, low, high)
			}
		}
		c.fill(1, 10)
		c.inSync("s1", "s2", "s3")
		want("all are level", "s1", 0, 0, 0)
		c.sever("s1", "s3")
		c.fill(11, 17)
		c.inSync("s1", "s2")
		pass(10 * time.Second)
		want("s3 is cut off", "s1", 7, 9, 11)
		want("s3 is cut off", "s2", 0, 0, 0)
		c.heal("s1", "s3")
		c.inSync("s1", "s3")
		want("s3 is back", "s1", 0, 0, 0)
	})
}
