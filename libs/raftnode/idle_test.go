package raftnode

import (
	"sync"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/metastate"
)

// TestFollowersLearnAtOnceWithoutIdleCalls: however long Raft waits before it
// tells followers of a commit by itself, a change reaches them at once, also
// when heartbeats, which nobody waits for, were under way with it.
func TestFollowersLearnAtOnceWithoutIdleCalls(t *testing.T) {
	leader := newHost(t, "v1", true)
	leader.tune = func(tm *Timing) { alone(tm); tm.Commit = time.Hour }
	bootstrapped(t, leader)
	s := nonvoter(t, "s1", leader)
	index, _ := apply(t, []*host{leader}, register(s))
	waitApplied(t, index, s)
	for round := range 20 {
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				_, _, err := leader.Apply(t.Context(), &metastate.Heartbeats{NowMS: 1, Items: []metastate.Heartbeat{{ID: "s1", BootNonce: s.nonce}}})
				if err != nil {
					t.Error(err)
				}
			})
		}
		index, _ := apply(t, []*host{leader}, register(s))
		wg.Wait()
		if err := s.WaitApplied(within(t), index); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
	}
}

// TestServersWithoutAVoteHearLessOften: heartbeats are for elections; others
// get fewer, and do not lose sight of the leader for it.
func TestServersWithoutAVoteHearLessOften(t *testing.T) {
	leader := newHost(t, "v1", true)
	leader.tune = func(tm *Timing) { tm.Commit = time.Hour }
	bootstrapped(t, leader)
	s := nonvoter(t, "s1", leader)
	index, _ := apply(t, []*host{leader}, register(s))
	waitApplied(t, index, s)
	heard := leader.trans.peer("s1").heardAt
	for range 6 {
		last := heard
		poll(t, "another heartbeat", func() bool {
			heard = leader.trans.peer("s1").heardAt
			return heard != last
		})
		if gap := heard.Sub(last); gap < leader.cfg.Timing.Heartbeat/nonvoterPace {
			t.Errorf("heartbeats %v apart", gap)
		}
		// One that stood still since then looks for a leader.
		if id, _ := s.Leader(); id != "v1" && time.Since(heard) < 2*leader.cfg.Timing.Heartbeat {
			t.Errorf("it follows %q", id)
		}
	}
}
