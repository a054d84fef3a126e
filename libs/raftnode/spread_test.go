package raftnode

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/topic"
)

func request(prev, commit uint64, entries ...uint64) *raft.AppendEntriesRequest {
	a := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: prev, PrevLogTerm: 2, LeaderCommitIndex: commit}
	for _, i := range entries {
		a.Entries = append(a.Entries, &raft.Log{Index: i, Term: 3})
	}
	return a
}

// TestSpreadTells: a peer is told of a commit once, and never of one above what it
// was sent: it takes a commit index for its own log, whatever stands there.
func TestSpreadTells(t *testing.T) {
	for name, c := range map[string]struct {
		sent      *raft.AppendEntriesRequest
		committed uint64
		told      bool
	}{
		"what it was sent is committed":          {request(4, 4, 5, 6), 6, true},
		"a part of it":                           {request(4, 4, 5, 6), 5, true},
		"it was told with what it was sent":      {request(4, 6, 5, 6), 6, false},
		"more than it was sent":                  {request(4, 4, 5, 6), 7, false},
		"a request without entries told nothing": {request(6, 4), 6, true},
		"nothing is known of it":                 {nil, 6, false},
		"nothing is committed":                   {request(0, 0), 0, false},
	} {
		var next *raft.AppendEntriesRequest
		if c.sent != nil {
			next = following(c.sent)
		}
		got := telling(next, c.committed)
		if (got != nil) != c.told {
			t.Errorf("%s: told %+v", name, got)
			continue
		}
		if got == nil {
			continue
		}
		term := uint64(3)
		if len(c.sent.Entries) == 0 {
			term = 2
		}
		if got.Term != 3 || got.PrevLogEntry != 6 || got.PrevLogTerm != term || got.LeaderCommitIndex != c.committed || len(got.Entries) != 0 {
			t.Errorf("%s: %+v", name, got)
		}
		if telling(got, c.committed) != nil {
			t.Errorf("%s: it is told twice", name)
		}
	}
}

// TestTellingCostsNoEntry: followers, also one that got what is new in calls before its
// pipeline, learn of a change while nothing but the change is put on the log.
func TestTellingCostsNoEntry(t *testing.T) {
	leader := newHost(t, "v1", true)
	leader.tune = func(tm *Timing) { alone(tm); tm.Commit = time.Hour }
	bootstrapped(t, leader)
	s := nonvoter(t, "s1", leader)
	for i := range topic.Incarnation(20) {
		index, _, err := leader.Apply(within(t), createTopic(fmt.Sprintf("t%d", i), 1+i, "s1"))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if _, _, err := leader.Apply(within(t), register(s)); err != nil {
				t.Fatal(err)
			}
			index++
		}
		waitApplied(t, index, s)
		if last := leader.raft().LastIndex(); last != index {
			t.Fatalf("the log ends at %d after a change at %d", last, index)
		}
	}
}
