package raftnode

import (
	"time"

	"github.com/hashicorp/raft"
)

// standing is what a node knows of itself and of its leader at one moment.
type standing struct {
	leading        bool
	leaderKnown    bool
	contactAge     time.Duration // since the leader was heard; meaningless when leading
	contacted      bool          // a leader was heard since the start
	leaderCommit   uint64        // highest LeaderCommitIndex received since the start
	ownCommit      uint64        // Raft's own commit index: what counts for a leader
	noopCommitted  bool          // the leader's first entry of its term is committed
	raftApplied    uint64        // handed to the state machine, which may still be at it
	commandMissing bool          // a command stands between what took effect and raftApplied
}

// The reasons why a node does not count as caught up.
const (
	reasonNoLeader      = "no_leader"
	reasonStaleContact  = "stale_contact"
	reasonNoCommitIndex = "no_commit_index"
	reasonBehind        = "behind"
	reasonApplying      = "applying"
)

// caughtUp decides by the four conditions. All are needed: a snapshot's own
// indexes look complete (contact), a heartbeat carries no commit index
// (leaderCommit), and Raft counts as applied what it has only handed over
// (commandMissing).
func (s *standing) caughtUp(fresh time.Duration) (bool, string) {
	goal := s.leaderCommit
	switch {
	case s.leading && !s.noopCommitted:
		return false, reasonNoCommitIndex
	case s.leading:
		goal = s.ownCommit
	case !s.leaderKnown:
		return false, reasonNoLeader
	case !s.contacted || s.contactAge > fresh:
		return false, reasonStaleContact
	case goal == 0:
		return false, reasonNoCommitIndex
	}
	if s.raftApplied < goal {
		return false, reasonBehind
	}
	if s.commandMissing {
		return false, reasonApplying
	}
	return true, ""
}

// CaughtUp tells whether this node has applied everything that its leader is
// known to have committed, and if not, why: no_leader, stale_contact,
// no_commit_index, behind, applying.
func (n *Node) CaughtUp() (ok bool, reason string) {
	s := n.standing()
	return s.caughtUp(n.cfg.Timing.FreshContact)
}

func (n *Node) standing() standing {
	r := n.raft()
	if r == nil {
		return standing{}
	}
	_, leader := r.LeaderWithID()
	s := standing{
		leading:      r.State() == raft.Leader,
		leaderKnown:  leader != "",
		leaderCommit: n.trans.leaderCommit.Load(),
		ownCommit:    r.CommitIndex(),
	}
	if last := r.LastContact(); !last.IsZero() {
		s.contacted, s.contactAge = true, time.Since(last)
	}
	if s.leading {
		start := n.logs.noop.Load()
		s.noopCommitted = start != nil && start.term == r.CurrentTerm() && s.ownCommit >= start.index
	}
	s.raftApplied = r.AppliedIndex()
	s.commandMissing = n.commandBetween(n.fsm.covered.Load(), s.raftApplied)
	return s
}

// commandBetween looks in the log for a command after `after`, up to `upTo`. An
// entry that cannot be read counts as one.
func (n *Node) commandBetween(after, upTo uint64) bool {
	for i := after + 1; i <= upTo; i++ {
		var l raft.Log
		if err := n.logs.GetLog(i, &l); err != nil || l.Type == raft.LogCommand {
			return true
		}
	}
	return false
}
