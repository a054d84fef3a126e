// Package storage is the storage-node role: partitions of topics on local disks,
// committed, leased and replayed.
//
//	New    1 topic directories   2 node (metrics, cache, wake-ups)   -- starts nothing
//	Run    3 lease deadlines, positions, metastore replica, retention, until ctx ends
//	                                                                 or the disk fails
//	Close  4 wake-ups end   5 partitions: sync, save positions, close files
//
// Invariant: what Commit answered success for, and what a graceful stop found
// settled, is on this disk. Everything else of the promise stands in the
// packages below: internal/node (who is served), internal/partition (commit),
// internal/queue (leases). The role knows no network, no flags and no Raft: its
// program gives it a metastore view and serves Node over node RPC.
package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/fanout"
	"github.com/narad-mq/narad/apps/storage-node/internal/node"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
	"github.com/narad-mq/narad/libs/vfs"
)

// Defaults of Config.
const (
	// DefaultCacheBytes: decoded batches for consumers that take record by
	// record; a batch of each of some hundred busy partitions.
	DefaultCacheBytes = 64 << 20
	// DefaultRetentionEvery: retention is coarse (whole segments), so that a
	// pass is a matter of disk space, not of precision.
	DefaultRetentionEvery = 30 * time.Second
	// DefaultSweepEvery: what a purge missed lies there a minute longer, and a pass
	// over 10,000 directories costs a fraction of a second.
	DefaultSweepEvery = time.Minute
)

// Config says which node this is. Zero values of the optional fields mean the
// default.
type Config struct {
	NodeID  string
	DiskID  topic.ID64 // identity of the data directory
	DataDir string     // holds topics/ and staging/; made by whoever made the identity

	CacheBytes     int           // optional, bytes of decoded batches
	SegmentBytes   int64         // optional, bytes of one log segment
	FillAhead      int64         // optional, zero bytes written ahead of a log's end; 0: none
	RetentionEvery time.Duration // optional
	SweepEvery     time.Duration // optional
	ReconcileWait  time.Duration // optional
}

// Deps is what the role stands on.
type Deps struct {
	View metastate.View
	// Confirm asks the Raft leader whether incarnations are really gone. What is
	// missing in the answer is unknown.
	Confirm func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error)
	// Gateways gives the client of a gateway by its node id, to wake it.
	Gateways func(id string) (gatewayapi.Gateway, error)

	// BootNonce is of this process's registration; Peers finds another storage node
	// by its id; Elections is the metastore leader. Without Elections the node has
	// no replicated partitions.
	BootNonce topic.ID64
	Peers     func(node string) (nodeapi.Replica, error)
	Elections metaapi.Elections

	// Holders asks the Raft leader who holds partitions, and Candidates finds another
	// storage node by its id; without them copies that moved away stay on the disk.
	Holders    func(ctx context.Context, refs []topic.Ref) (map[topic.Ref]metaapi.Holding, error)
	Candidates func(node string) (nodeapi.Candidate, error)

	// ConfirmAttached is Confirm for attach epochs, and Leaders finds another storage
	// node by its id: both for children of topics. nil: nothing is confirmed, and
	// only what this node leads itself gets copies.
	ConfirmAttached func(ctx context.Context, epochs []topic.ID64) (map[topic.ID64]metaapi.Verdict, error)
	Leaders         func(node string) (nodeapi.Node, error)

	FS       vfs.FS                // nil: the machine's
	Log      *slog.Logger          // nil: discards
	Registry prometheus.Registerer // nil: one that nobody reads
	Now      func() time.Time      // the wall clock; nil: time.Now
	Random   func([]byte)          // nil: crypto/rand; fills with unguessable bytes
	// Hold is for tests only: it is called at moments at which something was read or
	// decided and is not stored yet ("rebuild", "reserve", "read", "ack_flush",
	// "position_write"), and may block there while a purge runs.
	Hold func(point string, ref topic.Ref)
}

// Role is a storage node.
type Role struct {
	node *node.Node
	log  *slog.Logger
}

// New opens the data directory. It starts nothing: Node serves from now on, as
// soon as the view is latched, but deadlines and positions need Run.
func New(cfg Config, deps Deps) (*Role, error) {
	if cfg.NodeID == "" || cfg.DiskID == 0 || cfg.DataDir == "" {
		return nil, errors.New("storage node: node id, disk id and data directory are needed")
	}
	if deps.View == nil || deps.Confirm == nil || deps.Gateways == nil {
		return nil, errors.New("storage node: a metastore view, confirm and gateways are needed")
	}
	deps = deps.withDefaults()
	dirs, err := topicdir.New(deps.FS, cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("open the topic directories: %w", err)
	}
	n, err := node.New(node.Config{
		ID: cfg.NodeID, DiskID: cfg.DiskID, DataDir: cfg.DataDir,
		CacheBytes:     orDefault(cfg.CacheBytes, DefaultCacheBytes),
		RetentionEvery: orDefault(cfg.RetentionEvery, DefaultRetentionEvery),
		SweepEvery:     orDefault(cfg.SweepEvery, DefaultSweepEvery),
		ReconcileWait:  orDefault(cfg.ReconcileWait, lifecycle.ReconcileWait),
		LogOptions:     partlog.Options{SegmentBytes: cfg.SegmentBytes, FillAhead: cfg.FillAhead},
		View:           deps.View, FS: deps.FS, Dirs: dirs, Confirm: deps.Confirm, Log: deps.Log, Registry: deps.Registry,
		Gateways: deps.Gateways, Now: deps.Now, Random: deps.Random, Hold: deps.Hold,
		BootNonce: deps.BootNonce, Peers: deps.Peers, Elections: deps.Elections,
		Holders: deps.Holders, Candidates: deps.Candidates,
		ConfirmAttached: deps.ConfirmAttached, Leaders: func(id string) (fanout.Committer, error) { return deps.Leaders(id) },
	})
	if err != nil {
		return nil, fmt.Errorf("make the storage node: %w", err)
	}
	return &Role{node: n, log: deps.Log}, nil
}

func orDefault[T int | time.Duration](v, def T) T {
	if v > 0 {
		return v
	}
	return def
}

func (d Deps) withDefaults() Deps {
	if d.FS == nil {
		d.FS = vfs.OS()
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.ConfirmAttached == nil {
		d.ConfirmAttached = func(context.Context, []topic.ID64) (map[topic.ID64]metaapi.Verdict, error) { return nil, nil }
	}
	if d.Leaders == nil {
		d.Leaders = func(id string) (nodeapi.Node, error) {
			return nil, fmt.Errorf("reach storage node %s: there is no way", id)
		}
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Random == nil {
		d.Random = func(b []byte) { _, _ = rand.Read(b) } // never fails (crypto/rand)
	}
	return d
}

// Node is what the role does for others.
func (r *Role) Node() nodeapi.Node { return r.node }

// Replica is what the role does for other replicas and for elections.
func (r *Role) Replica() interface {
	nodeapi.Replica
	nodeapi.Candidate
} {
	return r.node
}

// Fanout is what the role tells about children of topics.
func (r *Role) Fanout() nodeapi.Fanout { return r.node }

// CatchingUp tells whether copies of replicated partitions have not had everything
// committed yet since the start: another node should not be taken down now.
func (r *Role) CatchingUp() bool { return r.node.CatchingUp() }

// Purge says that a life of a topic may have ended; anybody may say it. The node asks
// the metastore leader if it has anything of that life. It never waits.
func (r *Role) Purge(name string, id topic.Incarnation) { r.node.Purge(name, id) }

// LostCopies lists, by name, the partitions whose only copy is recorded to be on this disk
// and is not there.
func (r *Role) LostCopies() []topic.Ref { return r.node.LostCopies() }

// LookedForLost tells that LostCopies is whole: all were looked for since the start.
func (r *Role) LookedForLost() bool { return r.node.LookedForLost() }

// Degraded tells what an operator should know although the node is ready: nil,
// or a sentence.
func (r *Role) Degraded() error {
	if r.node.DiskFull() {
		return errors.New("the data disk is full: commits are refused")
	}
	if n := r.node.Lost(); n > 0 {
		return fmt.Errorf("%d partitions are lost: their only copies are recorded to be on this disk and are not there", n)
	}
	if n := r.node.Refused(); n > 0 {
		return fmt.Errorf("%d topic directories belong to deleted topics: too many to remove them unasked", n)
	}
	return nil
}

// Run works until ctx ends and returns nil, or until a local disk fails and
// returns why: then the process should end, because only a new start recovers
// what the disk holds.
func (r *Role) Run(ctx context.Context) error {
	if err := r.node.Run(ctx); err != nil {
		return fmt.Errorf("storage node: %w", err)
	}
	return nil
}

// Close ends every partition in order; call it after Run has returned and the
// requests have ended.
func (r *Role) Close() error {
	began := time.Now()
	err := r.node.Close()
	r.log.Info("partitions closed", "seconds", time.Since(began).Seconds(), "clean", err == nil)
	return err
}
