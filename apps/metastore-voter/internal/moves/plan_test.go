package moves

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/topic"
)

// TestRebalanceIsDue: with a term, when a node comes, and when one that was full has room
// again, each time once no other has for a while; a node whose disk fills up is no reason.
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
