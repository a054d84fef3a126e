package controller

import (
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/testkit"
	"github.com/narad-mq/narad/libs/topic"
)

// TestDeferrals: why a member that asks for a vote gets none now. Each of the first rows
// differs by one thing from a member that is promoted; the others say which of two
// reasons is told.
func TestDeferrals(t *testing.T) {
	v1, _, _ := steadyLeader(t)
	r := rigOver(t, v1) // it does not run: who leads since when is the test's
	const heard, silent = "v2", "v3"
	testkit.Poll(t, patience, "v2 answers heartbeats", func() bool { return !v1.HeartbeatFailing(heard) })
	record := func(change func(*topic.Member)) *topic.Member {
		m := &topic.Member{ID: "v9", Role: topic.RoleVoter, Status: topic.StatusAlive}
		change(m)
		return m
	}
	sound := record(func(*topic.Member) {})
	dead := record(func(m *topic.Member) { m.Status = topic.StatusDead })
	draining := record(func(m *topic.Member) { m.Draining = true })
	enough := r.timing.PromoteAfter
	for _, tc := range []struct {
		name   string
		led    time.Duration
		record *topic.Member
		server string
		want   string
	}{
		{"nothing is in the way", enough, sound, heard, ""},
		{"the leader is young", enough - 1, sound, heard, "leader_too_young"},
		{"it never registered", enough, nil, heard, "no_member_record"},
		{"no heartbeat reaches it", enough, sound, silent, "heartbeats_failing"},
		{"it is marked dead", enough, dead, heard, "member_dead"},
		{"it is about to leave", enough, draining, heard, "member_draining"},
		{"a young leader judges nobody", 0, nil, silent, "leader_too_young"},
		{"what never registered is heard by nobody", enough, nil, silent, "no_member_record"},
		{"what is dead is not heard either", enough, dead, silent, "heartbeats_failing"},
		{"dead, and about to leave", enough, record(func(m *topic.Member) { m.Status, m.Draining = topic.StatusDead, true }), heard, "member_dead"},
	} {
		elected := r.Controller.mono() - tc.led
		if got := r.defers(&term{elected: elected}, tc.record, tc.server); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
