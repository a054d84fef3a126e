package raftnode

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// transport is Raft's network transport with two ears. On the way in it
// remembers the highest commit index that a leader sent since this start:
// heartbeats do not come this way, and carry 0 besides. On the way out it
// remembers what each server last answered to this node as leader.
//
// It embeds the concrete transport: behind the interface, pre-vote and Close would be lost.
type transport struct {
	*raft.NetworkTransport
	stream *streamLayer

	beforeRPC    func(raft.RPC) // tests hold RPCs back with it; nil otherwise
	gated        atomic.Bool    // no call is answered, because no Raft runs; see gate.go
	leaderCommit atomic.Uint64
	rpcs         chan raft.RPC
	stop         chan struct{}
	stopOnce     sync.Once
	done         chan struct{}

	beat    time.Duration             // Timing.Heartbeat
	stalled func() bool               // the log cannot be written: a leader must fall silent
	running atomic.Pointer[raft.Raft] // what sends and is called; nil before it was started

	committed atomic.Uint64 // what peers are to be told of at once; see spread.go

	mu        sync.Mutex                  // guards what follows
	peers     map[raft.ServerID]peerState // servers of the configuration only; see forget
	pipelines map[*pipeline]struct{}      // that are open
}

var (
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// peerState is what a server's answers told.
type peerState struct {
	lastLog  uint64
	term     uint64
	heardAt  time.Time // zero: never
	failedAt time.Time // of the last failure since heardAt; zero: none

	sent *raft.AppendEntriesRequest // what follows the last call that it took, heartbeats apart; nil: not known
}

func (p peerState) failing(now time.Time) bool {
	return !p.failedAt.IsZero() && now.Sub(p.failedAt) < HeartbeatFailureMemory
}

func newTransport(s *streamLayer, timeout time.Duration, log hclog.Logger, beforeRPC func(raft.RPC)) *transport {
	t := &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: s, MaxPool: maxTransportPool, Timeout: timeout, Logger: log,
		}),
		stream: s, beforeRPC: beforeRPC, rpcs: make(chan raft.RPC), stop: make(chan struct{}), done: make(chan struct{}),
		stalled: func() bool { return false },
		peers:   map[raft.ServerID]peerState{}, pipelines: map[*pipeline]struct{}{},
	}
	go t.listen()
	return t
}

// Consumer implements raft.Transport.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

func (t *transport) listen() {
	defer close(t.done)
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if t.gated.Load() {
				rpc.Respond(nil, errGated)
				continue
			}
			if t.beforeRPC != nil {
				t.beforeRPC(rpc)
			}
			if ae, ok := rpc.Command.(*raft.AppendEntriesRequest); ok {
				grow(&t.leaderCommit, ae.LeaderCommitIndex)
			}
			select {
			case t.rpcs <- rpc:
			case <-t.stop:
				rpc.Respond(nil, raft.ErrTransportShutdown)
				return
			}
		case <-t.stop:
			return
		}
	}
}

// isHeartbeat tells a heartbeat as Raft's own transport does.
func isHeartbeat(a *raft.AppendEntriesRequest) bool {
	return a.Term != 0 && len(a.Addr) != 0 && a.PrevLogEntry == 0 && a.PrevLogTerm == 0 && len(a.Entries) == 0 && a.LeaderCommitIndex == 0
}

// holdBack lets a heartbeat wait until some time has passed since the server's
// last answer. Raft has a goroutine for the heartbeats of each server, so nothing
// else waits. Nothing is made up: each heartbeat that Raft counts was answered.
func (t *transport) holdBack(id raft.ServerID) {
	pace := t.beat / voterPace
	if !t.votes(id) {
		pace = t.beat / nonvoterPace
	}
	rest := pace - time.Since(t.peer(id).heardAt)
	if rest <= 0 {
		return
	}
	wait := time.NewTimer(rest)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-t.stop:
	}
}

// votes tells whether a server has a vote, or may have one for all that is known.
func (t *transport) votes(id raft.ServerID) bool {
	r := t.running.Load()
	if r == nil {
		return true
	}
	for _, s := range r.GetConfiguration().Configuration().Servers {
		if s.ID == id {
			return s.Suffrage == raft.Voter
		}
	}
	return true
}

// AppendEntries implements raft.Transport. Every heartbeat of a leader comes
// this way, and its answer carries the end of the peer's log.
func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if t.stalled() {
		return errStalled
	}
	if isHeartbeat(args) {
		t.holdBack(id)
	}
	err := t.NetworkTransport.AppendEntries(id, target, args, resp)
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[id]
	if err != nil {
		p.failedAt = now
	} else {
		p = peerState{lastLog: resp.LastLog, term: resp.Term, heardAt: now, sent: p.sent}
		if resp.Success && !isHeartbeat(args) {
			p.sent = following(args)
		}
	}
	t.peers[id] = p
	return err
}

// AppendEntriesPipeline implements raft.Transport.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	if t.stalled() {
		return nil, errStalled
	}
	inner, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := newPipeline(inner, t, t.peers[id].sent)
	t.pipelines[p] = struct{}{}
	return p, nil
}

// peer returns what is known of a server.
func (t *transport) peer(id raft.ServerID) peerState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.peers[id]
}

// forget drops what is known of a server that was removed.
func (t *transport) forget(id raft.ServerID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.peers, id)
}

// Close implements raft.WithClose. It may be called again.
func (t *transport) Close() error {
	t.stopOnce.Do(func() { close(t.stop) })
	<-t.done
	err := t.NetworkTransport.Close()
	t.CloseStreams()
	if closed := t.stream.Close(); err == nil {
		err = closed
	}
	return err
}
