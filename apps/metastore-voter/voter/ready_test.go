package voter

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/testkit"
)

// TestReadinessNeedsFreshContact: a follower is not ready once the leader's last word is
// older than it may be, though it still sees that leader and has caught up; the leader
// itself needs nobody's word.
func TestReadinessNeedsFreshContact(t *testing.T) {
	c := newVoters(t, 3)
	for _, m := range c {
		m.cfg.Timing.FreshContact = time.Nanosecond // every word is older
	}
	c.start()
	only := func(m *machine, code string) bool {
		reasons := m.member.Ready()
		return len(reasons) == 1 && reasons[0].Code == code
	}
	testkit.Poll(t, patience, "the leader is ready, and no follower is", func() bool {
		leads, follow := 0, 0
		for _, m := range c {
			switch {
			case m.ready() && m.member.Raft().IsLeader():
				leads++
			case only(m, ops.ReasonContactStale):
				follow++
			}
		}
		return leads == 1 && follow == 2
	})
}
