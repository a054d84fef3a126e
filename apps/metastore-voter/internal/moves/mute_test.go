package moves

import (
	"testing"

	"github.com/narad-mq/narad/libs/metaapi"
)

// TestAMoveWhoseLeaderSaysNothingIsBlocked: not before it has had some time, and then the
// move counts for nothing; it goes on as soon as the leader speaks. With each word the time
// begins anew.
func TestAMoveWhoseLeaderSaysNothingIsBlocked(t *testing.T) {
	s := newStage(t, 1)
	s.move("s1")
	shown := func() (string, int) {
		t.Helper()
		res, err := s.runner.List()
		if err != nil || len(res.Moves) != 1 {
			t.Fatal(res, err)
		}
		return string(res.Moves[0].Blocked), res.Running
	}
	for round := range 2 {
		s.freeze("s1")
		s.tick() // it is not answered for the first time
		for since := s.mono; s.mono-since < muteAfter-lookEvery; {
			s.tick()
			if why, running := shown(); why != "" || running != 1 {
				t.Fatalf("round %d: blocked by %q after %s, %d run", round, why, s.mono-since, running)
			}
		}
		if round == 0 { // one word of it
			delete(s.down, "s1")
			s.records["s9"] = -1000 // it stays far
			s.tick()
		}
	}
	s.tick()
	if why, running := shown(); why != string(metaapi.BlockedLeader) || running != 0 {
		t.Fatalf("blocked by %q, %d run", why, running)
	}
	delete(s.down, "s1")
	s.tick()
	if why, running := shown(); why != "" || running != 1 {
		t.Fatalf("blocked by %q although the leader answers, %d run", why, running)
	}
	s.records["s9"] = s.records["s1"]
	s.settle(1, "s1", true)
}
