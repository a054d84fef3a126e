package voter

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestAHeartbeatAtOnce: a member that has something to say now is heard now, and not
// when its next heartbeat is due.
func TestAHeartbeatAtOnce(t *testing.T) {
	c := newVoters(t, 1)
	c[0].timing.DeadAfter = time.Hour
	c.start()
	c.waitReady(t)
	s := c.joiner(t, "s1", topic.RoleStorage)
	s.cfg.Timing.HeartbeatEvery = time.Hour
	s.start()
	testkit.Poll(t, patience, "it is ready", s.ready)
	// The leader heard it between the two, if it did.
	heard := func() (earliest, latest time.Time, ok bool) {
		asked := time.Now()
		res, err := c[0].voter.controller.Members(within(t))
		if err != nil {
			t.Fatal(err)
		}
		ms, ok := res.AgesMS["s1"]
		age := time.Duration(ms) * time.Millisecond // or almost a millisecond more
		return asked.Add(-age - time.Millisecond), time.Now().Add(-age), ok
	}
	var was time.Time
	testkit.Poll(t, patience, "it was heard, and is quiet", func() bool { // it may see its registration before the leader notes it
		_, at, ok := heard()
		was = at
		return ok && time.Since(was) > 300*time.Millisecond
	})
	s.member.HeartbeatSoon()
	s.member.HeartbeatSoon()
	testkit.Poll(t, patience, "it is heard", func() bool { at, _, _ := heard(); return at.After(was) })
}
