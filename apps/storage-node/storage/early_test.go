package storage_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// lateView is a node's replica of the metastore, which a test can hold up.
type lateView struct {
	metastate.View

	mu     sync.Mutex // guards what follows
	held   bool
	parts  *metastate.Partitions // as they were when it was held up
	goesOn chan struct{}         // closed when it is not held up any more
}

// late is the node's replica, of each start a new one.
func (m *member) late() metastate.View {
	m.lag = &lateView{View: m.meta}
	return m.lag
}

func (v *lateView) hold(t *testing.T) {
	t.Helper()
	parts, err := v.View.Assignments(trioTopic)
	if err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held, v.parts, v.goesOn = true, parts, make(chan struct{})
}

func (v *lateView) goOn() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.held = false
	close(v.goesOn)
}

func (v *lateView) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held {
		return v.goesOn
	}
	return v.View.Changed()
}

func (v *lateView) Assignments(name string) (*metastate.Partitions, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held {
		return v.parts, nil
	}
	return v.View.Assignments(name)
}

func (v *lateView) AssignmentsOf(node string) ([]topic.Assignment, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.held {
		return v.parts.List, nil // each node has a copy of the one partition
	}
	return v.View.AssignmentsOf(node)
}

// ears hears what a node tells gateways.
type ears struct{ m *member }

func (e *ears) Wake(_ context.Context, req *gatewayapi.WakeRequest) error {
	e.m.mu.Lock()
	defer e.m.mu.Unlock()
	e.m.woken = append(e.m.woken, req.Ready...)
	return nil
}

// electLate elects to, whose replica of the metastore does not show it yet: its
// followers and its clients hear of it first.
func (c *trio) electLate(to string) {
	c.t.Helper()
	lag := c.nodes[to].lag
	c.inSync(c.assignment().Leader, "s1", "s2", "s3") // else another one is elected
	c.change(func(a *topic.Assignment) { a.Leader = ""; a.LeaderEpoch++ })
	pass(time.Second)
	lag.hold(c.t)
	if err := c.elect(to); err != nil {
		c.t.Fatal(err)
	}
	pass(30 * time.Millisecond)
}

// goOn lets the node hear of it. What follows takes no time, but that of a follower
// whose fetch ended at this moment, which pauses for 5 ms.
func (c *trio) goOn(id string) {
	c.nodes[id].lag.goOn()
	pass(6 * time.Millisecond)
	synctest.Wait()
}

// Followers that hear of an election before the leader wait there: when it hears of
// it, it serves without waiting for anything else.
func TestFollowersThatComeTooEarlyWait(t *testing.T) {
	inTrio(t, func(c *trio) {
		for _, to := range []string{"s2", "s3", "s1"} {
			c.electLate(to)
			c.goOn(to)
			if _, err := c.read(to); err != nil {
				t.Fatalf("%s does not serve: %v; %s", to, err, c.nodes[to].logs.all())
			}
		}
	})
}

// A commit that comes before the leader has heard that it leads is not sent away:
// who sent it would try again only after a pause.
func TestCommitThatComesTooEarlyWaits(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.electLate("s2")
		done := make(chan error, 1)
		go func() {
			_, err := c.commit("s2", batch(1, 1))
			done <- err
		}()
		pass(30 * time.Millisecond)
		c.goOn("s2")
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		default:
			t.Fatal("it still waits")
		}
	})
}

// One whose replica does not catch up refuses, and nothing was done.
func TestCommitThatComesTooEarlyIsRefusedInTheEnd(t *testing.T) {
	inTrio(t, func(c *trio) {
		c.electLate("s2")
		began := time.Now()
		if _, err := c.commit("s2", batch(1, 1)); err == nil || time.Since(began) > 500*time.Millisecond {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
		c.nodes["s2"].lag.goOn()
		c.until("it serves", func() bool { _, err := c.read("s2"); return err == nil })
		c.wantRead("s2", nil)
	})
}

// A consumer's claim that comes too early is answered at once, and its gateway woken
// as soon as the partition is served.
func TestClaimThatComesTooEarlyIsToldLater(t *testing.T) {
	inTrio(t, func(c *trio) {
		claim := func(id string) nodeapi.ClaimStatus {
			at := c.target(id)
			res, err := c.nodes[id].role.Node().Claim(context.Background(), &nodeapi.ClaimRequest{Gateway: "gateway-1", Claims: []nodeapi.Claim{{
				Topic: at.Topic, Incarnation: at.Incarnation, Arm: true,
				Partitions: []nodeapi.ClaimPartition{{Partition: 0, DiskID: at.DiskID, Epoch: at.Epoch}},
				Takers:     []nodeapi.Taker{{Max: 1, MaxBytes: 1 << 20}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			return res.Claims[0].Partitions[0]
		}
		wakes := func(id string) int {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.nodes[id].woken)
		}
		c.electLate("s2")
		if st := claim("s2"); st != nodeapi.ClaimUnavailable && st != nodeapi.ClaimNotLeader {
			t.Fatalf("status %d", st)
		}
		c.goOn("s2")
		if wakes("s2") != 1 {
			t.Fatalf("woken %d times", wakes("s2"))
		}

		// It leads and its followers do not reach it: it serves nothing yet.
		c.inSync("s2", "s1", "s3")
		for _, id := range []string{"s1", "s2"} {
			c.sever(id, "s3")
		}
		if err := c.elect("s3"); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if c.assignment().Leader != "s3" {
			t.Fatalf("%+v", c.assignment())
		}
		if st := claim("s3"); st != nodeapi.ClaimUnavailable {
			t.Fatalf("status %d", st)
		}
		if wakes("s3") != 0 {
			t.Fatal("woken for nothing")
		}
		for _, id := range []string{"s1", "s2"} {
			c.heal(id, "s3")
		}
		c.until("it serves", func() bool { _, err := c.read("s3"); return err == nil })
		synctest.Wait()
		if wakes("s3") != 1 {
			t.Fatalf("woken %d times", wakes("s3"))
		}
	})
}
