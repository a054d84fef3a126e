package storage_test

import (
	"errors"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/vfs"
)

// A replica that lacks what it once had counts for nothing: with the leader dead
// nobody is elected by its word. With a leader it gets everything again, is
// re-admitted by an entry, and counts from then on.
func TestWipedReplicaCountsForNothing(t *testing.T) {
	shorten := func(m *member) error {
		seg := m.segments()[0]
		f, err := m.fs.Open(seg)
		if err != nil {
			return err
		}
		size, err := f.Size()
		return errors.Join(err, f.Truncate(size*7/8), f.Close())
	}
	for name, w := range map[string]struct {
		who  string
		wipe func(m *member) error
		rule vfs.Rule // of the leader's disk
	}{
		"another disk": {"s2", func(m *member) error {
			m.fs = vfs.NewMem()
			m.format()
			m.disk = 99
			return nil
		}, nil},
		"the directory is missing":              {"s2", func(m *member) error { return m.fs.RemoveAll("/data/topics/" + trioTopic) }, nil},
		"the fence is lost":                     {"s2", func(m *member) error { return m.fs.Remove(path.Join(m.dir(), "fence")) }, nil},
		"the log ends below its high watermark": {"s2", shorten, nil},
		// It is killed: what tells is what it stored while it led, whoever of them
		// was the last of the majority.
		"the leader's log ends below its high watermark": {"s1", shorten, nil},
		"the log of a leader whose disk is slow does": {"s1", shorten, func(op vfs.Op) vfs.Fault {
			if op.Kind == vfs.OpSync {
				pass(5 * time.Millisecond)
			}
			return vfs.Fault{}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inTrio(t, func(c *trio) {
				c.fill(1, 40)
				c.inSync("s1", "s2", "s3")
				c.nodes["s3"].shutDown() // C lags from here on
				pass(6 * time.Second)
				c.fill(41, 45)
				pass(time.Second / 2) // what they had of the first 45 is stored
				c.fill(46, 60)
				c.inSync("s1", "s2")
				wiped, other := c.nodes[w.who], c.nodes["s1"]
				if w.who == "s1" {
					other = c.nodes["s2"]
					pass(2 * time.Second)
					wiped.kill()
				} else {
					wiped.shutDown()
				}
				if err := w.wipe(wiped); err != nil {
					t.Fatal(err)
				}
				other.kill()
				wiped.start()
				c.nodes["s3"].start()
				before := c.assignment()
				was, _ := before.ReplicaOn(w.who)
				if err := c.elect("s3"); err == nil {
					t.Fatalf("elected without a majority of those that know: %+v", c.assignment())
				}
				if a := c.fence(w.who, c.assignment().LeaderEpoch); a.Status == nodeapi.FencePromised && a.CopyID == was.CopyID {
					t.Fatalf("it promises as the copy that it was: %+v", a)
				}
				other.start()
				c.mustElect(other.id)
				c.wantRead(other.id, ordered(1, 60))
				c.until(w.who+" is admitted again", func() bool {
					a := c.assignment()
					now, _ := a.ReplicaOn(w.who)
					return now.CopyID != was.CopyID && now.DiskID == wiped.disk
				})
				c.inSync(other.id, "s1", "s2", "s3")
				other.kill()
				c.nodes["s3"].kill()
				c.nodes["s3"].start()
				c.mustElect(w.who)
				c.wantRead(w.who, ordered(1, 60))
			}, func(c *trio) { c.nodes["s1"].rule = w.rule })
		})
	}
}

// Retention has passed a replica that was away: it gets the leader's start in place
// of its log, and goes on from there.
func TestReplicaBelowTheLogStart(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.inSync("s1", "s2", "s3")
		c.nodes["s3"].shutDown()
		next := uint64(11)
		for range 40 {
			c.mustCommit("s1", batch(1, seqs(next, 50)...))
			next += 50
		}
		c.until("retention has removed what s3 had", func() bool {
			res, err := c.nodes["s1"].role.Node().Read(t.Context(), &nodeapi.ReadRequest{Target: c.target("s1"), Offset: -1, Limit: 1, MaxBytes: 1 << 20})
			return err == nil && res.LogStart > 20
		})
		if n := len(c.nodes["s2"].segments()); n > 8 {
			t.Fatalf("the follower kept %d segments: retention is for all copies", n)
		}
		c.nodes["s3"].start()
		c.inSync("s1", "s3")
		if c.nodes["s3"].logs.says("its log is replaced") != 1 {
			t.Fatal(c.nodes["s3"].logs.all())
		}
		want, err := c.read("s1")
		if err != nil {
			t.Fatal(err)
		}
		c.nodes["s2"].shutDown()
		c.mustElect("s3")
		got, err := c.read("s3")
		if err != nil || len(got) > len(want) || len(got) < len(want)/2 || got[len(got)-1] != want[len(want)-1] {
			t.Fatalf("%d records of %d, %v", len(got), len(want), err)
		}
		if res := c.mustCommit("s3", batch(1, seqs(1, 10)...)); res.Duplicates != 10 {
			t.Fatalf("numbers below the start are forgotten: %+v", res)
		}
	}, func(c *trio) {
		c.segment = 4 << 10
		c.cfg.RetentionMS, c.cfg.RetentionBytes = 0, 16<<10
	})
}

// failSyncs makes syncs of segments fail, or wait, while on.
type failSyncs struct {
	on   atomic.Bool
	wait chan struct{} // not nil: they wait for it instead
}

var errBroken = errors.New("the disk is broken")

func (f *failSyncs) rule(op vfs.Op) vfs.Fault {
	if op.Kind != vfs.OpSync || !strings.HasPrefix(path.Base(op.Path), "0000") || !f.on.Load() {
		return vfs.Fault{}
	}
	if f.wait != nil {
		<-f.wait
		return vfs.Fault{}
	}
	return vfs.Fault{Err: errBroken}
}

// A sync that fails at the leader: the outcome is unknown, the process ends, and
// the others have the record or not, but never two contents.
func TestFailedSyncOfTheLeader(t *testing.T) {
	f := &failSyncs{}
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		f.on.Store(true)
		_, err := c.commit("s1", batch(1, 2))
		wantProblem(t, err, problem.OutcomeUnknown)
		_, err = c.commit("s1", batch(1, 3))
		wantProblem(t, err, problem.PartitionUnavailable, problem.NotReady)
		if err := <-c.nodes["s1"].err; !errors.Is(err, errBroken) {
			t.Fatalf("the process ended with %v", err)
		}
		c.nodes["s1"].err <- nil
		c.nodes["s1"].kill()
		f.on.Store(false)
		c.nodes["s1"].start()
		if err := c.elect("s2"); err != nil {
			t.Fatal(err)
		}
		next := c.assignment().Leader // s2, or s3 when it alone has fetched the record
		c.until("it serves", func() bool { _, err := c.read(next); return err == nil })
		c.mustCommit(next, batch(1, 2)) // its gateway repeats it
		c.mustCommit(next, batch(1, 3))
		c.inSync(next, "s1", "s2", "s3")
		c.wantRead(next, ordered(1, 3))
		c.mustElect("s1")
		c.wantRead("s1", ordered(1, 3))
	}, func(c *trio) { c.nodes["s1"].rule = f.rule })
}

// A sync that fails at a follower: the leader goes on with the other one, and the
// follower does not count with what it wrote.
func TestFailedSyncOfAFollower(t *testing.T) {
	f := &failSyncs{}
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		f.on.Store(true)
		c.mustCommit("s1", batch(1, 2))
		if err := <-c.nodes["s2"].err; !errors.Is(err, errBroken) {
			t.Fatalf("the process ended with %v", err)
		}
		c.nodes["s2"].err <- nil
		if r := c.replicas("s1")["s2"]; r.Lag == 0 {
			t.Fatalf("it counts with what it did not sync: %+v", r)
		}
		c.nodes["s2"].powerCut()
		f.on.Store(false)
		c.mustCommit("s1", batch(1, 3))
		c.nodes["s2"].start()
		c.inSync("s1", "s2", "s3")
		c.mustElect("s2")
		c.wantRead("s2", ordered(1, 3))
	}, func(c *trio) { c.nodes["s2"].rule = f.rule })
}

// A disk that does not answer: the leader gives its partition up after five seconds,
// and another one goes on. When it answers at last nothing of the old leadership counts.
func TestStalledDiskOfTheLeader(t *testing.T) {
	f := &failSyncs{}
	inTrio(t, func(c *trio) {
		f.wait = make(chan struct{})
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s2", "s3")
		f.on.Store(true)
		first := make(chan error, 1)
		go func() { _, err := c.commit("s1", batch(1, 2)); first <- err }() // it runs the sync
		pass(time.Second)
		standing := func() bool {
			st, err := c.nodes["s1"].role.Replica().Standing(t.Context(), &nodeapi.StandingRequest{Partitions: topicRefs(c)})
			return err == nil && st.Partitions[0].Leads
		}
		if !standing() {
			t.Fatal("it gave up at once")
		}
		began := time.Now()
		c.until("it gives up", func() bool { return !standing() })
		if took := time.Since(began); took > 7*time.Second {
			t.Fatalf("after %v", took)
		}
		_, err := c.commit("s1", batch(1, 3))
		wantProblem(t, err, problem.PartitionUnavailable, problem.NotReady)
		c.until("its followers report it", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.suspects["s1"] > 0
		})
		c.sever("voter", "s1") // its promise would wait for the disk
		c.mustElect("s2")
		c.mustCommit("s2", batch(1, 2))
		f.on.Store(false)
		close(f.wait)
		wantProblem(t, <-first, problem.OutcomeUnknown)
		c.heal("voter", "s1")
		c.inSync("s2", "s1", "s3")
		c.wantRead("s2", ordered(1, 2))
	}, func(c *trio) { c.nodes["s1"].rule = f.rule })
}

// A disk that does not answer under a lone copy: nobody else can go on, and whoever
// asks hears a definite no until it answers.
func TestStalledDiskOfALoneCopy(t *testing.T) {
	testkit.Bubble(t, func(t *testing.T) {
		f := &failSyncs{wait: make(chan struct{})}
		c := newCluster(t, vfs.NewFault(vfs.NewMem(), f.rule), "/data")
		c.put("orders", 1, onePartition())
		p := c.start()
		defer p.shutDown()
		p.mustCommit("orders", 0, batch(1, 1))
		f.on.Store(true)
		first := make(chan error, 1)
		go func() { _, err := p.commit("orders", 0, batch(1, 2)); first <- err }()
		pass(6 * time.Second)
		_, err := p.commit("orders", 0, batch(1, 3))
		wantProblem(t, err, problem.PartitionUnavailable)
		f.on.Store(false)
		close(f.wait)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		p.mustCommit("orders", 0, batch(1, 3))
	})
}

// rot changes a byte in the middle of a node's oldest segment, as an old disk does.
func (m *member) rot() { m.rotIn(m.segments()[0]) }

func (m *member) rotIn(segment string) {
	m.t.Helper()
	f, err := m.fs.Open(segment)
	if err != nil {
		m.t.Fatal(err)
	}
	size, err := f.Size()
	b := make([]byte, 1)
	if err == nil {
		_, err = f.ReadAt(b, size/2)
	}
	b[0] ^= 0xff
	if err == nil {
		_, err = f.WriteAt(b, size/2)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		m.t.Fatal(err)
	}
}

// onDisk has everything read from there.
func onDisk(c *trio) { c.segment, c.cache = 4<<10, 1 }

// Damage of a follower is found by the scrub, and fetched again from the leader.
func TestDamagedFollowerRepairsItself(t *testing.T) {
	inFull(t, 200, func(c *trio) {
		c.nodes["s2"].rot()
		c.until("it is repaired", func() bool { return c.nodes["s2"].count("narad_repaired_offsets_total") > 0 })
		c.inSync("s1", "s2")
		c.mustElect("s2")
		c.wantRead("s2", ordered(1, 200))
	}, onDisk)
}

// Damage of the leader, met by a reader: it is not skipped and not passed on to a
// follower as a gap; another one leads, and the damaged copy gets it from there.
func TestDamagedLeaderIsReplaced(t *testing.T) {
	inFull(t, 200, func(c *trio) {
		c.nodes["s1"].rot()
		if got, err := c.read("s1"); err == nil {
			t.Fatalf("it skipped: %d records", len(got))
		}
		c.until("it is reported", func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.suspects["s1"] > 0
		})
		was := c.assignment().LeaderEpoch
		if a := c.fence("s1", was+1); a.Status != nodeapi.FenceDamaged || a.PromisedEpoch != was+1 || a.LEO < 200 || a.Settled != was || a.HWM < 200 {
			t.Fatalf("it answers %+v", a)
		}
		c.mustElect("s2")
		c.until("it is repaired", func() bool { return c.nodes["s1"].count("narad_repaired_offsets_total") > 0 })
		c.inSync("s2", "s1", "s3")
		c.mustElect("s1")
		c.wantRead("s1", ordered(1, 200))
		if n := c.nodes["s1"].count("narad_consumer_corrupt_skipped_total"); n != 0 {
			t.Fatalf("%v records were skipped", n)
		}
	}, onDisk)
}

// A follower that lies behind the damage of its leader must not take the damage for
// a gap that is meant.
func TestDamageIsNotCopiedAsAGap(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, 1))
		c.inSync("s1", "s3")
		c.nodes["s3"].shutDown()
		c.fill(2, 200)
		c.inSync("s1", "s2")
		c.nodes["s1"].rot()
		c.nodes["s3"].start()
		c.until("the leader has met it", func() bool { return c.nodes["s1"].logs.says("is repaired from another one") > 0 })
		c.mustElect("s2")
		c.inSync("s2", "s1", "s3")
		c.mustElect("s3")
		c.wantRead("s3", ordered(1, 200))
	}, onDisk)
}

// Damage above the high watermark that a copy has stored, of what it had said that it
// had: it is another copy from then on, and counts when it is admitted.
func TestDamageOfWhatACopyVouchedFor(t *testing.T) {
	inTrio(t, func(c *trio) {
		pass(3 * time.Second)
		c.fill(1, 60)
		c.inSync("s1", "s2", "s3")
		c.nodes["s2"].kill()
		c.nodes["s2"].rot()
		a := c.assignment()
		was, _ := a.ReplicaOn("s2")
		c.nodes["s2"].start()
		c.until("it is admitted as another copy", func() bool {
			a := c.assignment()
			now, _ := a.ReplicaOn("s2")
			return now.CopyID != was.CopyID
		})
		c.inSync("s1", "s2")
		c.nodes["s3"].kill()
		c.mustElect("s2")
		c.wantRead("s2", ordered(1, 60))
	})
}

// A restart finds the damage in what it scans: the copy is not counted with it.
func TestDamageFoundAtOpen(t *testing.T) {
	inFull(t, 60, func(c *trio) {
		c.nodes["s2"].shutDown()
		c.nodes["s2"].rot()
		c.nodes["s2"].start()
		c.until("it is whole again", func() bool {
			return c.nodes["s2"].count("narad_repaired_offsets_total") > 0 || c.nodes["s2"].count("narad_lost_copies_total") > 0
		})
		c.inSync("s1", "s2")
		c.until("it may lead again", func() bool { return c.elect("s2") == nil && c.assignment().Leader == "s2" })
		c.until("s2 serves", func() bool { _, err := c.read("s2"); return err == nil })
		c.wantRead("s2", ordered(1, 60))
	})
}
