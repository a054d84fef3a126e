package storage_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// met damages the leader s1 and waits until it knows.
func met(c *trio) {
	c.t.Helper()
	c.nodes["s1"].rot()
	if got, err := c.read("s1"); err == nil {
		c.t.Fatalf("it skipped: %d records", len(got))
	}
	c.until("it leads no more", func() bool {
		res, err := c.nodes["s1"].role.Replica().Standing(context.Background(), &nodeapi.StandingRequest{Partitions: topicRefs(c)})
		return err == nil && !res.Partitions[0].Leads
	})
}

// The damaged leader of a pair has records that the other one has not, and that nobody
// was told of: the other one leads, repairs it, and nothing that was acknowledged is lost.
func TestDamagedLeaderOfAPair(t *testing.T) {
	inPair(t, func(c *trio) {
		c.sever("s1", "s2")
		if _, err := c.commit("s1", batch(1, 202)); err == nil {
			t.Fatal("one of a pair committed")
		}
		met(c)
		if err := c.elect("s2"); err != nil || c.assignment().Leader != "s2" {
			t.Fatalf("%v, led by %q", err, c.assignment().Leader)
		}
		c.heal("s1", "s2")
		c.until("it is repaired", func() bool { return c.nodes["s1"].count("narad_repaired_offsets_total") > 0 })
		c.mustCommit("s2", batch(1, 202))
		c.inSync("s2", "s1")
		c.mustElect("s1")
		c.wantRead("s1", ordered(1, 202))
	})
}

// Nobody is elected who may lack what a damaged copy committed: here it did.
func TestOnlyTheDamagedCopyHasEverything(t *testing.T) {
	inFull(t, 200, func(c *trio) {
		c.sever("s1", "s2")
		c.mustCommit("s1", batch(1, 201)) // s3 has it
		c.sever("s3", "voter")
		met(c)
		if err := c.elect("s2"); !errors.Is(err, quorum.ErrOnlyDamaged) {
			t.Fatalf("%v, led by %q", err, c.assignment().Leader)
		}
		c.heal("s1", "s2")
		c.heal("s3", "voter")
		c.mustElect("s3")
		c.inSync("s3", "s1", "s2")
		c.wantRead("s3", ordered(1, 201))
	}, onDisk)
}

// A promise of a damaged copy outlives a power cut.
func TestPromiseOfADamagedCopyIsDurable(t *testing.T) {
	inFull(t, 200, func(c *trio) {
		pass(2 * time.Second) // the high watermark is stored
		met(c)
		epoch := c.assignment().LeaderEpoch + 5
		if a := c.fence("s1", epoch); a.Status != nodeapi.FenceDamaged || a.PromisedEpoch != epoch {
			t.Fatalf("it answers %+v", a)
		}
		c.nodes["s1"].powerCut()
		c.nodes["s1"].start()
		c.until("it keeps its promise", func() bool {
			a := c.fence("s1", epoch-1)
			return a.Status == nodeapi.FenceStale && a.PromisedEpoch == epoch
		})
	}, onDisk)
}

// A move is taken back while the source, alone again, is damaged: nobody else is known
// to have what is missing, so it serves the rest, and says that it does not vouch for it.
func TestDamagedCopyThatIsAloneAgain(t *testing.T) {
	inPair(t, func(c *trio) {
		met(c)
		c.change(func(a *topic.Assignment) {
			a.Replicas, a.ConfigVersion = a.Replicas[:1], a.ConfigVersion+1
			a.Leader, a.LeaderEpoch = "s1", a.LeaderEpoch+1
		})
		c.until("it leads", func() bool { _, err := c.commit("s1", batch(1, 202)); return err == nil })
		got, err := c.read("s1")
		if want := ordered(1, 202); err != nil || len(got) >= 202 || len(got) < 100 || !slices.Equal(got[len(got)-2:], want[200:]) {
			t.Fatalf("%d records, %v", len(got), err)
		}
		res, err := c.nodes["s1"].role.Replica().Vouch(context.Background(), &nodeapi.VouchRequest{Partitions: topicRefs(c)})
		if err != nil || res.Partitions[0].Epoch == 0 || res.Partitions[0].Proven {
			t.Errorf("it vouches for what it cannot read: %+v, %v", res, err)
		}
	})
}

// What was missing when a copy was alone is missing in the copies made of it, whenever
// that was found: it is no reason to give the leadership up, which nobody else could
// take while it has not got the rest.
func TestDamageThatNoReplicaHas(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.fill(1, 200)
		c.change(func(a *topic.Assignment) { a.Replicas, a.ConfigVersion = a.Replicas[:1], a.ConfigVersion+1 })
		c.until("it counts alone", func() bool { return len(c.replicas("s1")) == 1 })
		c.nodes["s1"].rot()
		s3 := c.nodes["s3"]
		s3.kill()
		s3.fs = vfs.NewMem()
		s3.format()
		s3.start()
		c.change(func(a *topic.Assignment) {
			a.Observers, a.ConfigVersion = []topic.Replica{{Node: "s3", DiskID: s3.disk}}, a.ConfigVersion+1
		})
		var made topic.Replica
		c.until("the observer has everything", func() bool {
			res, err := c.nodes["s1"].role.Replica().Vouch(context.Background(), &nodeapi.VouchRequest{Partitions: topicRefs(c)})
			if err != nil {
				return false
			}
			at, ok := res.Partitions[0].Copy("s3")
			made = at.Replica
			return ok && at.Near && at.LEO >= 200
		})
		c.change(func(a *topic.Assignment) {
			a.Replicas, a.Observers, a.ConfigVersion = append(a.Replicas, made), nil, a.ConfigVersion+1
		})
		for i := range 60 { // scrubs
			pass(5 * time.Second)
			c.mustCommit("s1", batch(2, uint64(i+1)))
		}
		if n := c.nodes["s1"].logs.says("is repaired from another one"); n != 0 {
			t.Fatalf("it gave the leadership up: %s", c.nodes["s1"].logs.all())
		}
	}, onDisk)
}

// Damage that is found after the answer to the fence, by one that is then elected: it
// does not lead, its followers say so, and another one does.
func TestDamageBetweenFenceAndElection(t *testing.T) {
	inFull(t, 200, func(c *trio) {
		met(c)
		c.change(func(a *topic.Assignment) { a.Leader, a.LeaderEpoch = "", a.LeaderEpoch+1 })
		if a := c.fence("s1", c.assignment().LeaderEpoch); a.Status != nodeapi.FenceDamaged {
			t.Fatalf("it answers %+v", a)
		}
		if err := c.nodes["s1"].role.Replica().Prime(context.Background(), &nodeapi.PrimeRequest{Items: []nodeapi.PrimeItem{{Target: c.target("s1")}}}); err != nil {
			t.Fatal(err)
		}
		pass(5 * time.Second)
		c.mu.Lock()
		c.suspects["s1"] = 0 // of before
		c.mu.Unlock()
		c.change(func(a *topic.Assignment) { a.Leader = "s1" })
		c.until("it is reported", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.suspects["s1"] > 0
		})
		if _, err := c.commit("s1", batch(1, 201)); err == nil || c.nodes["s1"].logs.says("goes on without what it cannot read") > 0 {
			t.Fatal("it led")
		}
		c.mustElect("s2")
		c.wantRead("s2", ordered(1, 200))
	}, onDisk)
}

// Both copies of a pair are damaged, each elsewhere. The one that follows seems to have
// nothing above its own damage; it has what the leader lacks, which is no gap.
func TestBothOfAPairAreDamaged(t *testing.T) {
	inPair(t, func(c *trio) {
		c.mu.Lock()
		c.spoil = func(_, _ string, _ *nodeapi.FetchRequest, res *nodeapi.FetchResult) { res.Partitions = nil } // it is not repaired
		c.mu.Unlock()
		c.nodes["s2"].rot()
		c.until("the follower asks from there", func() bool { return c.replicas("s1")["s2"].LogEnd < 100 })
		all := c.nodes["s1"].segments()
		c.nodes["s1"].rotIn(all[len(all)-2])
		c.until("one of them has nobody to turn to", func() bool {
			got, err := c.read("s1")
			if err == nil && len(got) != 201 {
				t.Fatalf("%d records", len(got))
			}
			return err != nil
		})
		if n := c.nodes["s1"].count("narad_consumer_corrupt_skipped_total"); n != 0 {
			t.Fatalf("%v records were skipped", n)
		}
	})
}
