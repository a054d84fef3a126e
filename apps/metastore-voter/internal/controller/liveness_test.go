package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestJudge is the verdict over members as a table: v are voters (v1 is the
// leader that judges), s storage nodes; silence counts from 30 s.
func TestJudge(t *testing.T) {
	const never = -1
	type row struct {
		id   string
		ago  time.Duration // since it was heard; never: not in this term
		dead bool          // already
	}
	for name, tc := range map[string]struct {
		age     time.Duration // of the term
		members []row
		voters  int
		dead    string
		refused bool
	}{
		"everybody is heard":                    {age: 90, members: []row{{"v2", 1, false}, {"v3", 29, false}, {"s1", 4, false}}, voters: 3},
		"a storage node is silent":              {age: 90, members: []row{{"v2", 1, false}, {"v3", 1, false}, {"s1", 30, false}}, voters: 3, dead: "s1"},
		"one voter of three":                    {age: 90, members: []row{{"v2", 1, false}, {"v3", 31, false}, {"s1", 1, false}}, voters: 3, dead: "v3"},
		"two voters of three":                   {age: 90, members: []row{{"v2", 31, false}, {"v3", 31, false}, {"s1", 1, false}}, voters: 3, refused: true},
		"nobody else is judged then":            {age: 90, members: []row{{"v2", 31, false}, {"v3", 31, false}, {"s1", 31, false}, {"s2", 1, false}}, voters: 3, refused: true},
		"two voters of five":                    {age: 90, members: []row{{"v2", 31, false}, {"v3", 31, false}, {"v4", 1, false}, {"v5", 1, false}}, voters: 5, dead: "v2 v3"},
		"three voters of five":                  {age: 90, members: []row{{"v2", 31, false}, {"v3", 31, false}, {"v4", 31, false}, {"v5", 1, false}}, voters: 5, refused: true},
		"one dead already, one more of three":   {age: 90, members: []row{{"v2", 31, false}, {"v3", never, true}, {"s1", 1, false}}, voters: 3, refused: true},
		"no other member was heard":             {age: 90, members: []row{{"s1", 31, false}}, voters: 1, refused: true},
		"others were heard, but none lately":    {age: 90, members: []row{{"v2", 26, false}, {"v3", 30, false}, {"s1", 28, false}}, voters: 3, refused: true},
		"a dead one was heard, it counts":       {age: 90, members: []row{{"s1", 31, false}, {"s2", 1, true}}, voters: 1, dead: "s1"},
		"a new leader gives the whole time":     {age: 29, members: []row{{"v2", never, false}, {"v3", never, false}, {"s1", never, false}}, voters: 3},
		"and then judges who was never heard":   {age: 30, members: []row{{"v2", 1, false}, {"v3", 1, false}, {"s1", never, false}}, voters: 3, dead: "s1"},
		"the dead are not marked again":         {age: 90, members: []row{{"v2", 1, false}, {"v3", 1, false}, {"s1", never, true}}, voters: 3},
		"a voter without a record is not alive": {age: 90, members: []row{{"v2", 1, false}, {"s1", 31, false}}, voters: 4, refused: true},
		"alone":                                 {age: 90, voters: 1},
	} {
		t.Run(name, func(t *testing.T) {
			const start = 1000 * time.Second
			s := &scene{self: "v1", since: start, now: start + tc.age*time.Second, deadAfter: 30 * time.Second, heard: map[string]time.Duration{}}
			s.members = []topic.Member{{ID: "v1", Status: topic.StatusAlive}}
			for _, r := range tc.members {
				m := topic.Member{ID: r.id, Status: topic.StatusAlive, HeartbeatMS: 5}
				if r.dead {
					m.Status = topic.StatusDead
				}
				if r.ago != never {
					s.heard[r.id] = s.now - r.ago*time.Second
				}
				s.members = append(s.members, m)
			}
			for i := range tc.voters {
				s.voters = append(s.voters, fmt.Sprintf("v%d", i+1))
			}
			marks, refused := s.judge()
			got := ""
			for i, d := range marks {
				if i > 0 {
					got += " "
				}
				got += d.ID
				if d.HeartbeatMS != 5 {
					t.Errorf("the mark of %s does not name the stamp", d.ID)
				}
			}
			if got != tc.dead || refused != tc.refused {
				t.Errorf("dead %q, refused %t; want %q, %t", got, refused, tc.dead, tc.refused)
			}
		})
	}
}

// TestBreakerIsLoggedOncePerStreak: a leader that is cut off for an hour says once that it
// marks nobody, and says it again when that comes back.
func TestBreakerIsLoggedOncePerStreak(t *testing.T) {
	r := rigOver(t, openSole(t)) // it does not run: the passes are the test's
	bootstrap(t, r.node, r.node)
	testkit.Poll(t, patience, "it leads", func() bool { return r.node.Barrier(t.Context()) == nil })
	own := &term{since: r.Controller.mono(), heard: map[string]time.Duration{}, pending: map[string]metastate.Heartbeat{}}
	for _, id := range []string{"s1", "s2"} {
		applied(t, r.node, registrationOf(id, topic.RoleStorage))
	}
	passes := func() {
		for range 5 {
			r.judge(t.Context(), own)
		}
	}
	for streak := 1; streak <= 2; streak++ {
		r.later(r.timing.DeadAfter)
		passes()
		if n := r.errors.Count("controller: refusing to mark voters dead"); n != streak || !r.refused.Load() {
			t.Errorf("streak %d, refused %t: said %d times", streak, r.refused.Load(), n)
		}
		r.hear(own, heartbeatOf("s1"), true)
		passes()
		if r.refused.Load() {
			t.Errorf("streak %d does not end when somebody is heard", streak)
		}
	}
	if n := r.errors.Count("level=ERROR"); n != 2 {
		t.Errorf("%d errors were logged:\n%s", n, r.errors.String())
	}
}
