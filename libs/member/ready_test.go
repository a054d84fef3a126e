package member

import (
	"slices"
	"testing"

	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

func codes(m *Member) []string {
	out := []string{}
	for _, r := range m.Ready() {
		out = append(out, r.Code)
	}
	return out
}

// TestReadiness: each state of a member that needs no other one.
func TestReadiness(t *testing.T) {
	is := func(m *Member, want ...string) {
		t.Helper()
		if got := codes(m); !slices.Equal(got, want) {
			t.Errorf("not ready for %v, want %v", got, want)
		}
	}
	guest, err := Open(testConfig(t, topic.RoleStorage, "127.0.0.1:1"), Deps{})
	if err != nil {
		t.Fatal(err)
	}
	is(guest, ops.ReasonStarting, ops.ReasonNotAdmitted, ops.ReasonNotCaughtUp)
	guest.running.Store(true)
	is(guest, ops.ReasonNotAdmitted, ops.ReasonNotCaughtUp)
	if err := guest.Close(); err != nil {
		t.Error(err)
	}

	cfg := testConfig(t, topic.RoleVoter)
	cfg.FormAlone = true
	m, stop := running(t, cfg, &testkit.Journal{})
	testkit.Poll(t, patience, "it leads", func() bool { id, _ := m.Raft().Leader(); return id != "" && m.Raft().IsLeader() })
	is(m, ops.ReasonNotCaughtUp) // whoever founds the cluster is not there, so it has nothing to catch up to
	m.Stopping()
	is(m, ops.ReasonStopping, ops.ReasonNotCaughtUp)
	stop()
}
