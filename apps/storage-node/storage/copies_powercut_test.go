package storage_test

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/vfs"
)

// The power fails for all nodes at once, in the middle of their syncs: each disk has any
// of the sectors that were on their way, and batches behind others that it has not. What
// was committed is there, the copies count, and the partition goes on by itself.
func TestPowerCutOfAllCopiesInTheMiddleOfTheirSyncs(t *testing.T) {
	ids := []string{"s1", "s2", "s3"}
	for seed := range uint64(24) {
		var disks *heldSyncs
		inTrio(t, func(c *trio) {
			const committed, more = 10, 8
			for i := range uint64(committed) {
				c.mustCommit("s1", large(1, i+1, 700))
			}
			c.inSync("s1", ids...)
			pass(2 * time.Second)        // the high watermark is stored
			for _, id := range ids[1:] { // they get all of it in one go, and sync it at once
				c.sever("s1", id)
			}
			disks.held.Store(true)
			var commits sync.WaitGroup
			for i := range uint64(more) {
				commits.Go(func() { _, _ = c.commit("s1", large(int(2+i), 1, 700)) }) // nobody is told that it is
				pass(10 * time.Millisecond)
			}
			for _, id := range ids[1:] {
				c.heal("s1", id)
			}
			pass(500 * time.Millisecond)
			rng := rand.New(rand.NewPCG(seed, 1))
			var left []*vfs.Mem
			for _, id := range ids {
				left = append(left, c.nodes[id].fs.CrashClone(rng))
			}
			disks.release()
			for i, id := range ids {
				c.nodes[id].bury(left[i])
			}
			commits.Wait()
			for _, id := range ids {
				c.nodes[id].start()
			}
			c.until("it is led again", func() bool { return c.elect("s1") == nil })
			leader := c.assignment().Leader
			c.inSync(leader, ids...)
			got, err := c.read(leader)
			if err != nil || len(got) < committed {
				t.Fatalf("seed %d: %d records, %v", seed, len(got), err)
			}
			for i, text := range got[:committed] {
				if text != strings.Repeat(string(rune(i+1)), 700) {
					t.Fatalf("seed %d: record %d is %.20q", seed, i, text)
				}
			}
			for id, m := range c.nodes {
				if n := m.count("narad_lost_copies_total"); n > 0 {
					t.Errorf("seed %d: the copy of %s, which lacks nothing that it promised, was given up", seed, id)
				}
				if n := m.count("narad_damage_gap_offsets_total"); n > 0 {
					t.Errorf("seed %d: %s reports damage", seed, id)
				}
			}
		}, func(c *trio) {
			disks = newHeldSyncs() // in the bubble, as those who wait for it
			for _, m := range c.nodes {
				m.rule = disks.rule
			}
		})
	}
}
