package storage_test

import (
	"context"
	"errors"
	"path"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// alone runs a test with one storage node that has the only copy of the partition, and
// has just been given it.
func alone(t *testing.T, test func(c *trio, m *member)) {
	t.Helper()
	testkit.Bubble(t, func(t *testing.T) {
		c := newTrio(t)
		c.cfg.ReplicationFactor = 1
		c.change(func(a *topic.Assignment) { a.Replicas, a.Leader = a.Replicas[:1], "s1" })
		m := c.nodes["s1"]
		m.again()
		defer c.shutDown()
		test(c, m)
	})
}

// again starts the node anew, as the one that leads by itself.
func (m *member) again() {
	m.t.Helper()
	m.start()
	m.change(func(a *topic.Assignment) { a.Leader = "s1" })
}

func (c *trio) recorded() topic.ID64 { return c.assignment().Replicas[0].CopyID }

// awaitRecord waits until the copy is recorded.
func (c *trio) awaitRecord() {
	c.t.Helper()
	c.until("the copy is recorded", func() bool { return c.recorded() != 0 })
}

// problemOf is why a partition has no figures.
func (m *member) problemOf() *problem.Problem {
	m.t.Helper()
	res, err := m.role.Node().Details(m.t.Context(), &nodeapi.DetailsRequest{Topic: trioTopic, Incarnation: 7, Partitions: []int32{0}})
	if err != nil || len(res.Partitions) != 1 {
		m.t.Fatalf("%+v, %v", res, err)
	}
	return res.Partitions[0].Problem
}

func (m *member) gauge(name string) float64 {
	m.t.Helper()
	all, err := m.reg.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	m.t.Fatalf("no metric %s", name)
	return 0
}

// A lone copy that vanishes from the disk that it is recorded on is lost and said to
// be: nothing is served in its place, and nothing made. Put back, it is served again.
func TestVanishedLoneCopyIsLost(t *testing.T) {
	const away = "/data/away"
	for name, vanish := range map[string]func(m *member) error{
		"its directory": func(m *member) error { return m.fs.Rename(m.dir(), away) },
		"the topic's directory": func(m *member) error {
			return errors.Join(m.fs.Rename(m.dir(), away), m.fs.RemoveAll(path.Dir(m.dir())))
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(c *trio, m *member) {
				c.mustCommit("s1", batch(1, seqs(1, 10)...))
				c.awaitRecord()
				m.shutDown()
				if err := vanish(m); err != nil {
					t.Fatal(err)
				}
				m.again()
				c.mustBeLost(m)
				if _, err := m.fs.Stat(m.dir()); err == nil {
					t.Error("a directory was made where the copy has to be put back")
				}
				if err := m.fs.Rename(away, m.dir()); err != nil {
					t.Fatal(err)
				}
				pass(2 * time.Second)
				if c.standsLost(m) {
					t.Error("it is back, and the controller is told that it is lost")
				}
				c.until("it serves again", func() bool { _, err := c.read("s1"); return err == nil })
				c.wantRead("s1", ordered(1, 10))
				if n := m.gauge("narad_lost_partitions"); n != 0 || m.role.Degraded() != nil {
					t.Errorf("%v lost, degraded %v", n, m.role.Degraded())
				}
			})
		})
	}
}

// One that nobody uses is missed at the start, with all that tells of it, long before
// retention comes to it.
func TestAVanishedLoneCopyThatNobodyUsesIsMissedAtTheStart(t *testing.T) {
	alone(t, func(c *trio, m *member) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.awaitRecord()
		m.shutDown()
		if err := m.fs.Rename(m.dir(), "/data/away"); err != nil {
			t.Fatal(err)
		}
		m.start()
		pass(2 * time.Second)
		if m.gauge("narad_lost_partitions") != 0 || !m.role.LookedForLost() {
			t.Error("it is lost before anybody leads it, or was not looked for")
		}
		m.change(func(a *topic.Assignment) { a.Leader = "s1" })
		pass(2 * time.Second)
		if lost := m.role.LostCopies(); len(lost) != 1 || m.gauge("narad_lost_partitions") != 1 || m.role.Degraded() == nil {
			t.Errorf("%v are missed, %v on the gauge, degraded: %v", lost, m.gauge("narad_lost_partitions"), m.role.Degraded())
		}
	})
}

// mustBeLost waits until a node says, unasked, that the partition is lost, and looks at
// all that says so.
func (c *trio) mustBeLost(m *member) {
	c.t.Helper()
	c.until("it is said to be lost", func() bool { return m.gauge("narad_lost_partitions") == 1 })
	_, err := c.commit("s1", batch(1, 11))
	wantProblem(c.t, err, problem.PartitionUnavailable)
	if p := m.problemOf(); p == nil || p.Members["lost"] != true {
		c.t.Errorf("details: %v", p)
	}
	if m.role.Degraded() == nil {
		c.t.Error("the node calls itself well")
	}
	if !c.standsLost(m) {
		c.t.Error("the controller is not told that it is lost")
	}
}

// A log that is not the recorded one is served as little as none.
func TestAnotherLoneCopyIsLost(t *testing.T) {
	alone(t, func(c *trio, m *member) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.awaitRecord()
		m.shutDown()
		c.change(func(a *topic.Assignment) { a.Replicas[0].CopyID++ })
		m.again()
		c.mustBeLost(m)
	})
}

// standsLost asks as the controller does before it resets.
func (c *trio) standsLost(m *member) bool {
	c.t.Helper()
	res, err := m.role.Replica().Standing(context.Background(), &nodeapi.StandingRequest{Partitions: topicRefs(c)})
	if err != nil {
		c.t.Fatal(err)
	}
	return res.Partitions[0].Lost
}

// A copy of which nothing is recorded begins empty at once, also when the process that
// made it died before that, with or without its directory.
func TestUnrecordedLoneCopyBeginsEmpty(t *testing.T) {
	for name, after := range map[string]func(m *member) error{
		"the directory stayed": func(*member) error { return nil },
		"the directory went":   func(m *member) error { return m.fs.RemoveAll(path.Dir(m.dir())) },
		"only its state went": func(m *member) error {
			return errors.Join(m.fs.RemoveAll(path.Join(m.dir(), "state.0")), m.fs.RemoveAll(path.Join(m.dir(), "state.1")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(c *trio, m *member) {
				c.refuse(true)
				c.mustCommit("s1", batch(1, seqs(1, 10)...))
				pass(20 * time.Second)
				if n := c.reportsNow(); n > 5 {
					t.Errorf("%d reports within 20 s", n)
				}
				m.kill()
				if err := after(m); err != nil {
					t.Fatal(err)
				}
				c.refuse(false)
				m.again()
				c.mustCommit("s1", batch(2, 1))
				c.awaitRecord()
				id := c.recorded()
				m.powerCut()
				m.again()
				c.mustCommit("s1", batch(2, 2))
				if c.recorded() != id || m.gauge("narad_lost_partitions") != 0 {
					t.Errorf("copy %s, then %s", id, c.recorded())
				}
			})
		})
	}
}

// What is recorded is on the disk before: a power cut at that moment leaves the very
// copy that the metastore knows. Recording it changes nothing for who leads it: no
// record is written for it, and nobody has to settle anything.
func TestRecordedLoneCopyOutlivesAPowerCut(t *testing.T) {
	alone(t, func(c *trio, m *member) {
		c.mustCommit("s1", batch(1, seqs(1, 10)...))
		c.awaitRecord()
		if got := c.mustCommit("s1", batch(1, 11)).BaseOffset; got != 10 {
			t.Errorf("the eleventh record is at %d", got)
		}
		m.powerCut()
		m.again()
		c.wantRead("s1", ordered(1, 11))
		before := c.reportsNow()
		pass(time.Minute)
		if n := c.reportsNow(); n != before {
			t.Errorf("%d reports of a copy that is recorded", n-before)
		}
		if n := m.logs.says("cannot be served"); n != 0 {
			t.Error(m.logs.all())
		}
	})
}

func (c *trio) reportsNow() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reports
}

// refuse makes the metastore record nothing, or take reports again.
func (c *trio) refuse(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuses = on
}
