// Package daemon is the storage-node process: the role of package storage as a
// member of a cluster.
//
//	New:   member (data directory, raft non-voter, RPC port) ──> role, added to the RPC server ──> bus
//	Run:   1 member (RPC, join, registration, heartbeats)   2 role   3 notice of a decommission
//	       4 bus, which tells the role of purges, and the notice of a decommission
//	stop:  bus; role's loops first, while RPC still answers and acks still count; then
//	       RPC; Close then saves every position and gives the directory back
//
// Invariant: nothing is saved for the last time before the last request has
// ended. It decides nothing itself; the end-to-end tests run it.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/topicmetrics"
	"github.com/narad-mq/narad/apps/storage-node/storage"
	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Daemon is one storage-node process.
type Daemon struct {
	log    *slog.Logger
	member *member.Member
	role   *storage.Role
	drain  *drainer
	bus    *bus.Bus // nil: off
}

// Config is everything that a storage node needs to know.
type Config struct {
	Member member.Config
	Bus    bus.Settings
}

// Configure turns the settings of the program into a Config, or says which setting
// refuses to start (proc.ErrUsage).
func Configure(common proc.Common) (Config, error) {
	if len(common.Join) == 0 {
		return Config{}, proc.Usagef("give --join: a storage node never forms a cluster")
	}
	return Config{Member: member.FromCommon(common, topic.RoleStorage), Bus: common.Bus}, nil
}

// New opens and recovers; it starts nothing but Raft.
func New(cfg Config, log *slog.Logger, registry prometheus.Registerer) (*Daemon, error) {
	fs, dir := vfs.OS(), cfg.Member.DataDir
	var opened atomic.Pointer[storage.Role]
	var notes lostNotes
	m, err := member.Open(cfg.Member, member.Deps{
		Log: log, Registry: registry,
		Load: func() (int64, int) { return 0, vfs.UsedPercent(fs, dir) },
		Lost: func() *metaapi.LostCopies {
			if r := opened.Load(); r != nil && r.LookedForLost() {
				return notes.tell(r.LostCopies(), time.Now())
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	role, err := storage.New(
		storage.Config{NodeID: cfg.Member.NodeID, DiskID: m.DiskID(), DataDir: dir},
		storage.Deps{
			View: unlessRemoved{m.View(), m.Removed}, Confirm: confirm(m), Gateways: gateways(m), FS: fs, Log: log, Registry: registry,
			BootNonce: m.BootNonce(), Peers: peers(m), Elections: m.Leader(),
			Holders: holders(m), Candidates: candidates(m), Leaders: leaders(m),
			ConfirmAttached: func(ctx context.Context, epochs []topic.ID64) (map[topic.ID64]metaapi.Verdict, error) {
				return metaapi.ConfirmAttachments(ctx, m.Leader(), epochs)
			},
		})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	opened.Store(role)
	drain, err := newDrainer(m, log, registry)
	if err != nil {
		return nil, errors.Join(err, role.Close(), m.Close())
	}
	// Anybody may have said it: the metastore leader is asked before anything is done.
	b, err := bus.New(bus.Config{
		Settings: cfg.Bus, NodeID: cfg.Member.NodeID, Replica: m.View(), Log: log, Registry: registry,
		TopicPurged: role.Purge, MemberDraining: drain.heard.MemberDraining,
	})
	if err != nil {
		return nil, errors.Join(err, role.Close(), m.Close())
	}
	nodeapi.Serve(m.Server(), role.Node())
	nodeapi.ServeFanout(m.Server(), role.Fanout())
	nodeapi.ServeReplica(m.Server(), role.Replica())
	nodeapi.ServeCandidate(m.Server(), role.Replica())
	return &Daemon{log: log, member: m, role: role, drain: drain, bus: b}, nil
}

// confirm asks the Raft leader about incarnations. Anything but an answer is an
// error, and no verdict.
func confirm(m *member.Member) func(context.Context, []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
	return func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
		return metaapi.ConfirmIncarnations(ctx, m.Leader(), ids)
	}
}

// holders asks the Raft leader who holds partitions.
func holders(m *member.Member) func(context.Context, []topic.Ref) (map[topic.Ref]metaapi.Holding, error) {
	return func(ctx context.Context, refs []topic.Ref) (map[topic.Ref]metaapi.Holding, error) {
		return metaapi.ConfirmPartitions(ctx, m.Leader(), refs)
	}
}

// candidates finds the client of another storage node by its member record.
func candidates(m *member.Member) func(string) (nodeapi.Candidate, error) {
	return func(id string) (nodeapi.Candidate, error) {
		rec := m.View().Members().ByID[id]
		if rec == nil || rec.Role != topic.RoleStorage {
			return nil, fmt.Errorf("ask %s: it is no storage node of record", id)
		}
		return nodeapi.NewReplicaClient(m.Client().Peer(id, rec.RPCAddr)), nil
	}
}

// peers finds the client of another storage node by its member record.
func peers(m *member.Member) func(string) (nodeapi.Replica, error) {
	return func(id string) (nodeapi.Replica, error) {
		rec := m.View().Members().ByID[id]
		if rec == nil || rec.Role != topic.RoleStorage {
			return nil, fmt.Errorf("fetch from %s: it is no storage node of record", id)
		}
		return nodeapi.NewReplicaClient(m.Client().Peer(id, rec.RPCAddr)), nil
	}
}

// leaders finds the client of another storage node, to commit to what it leads.
func leaders(m *member.Member) func(string) (nodeapi.Node, error) {
	return func(id string) (nodeapi.Node, error) {
		rec := m.View().Members().ByID[id]
		if rec == nil || rec.Role != topic.RoleStorage {
			return nil, fmt.Errorf("commit at %s: it is no storage node of record", id)
		}
		return nodeapi.NewClient(m.Client().Peer(id, rec.RPCAddr)), nil
	}
}

// gateways finds the client of a gateway by its member record.
func gateways(m *member.Member) func(string) (gatewayapi.Gateway, error) {
	return func(id string) (gatewayapi.Gateway, error) {
		rec := m.View().Members().ByID[id]
		if rec == nil || rec.Role != topic.RoleGateway {
			return nil, fmt.Errorf("wake %s: it is no gateway of record", id)
		}
		return gatewayapi.NewClient(m.Client().Peer(id, rec.RPCAddr)), nil
	}
}

// Run does the work until ctx ends, and returns nil after an ordered stop, else
// the first cause.
func (d *Daemon) Run(ctx context.Context) error {
	var g proc.Group
	g.Add("member", d.member.Run)
	g.Add("storage", func(ctx context.Context) error {
		err := d.role.Run(ctx)
		d.member.Stopping()
		return err
	})
	g.Add("decommission", d.drain.Run)
	g.Add("bus", d.bus.Run)
	return g.Run(ctx, d.log)
}

// Close saves what partitions hold, ends Raft and gives the data directory back.
func (d *Daemon) Close() error {
	begin := time.Now()
	if err := errors.Join(d.role.Close(), d.member.Close()); err != nil {
		return fmt.Errorf("close storage node: %w", err)
	}
	d.log.Info("storage node closed", "took", time.Since(begin))
	return nil
}

// Source is what the node shows on its operator port, the page of series per
// topic only if asked.
func (d *Daemon) Source(topicMetrics bool) *ops.Source {
	source := &ops.Source{
		Quorum: d.member.OwnQuorum,
		Ready: func() (reasons, degraded []ops.Reason) {
			if err := d.role.Degraded(); err != nil {
				degraded = append(degraded, ops.Reason{Code: ops.ReasonDiskFull, Detail: err.Error()})
			}
			if d.drain.draining.Load() {
				// Ready all the same: it serves what it holds, and one that is not ready
				// would be counted as down by rollouts and disruption budgets.
				degraded = append(degraded, ops.Reason{Code: ops.ReasonDraining, Detail: "the storage node is being decommissioned"})
			}
			reasons = d.member.Ready()
			if d.role.CatchingUp() {
				reasons = append(reasons, ops.Reason{Code: ops.ReasonReplicasCatchingUp, Detail: "copies of replicated partitions are fetching what they missed"})
			}
			return reasons, degraded
		},
	}
	if topicMetrics {
		source.TopicMetrics = topicmetrics.Handler(d.member.NodeID(), d.member.View(), d.role.Node())
	}
	return source
}
