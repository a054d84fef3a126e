package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/gossip"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// ErrSuperseded: another process registered under this identity. This one must
// stop serving and exit non-zero.
var ErrSuperseded = errors.New("another process registered under this node id")

// Member is one process of a cluster. Safe for concurrent use.
type Member struct {
	cfg    Config
	log    *slog.Logger
	load   func() (int64, int)
	lost   func() *metaapi.LostCopies
	dir    *directory // only watchReplica changes its identity, and only the cluster id
	nonce  topic.ID64
	tls    *tlsconf.Source // nil: plaintext
	gossip *gossip.Gossip  // nil: none
	raft   *raftnode.Node
	ln     net.Listener
	server *rpc.Server
	client *rpc.Client
	leader *metaapi.Leader

	addr     string                 // advertised RPC address
	cluster  atomic.Pointer[string] // a copy of what the directory remembers
	suspects *gossip.Suspects
	running  atomic.Bool
	stopping atomic.Bool
	removed  atomic.Bool               // the leader said that this node was decommissioned
	beatSoon chan struct{}             // asks the registration loop for a heartbeat
	lostAt   atomic.Pointer[time.Time] // since when no leader is in view; nil: one is. A time.Time, because wall clocks step

	closeOnce sync.Once
	closeErr  error
}

// Open takes the data directory, recovers the metastore replica and binds the
// ports. Nothing is answered before Run. Errors wrap ErrWrongIdentity,
// ErrDamagedIdentity or those of raftnode.Open where the directory must not be
// used, and proc.ErrUsage where the TLS files must not.
func Open(cfg Config, deps Deps) (_ *Member, err error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.FS == nil {
		deps.FS = vfs.OS()
	}
	if deps.Load == nil {
		deps.Load = func() (int64, int) { return 0, 0 }
	}
	if deps.Lost == nil {
		deps.Lost = func() *metaapi.LostCopies { return nil }
	}
	m := &Member{cfg: cfg, log: deps.Log, load: deps.Load, lost: deps.Lost, suspects: gossip.NewSuspects(), beatSoon: make(chan struct{}, 1)}
	begin := time.Now()
	m.lostAt.Store(&begin)
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if err := m.openTLS(deps.Registry); err != nil {
		return nil, err
	}
	if m.nonce, err = newID(); err != nil {
		return nil, err
	}
	if m.dir, err = openDirectory(deps.FS, cfg.DataDir, cfg.NodeID, cfg.Role); err != nil {
		return nil, err
	}
	cluster := m.dir.id.ClusterID
	m.cluster.Store(&cluster)
	if err := m.openRaft(); err != nil {
		return nil, err
	}
	if err := m.openRPC(); err != nil {
		return nil, err
	}
	if err := m.openGossip(deps.Registry); err != nil {
		return nil, err
	}
	return m, m.registerMetrics(deps.Registry)
}

func (m *Member) openTLS(registry prometheus.Registerer) error {
	var err error
	m.tls, err = tlsconf.Load(tlsconf.Config{
		Files: m.cfg.TLS, Plane: "nodes", Host: m.cfg.Advertise, Log: m.log, Registry: registry,
	})
	if err != nil {
		return proc.Usagef("TLS between nodes: %v", err)
	}
	return nil
}

func (m *Member) openRaft() error {
	_, port, err := net.SplitHostPort(m.cfg.RaftBind)
	if err != nil {
		return fmt.Errorf("raft address %q: %w", m.cfg.RaftBind, err)
	}
	advertise := net.JoinHostPort(m.cfg.Advertise, port)
	if port == "0" {
		advertise = "" // the port is known only after binding, which tests do on loopback
	}
	m.raft, err = raftnode.Open(raftnode.Config{
		NodeID: m.cfg.NodeID, BootNonce: m.nonce, Dir: filepath.Join(m.cfg.DataDir, raftDir),
		Bind: m.cfg.RaftBind, Advertise: advertise, Gated: true,
		Voter: m.cfg.Role == topic.RoleVoter, NeverVotes: m.cfg.Role != topic.RoleVoter, // a leader promotes voters only
		Plane:  raftnode.Plane{Listen: m.tls.Listen, Dial: m.tls.Dial((&net.Dialer{}).DialContext)},
		Logger: m.log, Timing: m.cfg.Raft,
	})
	return err
}

func (m *Member) openRPC() error {
	ln, err := net.Listen("tcp", m.cfg.RPCBind)
	if err != nil {
		return fmt.Errorf("listen for node rpc: %w", err)
	}
	m.ln, m.addr = m.tls.Listen(ln), proc.AdvertiseAddr(m.cfg.Advertise, ln.Addr())
	m.server = rpc.NewServer(rpc.ServerConfig{NodeID: m.cfg.NodeID, ClusterID: m.ClusterID, Log: m.log})
	metaapi.ServeRaftStatus(m.server, m.raftStatus)
	m.client = rpc.NewClient(rpc.ClientConfig{NodeID: m.cfg.NodeID, ClusterID: m.ClusterID, Dial: m.tls.Dial(rpc.Dial)})
	m.leader = metaapi.NewLeader(metaapi.LeaderConfig{RPC: m.client, Hint: m.LeaderAddr, Voters: m.voterAddrs})
	return nil
}

// Run serves node RPC, forms or joins the cluster, registers this start and
// sends heartbeats, until ctx ends; then it returns nil. It returns an error
// when the process must exit: ErrSuperseded, an error of the replica, or of the
// data directory.
func (m *Member) Run(ctx context.Context) error {
	m.running.Store(true)
	var g proc.Group
	g.Add("certificates", m.tls.Run)
	if m.gossip != nil {
		g.Add("gossip", m.runGossip)
	}
	g.Add("node rpc", m.serve)
	g.Add("replica", m.watchReplica)
	g.Add("join", m.joinLoop)
	g.Add("registration", m.registerLoop)
	err := g.Run(ctx, m.log)
	m.stopping.Store(true)
	return err
}

// Removed tells that a metastore leader refused this node as decommissioned since
// its start: nothing that its replica shows holds any more, and nothing is to be
// served by it. It becomes a member again only with an empty data directory.
func (m *Member) Removed() bool { return m.removed.Load() }

// refusedFor notes what a leader's refusal means for this process.
func (m *Member) refusedFor(err error) {
	if problem.HasCode(err, problem.Decommissioned) && m.removed.CompareAndSwap(false, true) {
		m.log.Error("this node was decommissioned: it serves nothing any more; stop it, and give it an empty data directory if it is to come back")
	}
}

// Stopping tells readiness that the process is on its way out.
func (m *Member) Stopping() { m.stopping.Store(true) }

// Close ends what Open began; the process's locks and files are free then. It
// may be called after a failed Open and more than once.
func (m *Member) Close() error {
	m.closeOnce.Do(func() { m.closeErr = m.close() })
	return m.closeErr
}

func (m *Member) close() error {
	var errs []error
	if m.gossip != nil {
		m.gossip.Close()
	}
	if m.ln != nil {
		// The server closes the listener as well, when it has served it.
		for _, err := range []error{m.server.Close(), m.ln.Close()} {
			if !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
		m.client.Close()
	}
	if m.raft != nil {
		errs = append(errs, m.raft.Close())
	}
	if m.dir != nil {
		errs = append(errs, m.dir.close())
	}
	return errors.Join(errs...)
}

// serve answers calls until ctx ends, and then lets those that run end.
func (m *Member) serve(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- m.server.Serve(m.ln) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Timing.StopWait)
	defer cancel()
	if err := m.server.Shutdown(wait); err != nil {
		m.log.Warn("node rpc: calls were cut off", "after", m.cfg.Timing.StopWait)
		if err := m.server.Close(); err != nil {
			return err
		}
	}
	return <-done
}

// watchReplica stores the cluster id once it is known, and ends the process
// when the replica cannot go on or another process took the identity.
func (m *Member) watchReplica(ctx context.Context) error {
	registered := false
	for {
		changed := m.View().Changed()
		if id := m.View().ClusterID(); id != "" {
			if err := m.dir.setCluster(id); err != nil {
				return err
			}
			m.cluster.Store(&id)
		}
		self := m.View().Members().ByID[m.cfg.NodeID]
		switch {
		case self == nil:
		case self.BootNonce == 0: // the cluster was founded anew: this start registers again
		case self.BootNonce == m.nonce:
			registered = true
		case registered:
			return fmt.Errorf("%w: %s at %s", ErrSuperseded, self.ID, self.RPCAddr)
		}
		select {
		case <-changed:
		case <-m.raft.Done():
			return m.raft.Err()
		case <-ctx.Done():
			return nil
		}
	}
}

// View is the node's metastore replica.
func (m *Member) View() metastate.View { return m.raft.View() }

// Raft is the node's Raft.
func (m *Member) Raft() *raftnode.Node { return m.raft }

// Leader is the metastore leader, wherever it is.
func (m *Member) Leader() *metaapi.Leader { return m.leader }

// Server is the node RPC server, for a role to add its operations before Run.
func (m *Member) Server() *rpc.Server { return m.server }

// Client is the node RPC client, for a role to reach its peers.
func (m *Member) Client() *rpc.Client { return m.client }

// RPCAddr is the address at which others reach this node's RPC.
func (m *Member) RPCAddr() string { return m.addr }

// NodeID is the member's id.
func (m *Member) NodeID() string { return m.cfg.NodeID }

// DiskID is the random id of the data directory.
func (m *Member) DiskID() topic.ID64 { return m.dir.id.DiskID }

// BootNonce is the random id of this process start.
func (m *Member) BootNonce() topic.ID64 { return m.nonce }

// ClusterID is "" until it was applied here, now or before a restart.
func (m *Member) ClusterID() string { return *m.cluster.Load() }

// LeaderAddr is the RPC address of the leader that the node's own Raft sees, or "".
func (m *Member) LeaderAddr() string {
	if m.raft.IsLeader() {
		return m.addr
	}
	id, _ := m.raft.Leader()
	if rec := m.View().Members().ByID[id]; rec != nil {
		return rec.RPCAddr
	}
	return ""
}

// LeaderLost is since when this node has seen no leader; zero while it sees one.
func (m *Member) LeaderLost() time.Time {
	if at := m.lostAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// voterAddrs is whom to ask for the leader: the configured peers, then the
// voters of record.
func (m *Member) voterAddrs() []string {
	out := append([]string(nil), m.cfg.Join...)
	for _, rec := range m.View().Members().ByID {
		if rec.Role == topic.RoleVoter {
			out = append(out, rec.RPCAddr)
		}
	}
	return out
}
