// Package lifecycle holds the numbers by which a cluster forms, grows, restarts
// and judges its members, in one place: requirements, not tuning. Members, Raft
// nodes and the controller take their defaults from here; tests shorten those.
// `narad cluster constants` prints Table.
//
// It is data: it imports nothing but time. TestTable holds it against the
// specification.
package lifecycle

import (
	"fmt"
	"time"
)

// Joining.
const (
	// JoinEvery is the cadence of join attempts, until the node's own Raft sees a leader.
	JoinEvery = 2 * time.Second
	// MaxHints bounds the leader hints that one attempt follows: a hint that leads
	// to another hint four times in a row is a loop or an election.
	MaxHints = 4
	// MaxRemembered bounds the leader addresses that a joiner keeps for later attempts.
	MaxRemembered = 8
	// LeaderlessFor is how long a node has no leader before it runs the join loop again.
	LeaderlessFor = 15 * time.Second
	// ProbeRounds, ProbeEvery and ProbePeer: an initial member with an empty disk
	// asks this often, this far apart and this long per peer whether a cluster
	// exists, before it forms one.
	ProbeRounds = 3
	ProbeEvery  = time.Second
	ProbePeer   = 2 * time.Second
	// OlderReleaseLogEvery is how often a leader logs one joiner's refusals at most.
	OlderReleaseLogEvery = time.Minute
)

// Promotion to a voter.
const (
	// PromotionEvery is the cadence of requests of a caught-up non-voter that may
	// vote: the join loop makes them.
	PromotionEvery = JoinEvery
	// PromoteAfter is how long a leader must have led before it promotes.
	PromoteAfter = 12 * time.Second
	// HeartbeatFailureMemory is how long a failed heartbeat to the joiner counts
	// unless a later one succeeds.
	HeartbeatFailureMemory = 12 * time.Second
)

// Leaving and electing: what to expect, measured by the end-to-end tests.
const (
	// TransferTakes is about how long a graceful hand-over of leadership takes.
	TransferTakes = 150 * time.Millisecond
	// ElectionTakes is about how long an election after a crash takes.
	ElectionTakes = time.Second
)

// Judging members.
const (
	// HeartbeatEvery is how often each member tells the leader that it lives.
	HeartbeatEvery = 5 * time.Second
	// DeadAfter is the silence that makes a member dead, and how long a new leader
	// waits, on its own clock and after a barrier, before it marks anyone.
	DeadAfter = 30 * time.Second
	// DeadMoveAfter is how long a leader sees the destination of a move dead, on its
	// own clock, before it takes the move back: a node that restarts is waited for.
	DeadMoveAfter = 2 * time.Minute
)

// Trusting a replica.
const (
	// ReconcileWait is how long a storage node's sweep at the start waits for the
	// replica to catch up; then it is skipped, so that nothing is deleted in a hurry.
	ReconcileWait = 60 * time.Second
	// FreshContact is how long ago the leader may have been heard for a node to be
	// ready, and caught up.
	FreshContact = 5 * time.Second
	// BarrierTimeout bounds the barrier after which a leader trusts its own state.
	BarrierTimeout = 5 * time.Second
)

// FieldDroppedFor is how long requests to a peer go without a field that it
// refused as unknown. Longer than a restart takes, so that an older peer is not
// asked in vain with every request; short enough that the cluster knows soon
// after an upgrade what everybody reports.
const FieldDroppedFor = 2 * time.Minute

// Row is one line of the table.
type Row struct {
	Thing string `json:"thing"`
	Value string `json:"value"`
}

// Table writes the constants for people, in the order of the specification.
func Table() []Row {
	return []Row{
		{"join attempt", fmt.Sprintf("every %s, until its own Raft sees a leader", JoinEvery)},
		{"join hints", fmt.Sprintf("at most %d followed per attempt; up to %d leader addresses remembered", MaxHints, MaxRemembered)},
		{"promotion request", fmt.Sprintf("every %s once the non-voter has caught up, until it votes", PromotionEvery)},
		{"promotion", fmt.Sprintf("the leader has led %s; its heartbeats to the joiner are not failing (a failure counts for %s); the member is alive and not draining", PromoteAfter, HeartbeatFailureMemory)},
		{"leadership", fmt.Sprintf("graceful transfer about %s; election after a crash about %s", TransferTakes, ElectionTakes)},
		{"heartbeat", fmt.Sprintf("every %s; dead after %s; a new leader waits %s on its own clock, after a barrier, before it marks anyone", HeartbeatEvery, DeadAfter, DeadAfter)},
		{"sweep at the start", fmt.Sprintf("waits up to %s for the replica to catch up, else it is skipped; the node is not ready before", ReconcileWait)},
		{"readiness", fmt.Sprintf("leader in view, heard within %s (or leading), ownership latch set", FreshContact)},
		{"leaderless join", fmt.Sprintf("after %s without a leader", LeaderlessFor)},
		{"existing-cluster probe", fmt.Sprintf("%d rounds, %s apart, %s per peer, before an initial member with an empty disk forms a cluster", ProbeRounds, ProbeEvery, ProbePeer)},
		{"older joiner", fmt.Sprintf("409 older_release; logged once by the joiner, at most once per %s and joiner by the leader", OlderReleaseLogEvery)},
		{"trust in itself as leader", fmt.Sprintf("after a Raft barrier of at most %s and a new read", BarrierTimeout)},
	}
}
