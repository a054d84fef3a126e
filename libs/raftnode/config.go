package raftnode

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/topic"
)

// Limits and defaults of a node.
const (
	// TransportTimeout bounds each Raft RPC. The 12 s that a leader must have led
	// before it promotes are this plus a margin.
	TransportTimeout = 10 * time.Second
	// FreshContact is how long ago the leader may have been heard for the node to count as caught up.
	FreshContact = lifecycle.FreshContact
	// BarrierTimeout bounds Barrier when the caller's context does not.
	BarrierTimeout = lifecycle.BarrierTimeout
	// HeartbeatFailureMemory is how long a failed heartbeat counts against a
	// server unless a later one succeeds.
	HeartbeatFailureMemory = lifecycle.HeartbeatFailureMemory
	// MaxPendingCalls bounds the entries, barriers and changes that wait for Raft
	// on this node: past it a stalled disk costs refusals, not memory.
	MaxPendingCalls = 1024

	// Raft sends each server a heartbeat every tenth to fifth of Timing.Heartbeat,
	// which is most of what an idle leader costs. There are these parts of it at
	// least between two of them. Voters need several within the time after which
	// they elect; servers without a vote have no part in elections.
	voterPace    = 5
	nonvoterPace = 2
	// nonvoterPatience is how much longer than a voter a node that may never vote
	// takes silence for a lost leader: about five of its heartbeats.
	nonvoterPatience = 3

	maxTransportPool = 3   // connections kept per peer: replication, heartbeat, one more
	logCacheEntries  = 512 // newest log entries kept in memory for followers
	keptSnapshots    = 2   // the newest, and one to fall back to
	latchPoll        = 20 * time.Millisecond
	closeDrain       = 2 * time.Second // longer than a leader without a majority takes to give up
)

// Timing holds what tests shorten. The zero value of a field means its default.
type Timing struct {
	Heartbeat         time.Duration // silence of the leader before an election
	Election          time.Duration // an undecided election before the next
	LeaderLease       time.Duration // silence of the majority before a leader steps down; <= Heartbeat
	Commit            time.Duration // idle time before followers are told the commit index
	Transport         time.Duration
	FreshContact      time.Duration
	SnapshotInterval  time.Duration
	SnapshotThreshold uint64 // entries since the last snapshot
	TrailingLogs      uint64 // entries kept after a snapshot, for followers that lag a little
	MaxAppendEntries  int    // entries in one message and one state transaction
}

// DefaultTiming gives an election in about 1 s after a crash. Followers learn of
// a change at once (see spreadCommit), of what no view shows in 1 to 2 s:
// with eight servers, telling them every 35 ms took a leader 7 % of a core.
func DefaultTiming() Timing {
	return Timing{
		Heartbeat: 500 * time.Millisecond, Election: 500 * time.Millisecond, LeaderLease: 500 * time.Millisecond,
		Commit: time.Second, Transport: TransportTimeout, FreshContact: FreshContact,
		SnapshotInterval: 30 * time.Second, SnapshotThreshold: 8192, TrailingLogs: 8192, MaxAppendEntries: 256,
	}
}

func (t Timing) withDefaults() Timing {
	d := DefaultTiming()
	pick(&t.Heartbeat, d.Heartbeat)
	pick(&t.Election, d.Election)
	pick(&t.LeaderLease, d.LeaderLease)
	pick(&t.Commit, d.Commit)
	pick(&t.Transport, d.Transport)
	pick(&t.FreshContact, d.FreshContact)
	pick(&t.SnapshotInterval, d.SnapshotInterval)
	pick(&t.SnapshotThreshold, d.SnapshotThreshold)
	pick(&t.TrailingLogs, d.TrailingLogs)
	pick(&t.MaxAppendEntries, d.MaxAppendEntries)
	return t
}

func pick[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// Config is everything that a node needs to open.
type Config struct {
	NodeID     string       // member id; see serverid.go for the Raft server id
	BootNonce  topic.ID64   // random id of this process start; the registration with it sets the latch
	Dir        string       // made if missing; holds raft.db, state.db and snapshots/
	Bind       string       // host:port to listen on for Raft; port 0 takes a free one
	Advertise  string       // host:port that others dial; "" means the bound address
	Plane      Plane        // how connections are made; the zero value is plain TCP
	Voter      bool         // may ever vote; only such a node may bootstrap
	NeverVotes bool         // no leader ever gives it a vote: nobody relies on its disk, and it does not wait for it; see behind.go
	Gated      bool         // a node with nothing on its disk takes no part in Raft before Admit or Bootstrap
	Logger     *slog.Logger // nil discards
	Timing     Timing
}

func (c *Config) validate() error {
	switch {
	case c.NodeID == "" || NodeOf(c.NodeID) != c.NodeID:
		return fmt.Errorf("raft node: node id %q", c.NodeID)
	case c.BootNonce == 0:
		return errors.New("raft node: no boot nonce")
	case c.Dir == "":
		return errors.New("raft node: no directory")
	case c.Bind == "":
		return errors.New("raft node: no address to listen on")
	case c.Voter && c.NeverVotes:
		return errors.New("raft node: it may vote, and never votes")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Timing = c.Timing.withDefaults()
	return nil
}
