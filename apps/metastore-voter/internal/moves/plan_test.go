package moves

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestRebalanceIsDue: with a term, when a node comes, returns or was removed, and when one
// that was full has room again, each time once no other has for a while; a node that dies or
// drains, or whose disk fills up, is no reason, nor is a gateway.
func TestRebalanceIsDue(t *testing.T) {
	now := time.Hour
	b := newRebalancing(now)
	members := []topic.Member{
		{ID: "g", Role: topic.RoleGateway, Status: topic.StatusAlive},
		{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1},
		{ID: "s2", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1, DiskUsedPercent: placement.FullPercent},
	}
	for _, s := range []struct {
		what string
		do   func()
		want bool
	}{
		{"a term begins", func() {}, true},
		{"one that is there fills up", func() { members[1].DiskUsedPercent = 100 }, false},
		{"it has room again", func() { members[1].DiskUsedPercent = placement.FullPercent - 1 }, true},
		{"one that was full from the beginning has room", func() { members[2].DiskUsedPercent = 0 }, true},
		{"nothing", func() {}, false},
		{"one is empty and full", func() {
			members = append(members, topic.Member{ID: "s3", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1, DiskUsedPercent: 97})
		}, false},
		{"one dies", func() { members[2].Status = topic.StatusDead }, false},
		{"it returns", func() { members[2].Status = topic.StatusAlive }, true},
		{"one drains", func() { members[2].Draining = true }, false},
		{"it is removed", func() { members = append(members[:2:2], members[3]) }, true},
		{"nothing again", func() {}, false},
		{"a gateway is removed", func() { members = members[1:] }, false},
	} {
		s.do()
		if b.due(members, now) {
			t.Errorf("%s: due at once", s.what)
		}
		now += rebalanceAfter
		if got := b.due(members, now); got != s.want {
			t.Errorf("%s: due %t", s.what, got)
		}
		b.armed = false // the plan was empty
		now += planEvery
	}
}

// counted is a runner whose plans are counted.
type counted struct {
	t     *testing.T
	r     *Runner
	now   time.Duration
	plans int
	list  []topic.Assignment
}

func newCounted(t *testing.T) *counted {
	c := &counted{t: t, now: time.Hour}
	r, err := New(Config{
		View: testkit.NewMeta(), Log: slog.New(slog.DiscardHandler), Mono: func() time.Duration { return c.now },
		Sure: func(context.Context) error { c.plans++; return nil }, Read: func(f func(metastate.Reader) error) error { return f(memory{}) },
		Members: func() []topic.Member {
			return []topic.Member{{ID: "s1", Role: topic.RoleStorage, Status: topic.StatusAlive, DiskID: 1}}
		},
		Assigned: func() ([]topic.Assignment, error) { return c.list, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.begin()
	c.r = r
	return c
}

func (c *counted) look(what string, want int) {
	c.t.Helper()
	c.plans = 0
	for range 20 {
		c.r.balance(c.t.Context())
		c.now += time.Second
	}
	if c.plans != want {
		c.t.Errorf("%s: planned %d times, want %d", what, c.plans, want)
	}
}

// Copies that were placed one by one let a rebalance be planned, once they are all there;
// nothing else does while the same nodes are there.
func TestARebalanceIsPlannedAfterCopiesWerePlaced(t *testing.T) {
	c := newCounted(t)
	c.look("a term begins", 1)
	c.look("nothing", 0)
	c.r.Placed()
	c.look("placed", 1)
	c.look("nothing again", 0)
}

// What a rebalance left out for want of a leader is planned for once it has one: each time
// that one of these has, and not for what loses its leader later.
func TestARebalanceIsPlannedOnceWhatItLeftOutIsLed(t *testing.T) {
	part := func(p int32) topic.Assignment {
		return topic.Assignment{Ref: topic.Ref{Topic: "t", Partition: p}, Replicas: []topic.Replica{{Node: "s1", DiskID: 1}}, Leader: "s1"}
	}
	c := newCounted(t)
	c.list = []topic.Assignment{part(0), part(1), part(2)}
	c.list[0].Leader, c.list[1].Leader = "", ""
	c.look("a term begins", 1)
	c.look("nobody leads two", 0)
	c.list[0].Leader = "s1"
	c.look("one is led", 1)
	c.look("nobody leads one", 0)
	c.list[2].Leader = ""
	c.look("another one is not", 0)
	c.list[2].Leader = "s1"
	c.look("it is again", 0)
	c.list[1].Leader = "s1"
	c.look("all are led", 1)
	c.look("nothing", 0)
}
