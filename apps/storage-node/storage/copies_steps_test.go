package storage_test

import (
	"testing"

	"github.com/narad-mq/narad/libs/topic"
)

// What many tests of copies begin with.

// fill commits records first to last of one producer through s1, a batch each: damage
// then falls between records that can be read.
func (c *trio) fill(first, last int) {
	c.t.Helper()
	for i := first; i <= last; i++ {
		c.mustCommit("s1", batch(1, uint64(i)))
	}
}

// inFull runs a test with records 1 to n in all three copies.
func inFull(t *testing.T, n int, test func(c *trio), prepare ...func(c *trio)) {
	t.Helper()
	inTrio(t, func(c *trio) {
		c.fill(1, n)
		c.inSync("s1", "s2", "s3")
		test(c)
	}, prepare...)
}

// inPair runs a test with s1, which leads, and s2 as the only replicas: both have
// records 1 to 201, which are read from their disks.
func inPair(t *testing.T, test func(c *trio)) {
	t.Helper()
	inTrio(t, func(c *trio) {
		c.fill(1, 200)
		c.change(func(a *topic.Assignment) { a.Replicas, a.ConfigVersion = a.Replicas[:2], a.ConfigVersion+1 })
		c.until("the pair is counted by", func() bool { return len(c.replicas("s1")) == 2 })
		c.mustCommit("s1", batch(1, 201))
		c.inSync("s1", "s2")
		test(c)
	}, onDisk)
}
