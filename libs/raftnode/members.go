package raftnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Server is one server of the Raft configuration.
type Server struct {
	ID     string // node id
	Addr   string // host:port
	Voter  bool
	RaftID string // Raft server id (see serverid.go); "" in a first configuration: the node id
}

// Configuration is a Raft configuration and the index that a change of it must name.
type Configuration struct {
	Servers []Server
	Index   uint64
}

// Empty tells that this node has no Raft configuration: it was never
// bootstrapped nor admitted.
func (n *Node) Empty() bool { return len(n.Configuration().Servers) == 0 }

// Bootstrap gives an empty node its first configuration, in which it must be.
// Every initial member gives the same one. ErrHasState when there is one already.
func (n *Node) Bootstrap(servers []Server) error {
	if !n.cfg.Voter {
		return errors.New("bootstrap: this node may never vote")
	}
	var c raft.Configuration
	self := false
	for _, s := range servers {
		suffrage := raft.Nonvoter
		if s.Voter {
			suffrage = raft.Voter
		}
		self = self || s.ID == n.cfg.NodeID
		c.Servers = append(c.Servers, raft.Server{Suffrage: suffrage, ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Addr)})
	}
	if !self {
		return fmt.Errorf("bootstrap: %s is not one of the servers", n.cfg.NodeID)
	}
	// First the gate: initial members that all stop in between must not wait for
	// one another for ever.
	if err := n.Admit(n.cfg.NodeID); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	err := n.raft().BootstrapCluster(c).Error()
	if errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap: %w", ErrHasState)
	}
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// Configuration returns the newest configuration that this node knows of. Its
// index is of the newest committed one: when a newer one is under way, a change
// that names it is refused with ErrConflict.
func (n *Node) Configuration() Configuration {
	c := Configuration{Index: n.fsm.configuration.Load()}
	r := n.raft()
	if r == nil {
		return c
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		c.Servers = append(c.Servers, Server{
			ID: NodeOf(string(s.ID)), Addr: string(s.Address), Voter: s.Suffrage == raft.Voter, RaftID: string(s.ID),
		})
	}
	return c
}

// AddNonvoter adds a server, or changes the address of one, without a vote. It
// never takes a vote away. id is a Raft server id, here and below; prevIndex is
// the Index of the Configuration that was read. It answers the index of the
// change. Errors as of Apply, and ErrConflict.
func (n *Node) AddNonvoter(ctx context.Context, id, addr string, prevIndex uint64) (uint64, error) {
	return n.change(ctx, "add non-voter", id, prevIndex, func(wait time.Duration) raft.IndexFuture {
		return n.raft().AddNonvoter(raft.ServerID(id), raft.ServerAddress(addr), prevIndex, wait)
	})
}

// AddVoter adds a server with a vote, or promotes one under its id.
func (n *Node) AddVoter(ctx context.Context, id, addr string, prevIndex uint64) (uint64, error) {
	return n.change(ctx, "add voter", id, prevIndex, func(wait time.Duration) raft.IndexFuture {
		return n.raft().AddVoter(raft.ServerID(id), raft.ServerAddress(addr), prevIndex, wait)
	})
}

// RemoveServer takes a server out of the configuration; a missing one is no error.
func (n *Node) RemoveServer(ctx context.Context, id string, prevIndex uint64) (uint64, error) {
	index, err := n.change(ctx, "remove server", id, prevIndex, func(wait time.Duration) raft.IndexFuture {
		return n.raft().RemoveServer(raft.ServerID(id), prevIndex, wait)
	})
	if err == nil {
		n.trans.forget(raft.ServerID(id))
	}
	return index, err
}

func (n *Node) change(ctx context.Context, what, id string, prevIndex uint64, do func(time.Duration) raft.IndexFuture) (uint64, error) {
	if prevIndex == 0 {
		// Raft takes 0 for "do not compare".
		return 0, fmt.Errorf("%s %s: no configuration index given: %w", what, id, ErrConflict)
	}
	if err := n.usable(ctx); err != nil {
		return 0, fmt.Errorf("%s %s: %w", what, id, err)
	}
	if !n.calls.begin() {
		return 0, fmt.Errorf("%s %s: %w", what, id, ErrBusy)
	}
	f := do(queueTime(ctx))
	if err := n.wait(ctx, f); err != nil {
		if strings.Contains(err.Error(), "configuration changed since") {
			return 0, fmt.Errorf("%s %s: %w", what, id, ErrConflict)
		}
		return 0, fmt.Errorf("%s %s: %w", what, id, classify(err))
	}
	grow(&n.fsm.configuration, f.Index())
	return f.Index(), nil
}

// Stats is a node's Raft as it sees it. Indexes are of entries (not exclusive ends).
type Stats struct {
	State      string // leader, follower, candidate; unknown: it takes no part (yet)
	LeaderID   string // node id; "" when unknown
	Term       uint64
	TermStart  uint64 // index of the current leader's first entry; 0 when unknown
	Commit     uint64 // a follower's is what it was told
	LastLog    uint64
	Applied    uint64 // taken effect in the state
	ContactAge time.Duration
	HasContact bool          // false: ContactAge means nothing
	LogWrite   time.Duration // for how long the log write under way has not returned; 0: none is
	Servers    []ServerStats
}

// ServerStats is a server of the configuration as this node knows it. LastLog,
// Term and Age are of the server's last answer to this node as leader.
type ServerStats struct {
	Server
	Known   bool // it has answered this node since the start
	LastLog uint64
	Term    uint64
	Age     time.Duration // since that answer
	Failing bool          // as HeartbeatFailing
}

// Stats returns the node's own measurements; it asks nobody.
func (n *Node) Stats() Stats {
	r := n.raft()
	if r == nil {
		return Stats{State: stateName(raft.Shutdown)}
	}
	leader, _ := n.Leader()
	s := Stats{
		State: stateName(r.State()), LeaderID: leader, Term: r.CurrentTerm(),
		Commit: r.CommitIndex(), LastLog: r.LastIndex(), Applied: n.Applied(),
	}
	s.ContactAge, s.HasContact = n.LeaderContact()
	s.LogWrite = n.logs.stalledFor()
	if start := n.logs.noop.Load(); start != nil && start.term == s.Term {
		s.TermStart = start.index
	}
	own := n.ServerID()
	for _, srv := range n.Configuration().Servers {
		s.Servers = append(s.Servers, n.serverStats(srv, srv.RaftID == own, &s))
	}
	return s
}

// Reachable tells whether the server answers this node, which leads.
func (s *ServerStats) Reachable() bool { return s.Known && !s.Failing && s.Age < FreshContact }

func (n *Node) serverStats(srv Server, self bool, own *Stats) ServerStats {
	if self {
		return ServerStats{Server: srv, Known: true, LastLog: own.LastLog, Term: own.Term}
	}
	p := n.trans.peer(raft.ServerID(srv.RaftID))
	out := ServerStats{Server: srv, LastLog: p.lastLog, Term: p.term, Failing: p.failing(time.Now())}
	if !p.heardAt.IsZero() {
		out.Known, out.Age = true, time.Since(p.heardAt)
	}
	return out
}

// HeartbeatFailing tells whether a heartbeat of this leader to the server, by its
// Raft server id, failed within HeartbeatFailureMemory and none succeeded since,
// or whether the server never answered one.
func (n *Node) HeartbeatFailing(serverID string) bool {
	p := n.trans.peer(raft.ServerID(serverID))
	return p.heardAt.IsZero() || p.failing(time.Now())
}

func stateName(s raft.RaftState) string {
	switch s {
	case raft.Leader:
		return "leader"
	case raft.Follower:
		return "follower"
	case raft.Candidate:
		return "candidate"
	}
	return "unknown"
}
