package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// leaving is a drainer that runs in a bubble, and what it did.
type leaving struct {
	*drainer
	meta   *testkit.Meta
	leader []topic.Member // what the metastore leader says
	fails  error          // ... or why it does not
	asked  int
	beats  int
	log    testkit.Journal
}

const ownDisk topic.ID64 = 7

func recordOf(disk topic.ID64, draining bool) topic.Member {
	return topic.Member{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: disk, Draining: draining}
}

// inBubble runs a node that leads one of its two partitions, and is a member.
func inBubble(t *testing.T, f func(t *testing.T, n *leaving)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &leaving{meta: testkit.NewMeta(), leader: []topic.Member{recordOf(ownDisk, true)}}
		n.drainer = &drainer{
			id: "s1", disk: ownDisk, view: n.meta, beat: func() { n.beats++ }, heard: bus.NewHeard("s1"),
			asks: func(context.Context) ([]topic.Member, error) { n.asked++; return n.leader, n.fails },
			log:  slog.New(slog.NewTextHandler(&n.log, nil)),
		}
		n.meta.PutMember(recordOf(ownDisk, false))
		n.hold("s1", "s2")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		synctest.Wait()
		f(t, n)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// hold places one partition led by each node, with copies on all of them.
func (n *leaving) hold(nodes ...string) {
	var list []topic.Assignment
	for i, leader := range nodes {
		a := topic.Assignment{Ref: topic.Ref{Topic: "orders", Incarnation: 9, Partition: int32(i)}, Leader: leader}
		for _, id := range nodes {
			a.Replicas = append(a.Replicas, topic.Replica{Node: id})
		}
		list = append(list, a)
	}
	n.meta.PutTopic(topic.Topic{Name: "orders", Incarnation: 9}, list)
}

// is waits until everything has been noticed, and compares.
func (n *leaving) is(t *testing.T, what string, draining bool, asked, beats int) {
	t.Helper()
	synctest.Wait()
	if got := n.draining.Load(); got != draining || n.asked != asked || n.beats != beats {
		t.Errorf("%s: draining %t, the leader was asked %d times, %d heartbeats were sent at once", what, got, n.asked, n.beats)
	}
}

// said counts the lines of the log with a text, and forgets them all.
func (n *leaving) said(text string) int {
	return strings.Count(n.log.Take(), text)
}

// TestADecommissionIsNoticedWithoutABus, said once with what is held, again when nothing
// is left, and when it is cancelled; and once more from the start.
func TestADecommissionIsNoticedWithoutABus(t *testing.T) {
	inBubble(t, func(t *testing.T, n *leaving) {
		for round := 1; round < 3; round++ {
			n.meta.PutMember(recordOf(ownDisk, true))
			n.is(t, "marked", true, 0, round)
			n.meta.PutMember(recordOf(ownDisk, true)) // something else changed
			n.is(t, "marked still", true, 0, round)
			if n.said(`this node drains; its copies move to other nodes, and it serves them until they have" partitions=2 leaderships=1`) != 1 {
				t.Error("it is not said once, with what is held")
			}
			n.hold("s2", "s3")
			n.is(t, "empty", true, 0, round)
			n.hold("s2", "s3")
			synctest.Wait()
			if n.said("nothing is left on this node") != 1 {
				t.Error("it is not said once that nothing is left")
			}
			n.hold("s1", "s2")
			n.meta.PutMember(recordOf(ownDisk, false))
			n.is(t, "cancelled", false, 0, round)
			if n.said(`cancelled: this node keeps what it has" partitions=2 leaderships=1`) != 1 {
				t.Error("a cancel is not said once")
			}
		}
	})
}

// TestABroadcastMakesItNoticeSooner: the leader's word counts at once, for a while; then
// the own replica's.
func TestABroadcastMakesItNoticeSooner(t *testing.T) {
	inBubble(t, func(t *testing.T, n *leaving) {
		n.heard.MemberDraining("s1", true)
		n.is(t, "the leader says so", true, 1, 1)
		n.heard.MemberDraining("s1", true)
		n.meta.PutMember(recordOf(ownDisk, true))
		n.is(t, "the replica shows it", true, 1, 1)
		n.meta.PutMember(recordOf(ownDisk, false))
		n.is(t, "cancelled", false, 1, 1)
		n.hold("s1", "s2") // something else changed
		n.is(t, "cancelled, although the leader's word was heard a moment ago", false, 1, 1)
		if n.said("this node drains") != 1 {
			t.Error("it is not said once")
		}

		time.Sleep(bus.AskEvery)
		n.heard.MemberDraining("s1", true)
		n.is(t, "the leader says so again", true, 2, 2)
		n.hold("s2", "s3")
		n.is(t, "a replica that is behind shows nothing of it", true, 2, 2)
		if n.said("nothing is left") > 0 {
			t.Error("nothing is left, by a replica that is behind")
		}
		time.Sleep(2 * bus.ToldFor)
		n.is(t, "the replica never shows it", false, 2, 2)
		if n.said("does not show what the leader said") != 1 {
			t.Error("it is not said")
		}
	})
}

// TestABroadcastIsNotBelieved: whoever reaches the bus can say everything.
func TestABroadcastIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*leaving)
		member   string
		draining bool
		asked    int
	}{
		"another member":              {func(*leaving) {}, "s2", true, 0},
		"that it does not drain":      {func(*leaving) {}, "s1", false, 0},
		"the leader denies it":        {func(n *leaving) { n.leader = []topic.Member{recordOf(ownDisk, false)} }, "s1", true, 1},
		"it is said of another disk":  {func(n *leaving) { n.leader = []topic.Member{recordOf(8, true)} }, "s1", true, 1},
		"the leader knows nobody":     {func(n *leaving) { n.leader = nil }, "s1", true, 1},
		"no leader answers":           {func(n *leaving) { n.leader, n.fails = nil, errors.New("nobody") }, "s1", true, 1},
		"before the replica is of it": {func(n *leaving) { n.meta.SetState(false, false) }, "s1", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *leaving) {
				c.change(n)
				n.heard.MemberDraining(c.member, c.draining)
				n.is(t, "told", false, c.asked, 0)
				time.Sleep(2 * bus.ToldFor)
				n.is(t, "later", false, c.asked, 0)
				if said := n.log.Take(); said != "" {
					t.Errorf("it says %s", said)
				}
			})
		})
	}
}

// TestAFloodOfBroadcastsCostsTheLeaderLittle: one question in bus.AskEvery.
func TestAFloodOfBroadcastsCostsTheLeaderLittle(t *testing.T) {
	inBubble(t, func(t *testing.T, n *leaving) {
		n.leader = []topic.Member{recordOf(ownDisk, false)}
		for range 200 {
			n.heard.MemberDraining("s1", true)
			synctest.Wait()
			time.Sleep(bus.AskEvery / 100)
		}
		n.is(t, "flooded", false, 2, 0)
	})
}

// TestAMarkThatIsNotItsOwnIsNone: one of another disk under its name, and one that a
// replica shows which has not caught up, or whose node was removed, decide nothing.
func TestAMarkThatIsNotItsOwnIsNone(t *testing.T) {
	inBubble(t, func(t *testing.T, n *leaving) {
		n.meta.PutMember(recordOf(8, true))
		n.is(t, "another disk drains", false, 0, 0)
		n.meta.SetState(false, false)
		n.meta.PutMember(recordOf(ownDisk, true))
		n.is(t, "before the latch", false, 0, 0)
		n.meta.SetState(true, true)
		n.meta.PutMember(recordOf(ownDisk, true))
		n.is(t, "after it", true, 0, 1)
		n.log.Take()
		n.meta.SetState(true, false)
		n.meta.PutMember(recordOf(ownDisk, false))
		n.is(t, "removed", true, 0, 1)
		if said := n.log.Take(); said != "" {
			t.Errorf("one that was removed says %s", said)
		}
	})
}
