// Package gateway is the ingress-gateway role: the only way in for clients.
//
//	New:   member (data directory, raft, RPC port) ──> bus ──> WAL ──> accept, dispatch, route ──> API ──> HTTP listener
//	Run:   1 member, bus   2 accept (watches the disk)   3 dispatch   4 route   5 HTTP
//	stop:  5 drains (not ready, parked consumes end, --drain-delay, no new connections),
//	       4, then 3 until the WAL is empty or the deadline, 2, 1
//
// It keeps the ingress WAL and a metastore replica; messages lie here only until
// they are committed elsewhere. It decides nothing about ownership.
// gateway_test.go starts and stops one without a cluster; e2e runs it in whole ones.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/accept"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/commit"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/dispatch"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/edge"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/route"
	"github.com/narad-mq/narad/libs/bus"
	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/member"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/ops"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/tlsconf"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
	"github.com/narad-mq/narad/libs/wal"
)

// Times of an ordered stop, which has proc.StopTimeout besides the drain delay.
const (
	// shutdownBudget is for requests that still run when the listener has closed.
	shutdownBudget = 3 * time.Second
	// dispatchBudget is for what the WAL holds then; the rest waits for the next start.
	dispatchBudget = 5 * time.Second
	// StopTimeout is the stop deadline on top of the drain delay.
	StopTimeout = proc.StopTimeout - DefaultDrainDelay
)

// walDir is the WAL's directory below the data directory.
const walDir = "wal"

// Config is everything that a gateway needs to know.
type Config struct {
	Member     member.Config
	Bus        bus.Settings
	HTTPAddr   string        // listen address for clients
	HTTPTLS    tlsconf.Files // of the client port; none: plain HTTP
	API        api.Config
	Edge       edge.Config
	Watermark  int // percent of the disk above which produce is refused; 0: the default
	MaxWaiting int // parked consumes; 0: the default
	DrainDelay time.Duration
	NoWAL      bool
}

// Deps is what a gateway is given.
type Deps struct {
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Gateway is one ingress gateway.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	member   *member.Member
	bus      *bus.Bus // nil: off
	wal      *wal.WAL // nil without one
	producer *accept.Producer
	commit   *commit.Committer
	dispatch *dispatch.Dispatcher // nil without a WAL
	router   *route.Router
	api      *api.API
	edge     *edge.Server
	tls      *tlsconf.Source // of the client port; nil: plain HTTP
	listener net.Listener
	leaving  *drainer
	draining atomic.Bool
	damaged  atomic.Int64 // damaged ranges of the WAL met since the start
}

// New opens and recovers a gateway and binds its ports; it serves nothing before
// Run. Errors are those of member.Open, of the WAL and of the listener, and
// proc.ErrUsage where the certificate of the client port cannot be used.
func New(cfg Config, deps Deps) (_ *Gateway, err error) {
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Registry == nil {
		deps.Registry = prometheus.NewRegistry()
	}
	g := &Gateway{cfg: cfg, log: deps.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	if err = g.openTLS(deps.Registry); err != nil {
		return nil, err
	}
	var producer atomic.Pointer[accept.Producer]
	if g.member, err = member.Open(cfg.Member, member.Deps{Log: deps.Log, Registry: deps.Registry, Load: func() (int64, int) {
		if p := producer.Load(); p != nil {
			return p.Load()
		}
		return 0, 0
	}}); err != nil {
		return nil, err
	}
	g.leaving = &drainer{
		id: cfg.Member.NodeID, disk: g.member.DiskID(), nonce: g.member.BootNonce(), view: g.member.View(), log: deps.Log,
		left: g.left, read: g.counted, heard: bus.NewHeard(cfg.Member.NodeID),
		asks: func(ctx context.Context) (*metaapi.MemberDetailResult, error) {
			return g.member.Leader().MemberDetail(ctx, &metaapi.MemberDetailRequest{NodeID: cfg.Member.NodeID})
		},
	}
	if g.bus, err = bus.New(bus.Config{
		Settings: cfg.Bus, NodeID: cfg.Member.NodeID, Replica: g.member.View(), Log: deps.Log, Registry: deps.Registry,
		MemberDraining: g.leaving.heard.MemberDraining,
	}); err != nil {
		return nil, err
	}
	if err = g.openData(deps.Registry); err != nil {
		return nil, err
	}
	producer.Store(g.producer)
	if err = g.openClients(deps.Registry); err != nil {
		return nil, err
	}
	gatewayapi.Serve(g.member.Server(), g.router)
	gatewayapi.ServeBacklog(g.member.Server(), backlog{each: g.producer.Undispatched, read: g.counted})
	gatewayapi.ServeDrain(g.member.Server(), g.leaving)
	return g, nil
}

// counted tells whether everything that earlier starts left is counted.
func (g *Gateway) counted() bool { return g.dispatch == nil || g.dispatch.Recovered() }

// left is how many accepted records are not dispatched.
func (g *Gateway) left() int64 {
	if g.dispatch == nil {
		return 0
	}
	return g.dispatch.Left()
}

func (g *Gateway) openTLS(registry prometheus.Registerer) error {
	var err error
	g.tls, err = tlsconf.Load(tlsconf.Config{Files: g.cfg.HTTPTLS, Plane: "clients", Log: g.log, Registry: registry})
	if err != nil {
		return proc.Usagef("TLS of the client port: %v", err)
	}
	return nil
}

// openData opens what lies between the WAL and the storage nodes.
func (g *Gateway) openData(registry prometheus.Registerer) error {
	metrics, err := accept.NewMetrics(registry)
	if err != nil {
		return err
	}
	if err := g.leaving.register(registry); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	view := g.member.View()
	nodes := newPeers(view, g.member.Client())
	dir := filepath.Join(g.cfg.Member.DataDir, walDir)
	deps := accept.Deps{View: view, FS: vfs.OS(), Dir: g.cfg.Member.DataDir, Metrics: metrics, Suspects: g.member.Suspects(), Leaving: g.leaving.Leaving, Parked: func() (int64, int64) {
		if g.dispatch == nil {
			return 0, 0
		}
		return g.dispatch.Parked()
	}}
	if !g.cfg.NoWAL {
		g.wal, err = wal.Open(vfs.OS(), dir, wal.Options{
			OnSync: metrics.ObserveSync, OnDamage: g.onDamage,
			OnError: func(err error) { g.log.Error("write-ahead log", "error", err) },
		})
		if err != nil {
			return err
		}
		deps.Log, g.leaving.wal = g.wal, g.wal
	}
	g.leaving.open()
	g.producer = accept.New(accept.Config{Watermark: g.cfg.Watermark}, deps)
	if g.wal != nil {
		g.dispatch, err = dispatch.New(dispatchq.DefaultConfig(), dispatch.Deps{
			View: view, WAL: g.wal, FS: vfs.OS(), Dir: dir, Node: nodes.node, ParkBelow: parkBelow(g.cfg.Watermark),
			Space: g.producer, Suspects: g.member.Suspects(), Registry: registry, Log: g.log,
			Confirm: func(ctx context.Context, ids []topic.Incarnation) (map[topic.Incarnation]metaapi.Verdict, error) {
				return metaapi.ConfirmIncarnations(ctx, g.member.Leader(), ids)
			},
			CaughtUp: func() bool { ok, _ := g.member.Raft().CaughtUp(); return ok },
		})
		if err != nil {
			return err
		}
	}
	if g.commit, err = commit.New(commit.Deps{
		View: view, Node: nodes.node, Suspects: g.member.Suspects(), ID: randomID(), Registry: registry,
	}); err != nil {
		return err
	}
	g.router, err = route.New(route.Config{GatewayID: g.cfg.Member.NodeID, MaxWaiting: g.cfg.MaxWaiting}, route.Deps{
		View: view, Node: nodes.node, Suspected: g.member.Suspects().Has, Registry: registry, Log: g.log,
	})
	return err
}

// randomID names this start: no other one gives its numbers.
func randomID() topic.ID64 {
	for {
		if id := topic.ID64(rand.Uint64()); id != 0 {
			return id
		}
	}
}

// parkBelow is in the middle between the watermark and a full disk.
func parkBelow(watermark int) int {
	if watermark == 0 {
		return 0
	}
	return (watermark + 100) / 2
}

// openClients opens what clients talk to.
func (g *Gateway) openClients(registry prometheus.Registerer) error {
	var err error
	names := newTopics(g.member.View(), g.member.Leader(), g.member.Raft().WaitApplied, g.bus.TopicPurged)
	g.api, err = api.New(g.cfg.API, api.Deps{
		Topics: names, Children: &children{topics: names, leader: g.member.Leader(), node: newPeers(g.member.View(), g.member.Client()).fanout}, Producer: g.producer, Committer: whileStaying{g.commit, g.leaving.Leaving}, Consumer: g.router,
		Cluster: g.cluster(), ClusterID: g.member.ClusterID, Removed: g.member.Removed,
		Logger: g.log, Registry: registry,
	})
	if err != nil {
		return err
	}
	g.edge = edge.New(g.cfg.Edge, g.api, g.log)
	ln, err := net.Listen("tcp", g.cfg.HTTPAddr)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	g.listener = g.tls.Listen(ln)
	return nil
}

func (g *Gateway) cluster() *cluster {
	m := g.member
	return &cluster{
		view: m.View(), leader: m.Leader(), servers: m.Quorum, own: g.own, applied: m.Raft().WaitApplied, backup: backupOf(m.Raft()),
		records: func() (list []topic.Member, err error) {
			err = m.Raft().Read(func(r metastate.Reader) (err error) {
				list, err = metastate.AllMembers(r)
				return err
			})
			return list, err
		},
		graves: func() (list []metastate.Tombstone, err error) {
			err = m.Raft().Read(func(r metastate.Reader) (err error) {
				list, err = metastate.AllTombstones(r)
				return err
			})
			return list, err
		},
		moves: func() (list []topic.Move, err error) {
			err = m.Raft().Read(func(r metastate.Reader) (err error) {
				list, err = metastate.AllMoves(r)
				return err
			})
			return list, err
		},
	}
}

func (g *Gateway) onDamage(d seglog.Damage) {
	g.damaged.Add(1)
	g.log.Error("the write-ahead log is damaged; what follows the damage is dispatched", "segment", d.Segment, "from", d.From, "to", d.To)
}

// Run does the work until ctx ends, and returns nil after an ordered stop, else
// the first cause.
func (g *Gateway) Run(ctx context.Context) error {
	var group proc.Group
	group.Add("member", g.member.Run)
	group.Add("bus", g.bus.Run)
	group.Add("decommission", g.leaving.Run)
	group.Add("accept", g.producer.Run)
	if g.dispatch != nil {
		group.Add("dispatch", g.runDispatch)
	}
	group.Add("commit", g.commit.Run)
	group.Add("route", g.router.Run)
	group.Add("client certificate", g.tls.Run)
	group.Add("http", g.serve)
	return group.Run(ctx, g.log)
}

// serve answers clients until ctx ends, and then drains.
func (g *Gateway) serve(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- g.edge.Serve(g.listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	g.draining.Store(true)
	g.member.Stopping()
	g.api.BeginDrain()
	delay := time.NewTimer(g.cfg.DrainDelay)
	defer delay.Stop()
	select {
	case err := <-ended:
		return err
	case <-delay.C:
	}
	g.commit.Drain() // what waits for an election would wait for longer than this lives
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownBudget)
	defer cancel()
	if err := g.edge.Shutdown(stop); err != nil {
		g.log.Warn("client requests were cut off", "after", shutdownBudget, "error", err)
	}
	g.producer.Drain()
	return <-ended
}

// runDispatch dispatches until ctx ends, and then until there is nothing left
// that can be dispatched, or the time is over.
func (g *Gateway) runDispatch(ctx context.Context) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- g.dispatch.Run(own) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	deadline := time.NewTimer(dispatchBudget)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for over := false; !over && g.dispatch.Moving(); {
		select {
		case err := <-ended:
			return err
		case <-deadline.C:
			over = true
		case <-tick.C:
		}
	}
	g.log.Info("dispatch ends", "records_left", g.dispatch.Left())
	cancel()
	return <-ended
}

// Close gives ports, files and the data directory back. It may be called after a
// failed New.
func (g *Gateway) Close() error {
	begin := time.Now()
	var errs []error
	if g.listener != nil {
		if err := g.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if g.wal != nil {
		errs = append(errs, g.wal.Close())
	}
	if g.member != nil {
		errs = append(errs, g.member.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close gateway: %w", err)
	}
	g.log.Info("gateway closed", "took", time.Since(begin))
	return nil
}

// Member is the process as part of the cluster.
func (g *Gateway) Member() *member.Member { return g.member }

// Addr is the address that clients reach.
func (g *Gateway) Addr() net.Addr { return g.listener.Addr() }

// Source is what the gateway shows on its operator port.
func (g *Gateway) Source() *ops.Source {
	return &ops.Source{Ready: g.ready, Accept: g.acceptReasons, Quorum: g.member.OwnQuorum}
}
