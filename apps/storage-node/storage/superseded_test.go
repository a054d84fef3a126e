package storage_test

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// aside lists the copies of the partition that a node has set aside.
func (m *member) aside() (out []string) {
	m.t.Helper()
	in, err := m.fs.ReadDir(path.Dir(m.dir()))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range in {
		if strings.HasPrefix(e.Name(), "p00000.quarantine-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// only makes one copy the whole partition, under a newer epoch: what an operator's
// reset does, and what a metastore that went back to an older state shows.
func (c *trio) only(id string) {
	c.change(func(a *topic.Assignment) {
		i := slices.IndexFunc(a.Replicas, func(r topic.Replica) bool { return r.Node == id })
		a.Replicas = []topic.Replica{a.Replicas[i]}
		a.Leader, a.LeaderEpoch, a.Before, a.Since = id, a.LeaderEpoch+1000, nil, 0
		a.ConfigVersion++
	})
}

// mustKeep waits until a node has judged its old copy, and fails unless it is still
// there with all its bytes.
func (m *member) mustKeep(bytes int) {
	m.t.Helper()
	m.until("the old copy of "+m.id+" is judged", func() bool {
		return m.count("narad_superseded_copies_quarantined_total")+m.count("narad_superseded_copies_reclaimed_total") > 0
	})
	kept := m.aside()
	if len(kept) != 1 || m.count("narad_superseded_copies_reclaimed_total") != 0 {
		m.t.Fatalf("%s had records that the leader lacks, and its copy is gone: %q, %s", m.id, kept, m.logs.all())
	}
	res, err := m.role.Node().Inventory(m.t.Context(), &nodeapi.InventoryRequest{Copies: true})
	if err != nil || len(res.Entries) != 1 || len(res.Entries[0].Copies) != 1 {
		m.t.Fatalf("%+v, %v", res, err)
	}
	c := res.Entries[0].Copies[0]
	if c.Kind != nodeapi.InventoryQuarantine || path.Base(c.Name) != kept[0] || c.Bytes < int64(bytes) || c.SinceMS == 0 || c.Reason == "" {
		m.t.Errorf("the inventory tells %+v", c)
	}
	pass(time.Minute) // until the next sweep
	m.until("it is counted", func() bool { return m.gauge("narad_quarantined_copies") == 1 })
	if got := m.segmentBytes(path.Join(path.Dir(m.dir()), kept[0])); got != bytes {
		m.t.Fatalf("%s keeps %d bytes of %d", m.id, got, bytes)
	}
}

func (m *member) segmentBytes(dir string) (total int) {
	m.t.Helper()
	in, err := m.fs.ReadDir(dir)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range in {
		if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".log") {
			total += int(info.Size())
		}
	}
	return total
}

// The metastore came back from a backup that knows only the copy that has been left
// behind, and so does one whose partition an operator resets to that survivor. That
// copy leads, and soon has more records than the others; theirs have others, which
// exist nowhere else.
func TestOldCopyWithOtherRecordsIsSetAside(t *testing.T) {
	for name, lose := range map[string]func(c *trio){
		"a metastore of before, after a power cut": func(c *trio) {
			c.nodes["s1"].powerCut()
			c.nodes["s3"].kill()
		},
		"a reset to the survivor, after a stop": func(c *trio) {
			c.nodes["s1"].shutDown()
			c.nodes["s3"].shutDown()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTrio(t, func(c *trio) {
				c.mustCommit("s1", batch(1, seqs(1, 10)...))
				c.inSync("s1", "s2", "s3")
				c.nodes["s2"].shutDown()
				c.mustCommit("s1", batch(1, seqs(11, 30)...))
				c.inSync("s1", "s3")
				lose(c)
				c.nodes["s2"].start()
				c.only("s2")
				c.until("s2 leads", func() bool { _, err := c.read("s2"); return err == nil })
				c.mustCommit("s2", batch(2, seqs(1, 60)...))
				for _, id := range []string{"s1", "s3"} {
					m := c.nodes[id]
					bytes := m.segmentBytes(m.dir())
					m.start()
					m.mustKeep(bytes)
				}
			})
		})
	}
}

// What has moved away goes once a leader holds all of it, whatever the copy had
// stored of the high watermark.
func TestSupersededCopyGoes(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.inSync("s1", "s2", "s3")
		c.nodes["s3"].powerCut()
		c.change(func(a *topic.Assignment) {
			a.Before, a.Since = slices.Clone(a.Replicas), a.LeaderEpoch
			a.Replicas = slices.Clone(a.Replicas[:2])
			a.ConfigVersion++
		})
		c.mustCommit("s1", batch(1, seqs(11, 30)...))
		m := c.nodes["s3"]
		m.start()
		m.until("the old copy is gone", func() bool { return m.count("narad_superseded_copies_reclaimed_total") == 1 })
		// What a process that is killed in the middle of that leaves goes, too.
		if err := m.fs.MkdirAll(m.dir() + ".superseded-0000000000000007"); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		m.until("the rest of one is gone", func() bool {
			_, err := m.fs.Stat(m.dir() + ".superseded-0000000000000007")
			return errors.Is(err, fs.ErrNotExist)
		})
		if left := m.aside(); len(left) != 0 {
			t.Fatalf("set aside: %q", left)
		}
		c.wantRead("s1", ordered(1, 40))
	})
}

func (a *asker) Vouch(ctx context.Context, req *nodeapi.VouchRequest) (*nodeapi.VouchResult, error) {
	res, err := a.Candidate.Vouch(ctx, req)
	a.c.mu.Lock()
	after := a.c.vouched
	a.c.vouched = nil
	a.c.mu.Unlock()
	if after != nil {
		after()
	}
	return res, err
}

// A copy that the node holds again when it is to be removed, or whose log is still open,
// stays where it is: the word of the metastore leader and of the partition's is of before.
func TestCopyThatIsHeldAgainStays(t *testing.T) {
	observe := func(c *trio) {
		c.change(func(a *topic.Assignment) {
			a.Observers = []topic.Replica{{Node: "s3", DiskID: c.nodes["s3"].disk}}
			a.ConfigVersion++
		})
		for range 100 { // 2 s
			if c.nodes["s3"].gauge("narad_partitions_open") > 0 {
				return
			}
			pass(20 * time.Millisecond)
		}
		c.t.Error("the observer is not open")
	}
	for name, again := range map[string]func(c *trio){
		"it observes, and is open": observe,
		"it is the only copy, not opened yet": func(c *trio) {
			c.change(func(a *topic.Assignment) {
				a.Replicas, a.Leader = a.Before[2:], "s3"
				a.LeaderEpoch, a.ConfigVersion = a.LeaderEpoch+1000, a.ConfigVersion+1
				a.Before, a.Since = nil, 0
			})
		},
		"it observes no more, and is open yet": func(c *trio) {
			observe(c)
			c.change(func(a *topic.Assignment) {
				a.Observers = nil
				a.ConfigVersion++
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTrio(t, func(c *trio) {
				c.mustCommit("s1", batch(1, seqs(1, 10)...))
				c.inSync("s1", "s2", "s3")
				m := c.nodes["s3"]
				m.shutDown()
				bytes := m.segmentBytes(m.dir())
				c.change(func(a *topic.Assignment) {
					a.Before, a.Since = slices.Clone(a.Replicas), a.LeaderEpoch
					a.Replicas = slices.Clone(a.Replicas[:2])
					a.ConfigVersion++
				})
				c.mustCommit("s1", batch(1, seqs(11, 30)...))
				judged := make(chan struct{})
				c.mu.Lock()
				c.vouched = func() {
					again(c)
					close(judged)
				}
				c.mu.Unlock()
				m.start()
				<-judged
				pass(10 * time.Millisecond) // no look at the assignments before it is judged, nor another sweep
				if n := m.count("narad_superseded_copies_reclaimed_total") + m.count("narad_superseded_copies_quarantined_total"); n != 0 {
					t.Errorf("%v copies were taken away; %s", n, m.logs.all())
				}
				if got := m.segmentBytes(m.dir()); got < bytes {
					t.Errorf("%d bytes of %d are there", got, bytes)
				}
			})
		})
	}
}
