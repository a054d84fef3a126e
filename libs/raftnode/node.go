package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/narad-mq/narad/libs/metastate"
)

// Node is one running Raft node with its metastore replica. Its methods are safe
// for concurrent use.
type Node struct {
	cfg     Config
	stores  *stores
	logs    *logStore
	fsm     *fsm
	replica *replica
	trans   *transport
	calls   calls // to Raft, that it has not answered yet
	lead    *leadership
	room    *room

	unspread atomic.Bool  // a change was committed that followers may not have been told of
	backups  atomic.Int32 // that stream now

	startMu  sync.Mutex // guards what follows: Raft starts at Open or at Admit, and never after Close
	serverID string     // Raft server id; valid once Raft runs
	closing  bool

	life      context.Context // of the tasks
	stopWatch context.CancelFunc
	tasks     sync.WaitGroup // of goroutines that end with the node

	failOnce sync.Once
	failed   chan struct{} // closed when the node stopped for good
	failure  error         // written once, before failed is closed

	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// Open recovers a node from its directory and starts Raft, unless the node is
// gated (see gate.go). It listens at once; a node without a Raft configuration
// stays passive until Bootstrap, or until a leader adds it. Errors wrap ErrLogGap, ErrDamagedLog or ErrDamagedState when
// the directory must not be started from.
func Open(cfg Config) (*Node, error) { return open(cfg, hooks{}) }

// hooks let tests hold a node at the moments that the caught-up rules are about.
type hooks struct {
	beforeApply func(first uint64) // before the batch that begins at this index is applied
	beforeRPC   func(raft.RPC)     // before Raft gets an RPC that is no heartbeat
	logFault    func() error       // what a write of the log answers
	stateFault  func() error       // what a write of the state answers
	syncFault   func() error       // what a sync of the state answers that no transaction waits for
	roomPause   time.Duration      // 0: roomPause
}

func open(cfg Config, h hooks) (*Node, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, lead: newLeadership(), calls: calls{empty: make(chan struct{})},
		failed: make(chan struct{}), closed: make(chan struct{}),
	}
	pick(&h.roomPause, roomPause)
	n.room = &room{closing: n.closed, pause: h.roomPause}
	s, err := openStores(&n.cfg, n.room, n.fail)
	if err != nil {
		return nil, err
	}
	n.stores, n.logs = s, s.logs
	s.failed = func() bool { return n.Err() != nil }
	s.logs.applied = s.state.applied
	s.logs.fault, s.state.fault = h.logFault, h.stateFault
	if s.state.unsynced != nil {
		s.state.unsynced.fault = h.syncFault
	}
	if n.replica, err = newReplica(cfg.NodeID, cfg.BootNonce, s.state); err != nil {
		return nil, errors.Join(err, s.close())
	}
	n.fsm = newFSM(s.state, n.replica, n.room, s.applied, n.fail)
	n.fsm.beforeApply = h.beforeApply
	n.fsm.configuration.Store(s.configuration)
	stream, err := listenStream(s.cluster, &n.cfg)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	n.trans = newTransport(stream, n.cfg.Timing.Transport, newHCLog(n.cfg.Logger), h.beforeRPC)
	n.trans.gated.Store(s.gated)
	n.life, n.stopWatch = context.WithCancel(context.Background())
	n.tasks.Go(func() { n.watchCluster(n.life) })
	if err := n.begin(); err != nil {
		n.stopWatch()
		n.tasks.Wait()
		return nil, errors.Join(err, n.trans.Close(), s.close())
	}
	return n, nil
}

// begin starts Raft where nothing keeps it from taking part.
func (n *Node) begin() error {
	if n.Gated() {
		return nil
	}
	id, err := n.stores.serverID(n.cfg.NodeID)
	if err != nil {
		return err
	}
	n.startMu.Lock()
	defer n.startMu.Unlock()
	return n.startRaftLocked(id)
}

func (n *Node) startRaftLocked(serverID string) error {
	cache, err := raft.NewLogCache(logCacheEntries, n.logs)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	ctx, notify := n.life, make(chan bool, 1)
	n.trans.beat = n.cfg.Timing.Heartbeat
	n.trans.stalled = func() bool { return n.logs.stalledFor() >= stallHandOff }
	n.logs.leading = func() bool {
		r := n.trans.running.Load()
		return r == nil || r.State() == raft.Leader
	}
	r, err := raft.NewRaft(n.raftConfig(serverID, notify), n.fsm, cache, n.logs, n.stores.snaps, n.trans)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	n.serverID = serverID
	n.trans.running.Store(r)
	n.trans.gated.Store(false)
	n.tasks.Go(func() { n.lead.watch(ctx, notify) })
	n.tasks.Go(func() { n.watchLatch(ctx) })
	if n.cfg.Voter {
		n.tasks.Go(func() { n.watchStall(ctx) })
		n.tasks.Go(func() { n.watchRoom(ctx) })
	}
	return nil
}

func (n *Node) raftConfig(serverID string, notify chan<- bool) *raft.Config {
	t := n.cfg.Timing
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(serverID)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = t.Heartbeat, t.Election, t.LeaderLease
	if !n.cfg.Voter {
		c.HeartbeatTimeout, c.ElectionTimeout = nonvoterPatience*t.Heartbeat, nonvoterPatience*t.Election
	}
	c.CommitTimeout = t.Commit
	c.MaxAppendEntries, c.BatchApplyCh = t.MaxAppendEntries, true
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = t.SnapshotInterval, t.SnapshotThreshold, t.TrailingLogs
	c.ShutdownOnRemove = false        // a removed member keeps its replica until an operator acts
	c.NoSnapshotRestoreOnStart = true // openStores has done it, by its own rules
	c.NoLegacyTelemetry = true
	c.NotifyCh = notify
	c.Logger = newHCLog(n.cfg.Logger)
	return c
}

// watchCluster tells the stream layer the cluster's id as soon as it was applied.
func (n *Node) watchCluster(ctx context.Context) {
	for {
		changed := n.replica.Changed()
		if id := n.replica.ClusterID(); id != "" {
			n.trans.stream.learn(id)
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// fail stops the node for good; the first cause stays.
func (n *Node) fail(err error) {
	n.failOnce.Do(func() {
		n.failure = err
		close(n.failed)
	})
}

// Done is closed when the node has stopped applying for good: the process must
// exit non-zero. Err has the cause. Close alone does not close it.
func (n *Node) Done() <-chan struct{} { return n.failed }

// Err returns why Done was closed, or nil.
func (n *Node) Err() error {
	select {
	case <-n.failed:
		return n.failure
	default:
		return nil
	}
}

// View returns the node's replica as roles read it.
func (n *Node) View() metastate.View { return n.replica }

// Read runs fn over the applied state at one moment: for what View does not
// have, such as stamps of heartbeats, tombstones and answers behind a barrier.
// It is not gated by the latch.
func (n *Node) Read(fn func(metastate.Reader) error) error {
	return n.stores.state.read(func(tx stateTx) error { return fn(tx) })
}

// Applied is the index up to which every entry has taken effect here.
func (n *Node) Applied() uint64 { return n.fsm.covered.Load() }

// WaitApplied returns when everything up to index has taken effect in View and
// Read, or with the context's error, ErrApplyStopped or ErrClosed.
func (n *Node) WaitApplied(ctx context.Context, index uint64) error {
	for {
		grown := n.fsm.waiter()
		if n.Applied() >= index {
			return nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return fmt.Errorf("wait for raft index %d, at %d: %w", index, n.Applied(), ctx.Err())
		case <-n.failed:
			return n.failure
		case <-n.closed:
			return ErrClosed
		}
	}
}

// Addr is the address at which others reach this node's Raft.
func (n *Node) Addr() string { return n.trans.stream.advertise }

// Snapshot takes a snapshot now. Raft does it by itself as well.
func (n *Node) Snapshot() error {
	if n.raft() == nil {
		return fmt.Errorf("take snapshot: %w", errGated)
	}
	if err := n.raft().Snapshot().Error(); err != nil {
		return fmt.Errorf("take snapshot: %w", err)
	}
	return nil
}

// Close ends leaderships, lets calls under way have their answers for at most
// closeDrain, stops Raft and closes the files. It hands no leadership over: call
// TransferLeadership first for that. It may be called again.
func (n *Node) Close() error {
	n.closeOnce.Do(func() {
		n.startMu.Lock()
		n.closing = true
		n.startMu.Unlock()
		n.stopWatch()
		n.calls.drain()
		close(n.closed)
		var stopped raft.Future
		if r := n.raft(); r != nil {
			stopped = r.Shutdown()
		}
		// Before waiting: calls to a silent peer would hold Raft up to the transport timeout.
		n.closeErr = n.trans.Close()
		if stopped != nil {
			n.closeErr = errors.Join(stopped.Error(), n.closeErr)
		}
		n.tasks.Wait()
		n.closeErr = errors.Join(n.closeErr, n.stores.close())
	})
	return n.closeErr
}
