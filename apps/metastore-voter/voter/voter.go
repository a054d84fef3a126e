// Package voter is the metastore-voter role: a Raft voter of the metadata, and,
// on whichever voter leads, the controller.
//
//	New:   member (data directory, raft, RPC port) ──> controller, added to the RPC server
//	Run:   1 member (RPC, form or join, registration)   2 controller
//	stop:  controller first, which hands leadership over while RPC still answers, then member
//
// It keeps nothing of its own: what is on disk belongs to package member and to
// raftnode below it. It carries no message and serves no client.
// TestThreeVotersAndTwoNonVoters shows a cluster's life.
package voter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/controller"
	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/vfs"
)

// Timing holds the controller's constants, for tests to shorten.
type Timing = controller.Timing

// Config is everything that a voter needs to know.
type Config struct {
	Member     member.Config
	Bus        bus.Settings
	Controller Timing
}

// Deps is what a voter is given.
type Deps struct {
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: no metrics
}

// Voter is one metastore voter.
type Voter struct {
	log        *slog.Logger
	member     *member.Member
	bus        *bus.Bus // nil: off
	controller *controller.Controller
}

// New opens and recovers a voter; it starts nothing but Raft. Errors are those
// of member.Open.
func New(cfg Config, deps Deps) (*Voter, error) {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	m, err := member.Open(cfg.Member, member.Deps{
		Log: deps.Log, Registry: deps.Registry,
		Load: func() (int64, int) { return 0, vfs.UsedPercent(vfs.OS(), cfg.Member.DataDir) },
	})
	if err != nil {
		return nil, err
	}
	// It tells and does not listen: a voter holds nothing that is purged, and one that
	// drains has nothing to do at once. The one that leads knows, because it made the mark.
	b, err := bus.New(bus.Config{Settings: cfg.Bus, NodeID: cfg.Member.NodeID, Replica: m.View(), Log: deps.Log, Registry: deps.Registry})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	c, err := controller.New(controller.Config{
		NodeID: cfg.Member.NodeID, Raft: m.Raft(), LeaderAddr: m.LeaderAddr, Quorum: m.Quorum,
		Nodes:   &election.Wire{View: m.View(), RPC: m.Client()},
		Gateway: func(id, addr string) gatewayapi.Drain { return gatewayapi.NewClient(m.Client().Peer(id, addr)) },
		Told:    b.MemberDraining,
		Marks:   marks(m),
		Log:     deps.Log, Registry: deps.Registry, Timing: cfg.Controller,
	})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if err := registerDisk(deps.Registry, cfg.Member.DataDir); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	metaapi.Serve(m.Server(), c)
	metaapi.ServeElections(m.Server(), c)
	metaapi.ServeEndings(m.Server(), c)
	metaapi.ServeChildren(m.Server(), c)
	metaapi.ServeMoves(m.Server(), c)
	metaapi.ServeDecommissions(m.Server(), c)
	metaapi.ServeLosses(m.Server(), c)
	return &Voter{log: deps.Log, member: m, bus: b, controller: c}, nil
}

// marks asks a storage node of record where its partitions end.
func marks(m *member.Member) func(context.Context, string, *nodeapi.MarksRequest) (*nodeapi.MarksResult, error) {
	return func(ctx context.Context, node string, req *nodeapi.MarksRequest) (*nodeapi.MarksResult, error) {
		rec := m.View().Members().ByID[node]
		if rec == nil || rec.RPCAddr == "" {
			return nil, fmt.Errorf("ask %s for marks: no member of that id", node)
		}
		return nodeapi.NewClient(m.Client().Peer(node, rec.RPCAddr)).Marks(ctx, req)
	}
}

// registerDisk shows the free space under dir: a voter whose disk is full takes
// no change of the metadata.
func registerDisk(r prometheus.Registerer, dir string) error {
	if r == nil {
		return nil
	}
	err := r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "narad_disk_free_bytes", Help: "Free bytes of the data disk.",
	}, func() float64 {
		_, free, err := vfs.OS().Usage(dir)
		if err != nil {
			return math.NaN() // not known is not 0
		}
		return float64(free)
	}))
	if err != nil {
		return fmt.Errorf("register metrics of the voter: %w", err)
	}
	return nil
}

// Run does the work until ctx ends, and returns nil after an ordered stop, else
// the first cause.
func (v *Voter) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, v.member.Stopping)() // not ready before anything ends
	var g proc.Group
	g.Add("member", v.member.Run)
	g.Add("bus", v.bus.Run)
	g.Add("controller", v.controller.Run)
	return g.Run(ctx, v.log)
}

// Close ends Raft and gives the data directory back.
func (v *Voter) Close() error {
	begin := time.Now()
	if err := v.member.Close(); err != nil {
		return fmt.Errorf("close voter: %w", err)
	}
	v.log.Info("voter closed", "took", time.Since(begin))
	return nil
}

// Member is the process as part of the cluster.
func (v *Voter) Member() *member.Member { return v.member }

// Source is what the voter shows on its operator port.
func (v *Voter) Source() *ops.Source {
	return &ops.Source{
		Ready:  func() (reasons, degraded []ops.Reason) { return v.member.Ready(), nil },
		Quorum: v.member.OwnQuorum,
	}
}
