package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/decommission"
	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/apps/metastore-voter/internal/moves"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// Timing holds the controller's constants, for tests to shorten. The zero value
// of a field means its default.
type Timing struct {
	DeadAfter    time.Duration // silence that makes a member dead, and the grace of a new leader; 30 s
	JudgeEvery   time.Duration // between passes over the members; 1 s
	StampEvery   time.Duration // heartbeats are collected this long into one entry; 2 s
	PromoteAfter time.Duration // a leader must have led this long before it promotes; 12 s
	Propose      time.Duration // server budget of a metadata change; 10 s
	Transfer     time.Duration // for handing leadership over at a stop; 3 s
}

// DefaultTiming gives the numbers of the design.
func DefaultTiming() Timing {
	return Timing{
		DeadAfter: lifecycle.DeadAfter, JudgeEvery: time.Second, StampEvery: 2 * time.Second,
		PromoteAfter: lifecycle.PromoteAfter, Propose: 10 * time.Second, Transfer: 3 * time.Second,
	}
}

func (t Timing) withDefaults() Timing {
	d := DefaultTiming()
	for _, f := range []struct{ have, otherwise *time.Duration }{
		{&t.DeadAfter, &d.DeadAfter},
		{&t.JudgeEvery, &d.JudgeEvery},
		{&t.StampEvery, &d.StampEvery},
		{&t.PromoteAfter, &d.PromoteAfter},
		{&t.Propose, &d.Propose},
		{&t.Transfer, &d.Transfer},
	} {
		if *f.have == 0 {
			*f.have = *f.otherwise
		}
	}
	return t
}

// Config is what a controller is given.
type Config struct {
	NodeID     string
	Raft       *raftnode.Node
	LeaderAddr func() string // RPC address of the leader in view, or ""
	// Quorum asks every Raft server for its own view; it is called on the leader only.
	Quorum func(context.Context) *metaapi.QuorumResult
	// Nodes is how elections of partition leaders and moves reach storage nodes.
	Nodes Nodes
	// Gateway reaches a gateway at an address; nil: they cannot be asked, and so never removed.
	Gateway func(id, addr string) gatewayapi.Drain
	// Told is called when a member begins to drain or stays after all; it must not
	// wait. nil: nobody listens.
	Told func(member string, draining bool)
	// Marks asks a storage node where its partitions end, for attach points.
	Marks    func(ctx context.Context, node string, req *nodeapi.MarksRequest) (*nodeapi.MarksResult, error)
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: no metrics
	Timing   Timing
	Mono     func() time.Duration // a clock that never goes back; nil: the process's
	WallMS   func() int64         // Unix milliseconds, for what people read; nil: the machine's
}

// Nodes is how storage nodes are reached. Safe for concurrent use.
type Nodes interface {
	election.Nodes
	moves.Nodes
}

// Controller implements metaapi.Voter. Safe for concurrent use.
type Controller struct {
	cfg     Config
	raft    *raftnode.Node
	log     *slog.Logger
	timing  Timing
	mono    func() time.Duration
	wallMS  func() int64
	term    atomic.Pointer[term] // nil: this node does not lead, or not yet
	refused atomic.Bool          // the breaker's last verdict

	barriers  barriers
	refusals  refusalLog
	elections *election.Runner
	moves     *moves.Runner
	leaving   *decommission.Runner

	admission sync.RWMutex // guards what a proposal of a newer entry type and a join look at: a join holds it whole, so it must not propose such a type itself
	members   sync.Mutex   // guards changes of the Raft configuration: they are read, decided and made one after the other, so it is held while Raft commits one
}

var _ metaapi.Voter = (*Controller)(nil)

// term is one leadership after its barrier. What it holds dies with it.
type term struct {
	elected time.Duration // when this node began to lead
	since   time.Duration // when the barrier had passed or a deaf time ended: from then on silence counts
	deaf    bool          // the last pass found that nobody is heard; since and deaf belong to the judging loop

	mu      sync.Mutex // guards heard, pending, disks and missed
	heard   map[string]time.Duration
	pending map[string]metastate.Heartbeat // stamps that are not in an entry yet
	disks   map[string]diskUse             // of everybody heard in this term, or stamped before
	missed  map[string]missed              // of everybody whose heartbeat was heard in this term
	urgent  chan struct{}                  // a stamp must not wait

	// placeMu guards placing: the partitions of creates and growths under way, by a
	// number of the attempt, which count as load for the next one, so that what is
	// placed at one moment does not all go to one node. It is held over a look at
	// memory, and no I/O.
	placeMu sync.Mutex
	placing map[topic.Incarnation][]topic.Assignment
}

// New returns a controller that does nothing before Run.
func New(cfg Config) (*Controller, error) {
	if cfg.Mono == nil {
		start := time.Now()
		cfg.Mono = func() time.Duration { return time.Since(start) }
	}
	if cfg.WallMS == nil {
		cfg.WallMS = func() int64 { return time.Now().UnixMilli() }
	}
	c := &Controller{
		cfg: cfg, raft: cfg.Raft, log: cfg.Log, timing: cfg.Timing.withDefaults(), mono: cfg.Mono, wallMS: cfg.WallMS,
	}
	c.barriers.pass = c.raft.Barrier
	c.leaving = decommission.New(decommission.Config{View: c.raft.View(), Meta: removals{c}, Log: c.log})
	if err := c.newElections(); err != nil {
		return nil, err
	}
	if err := c.newMoves(); err != nil {
		return nil, err
	}
	return c, c.registerMetrics(cfg.Registry)
}

// Run leads whenever this node is elected, until ctx ends; then it hands
// leadership to another voter and returns nil.
func (c *Controller) Run(ctx context.Context) error {
	lead, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.raft.Lead(lead, c.lead)
	}()
	<-ctx.Done()
	c.handOver(lead)
	stop()
	<-done
	return nil
}

func (c *Controller) handOver(ctx context.Context) {
	if !c.raft.IsLeader() {
		return
	}
	voters := 0
	for _, s := range c.raft.Configuration().Servers {
		if s.Voter {
			voters++
		}
	}
	if voters < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.timing.Transfer)
	defer cancel()
	begin := time.Now()
	if err := c.raft.TransferLeadership(ctx); err != nil {
		c.log.Warn("leadership was not handed over; the others will elect", "err", err)
		return
	}
	c.log.Info("handed leadership over", "took", time.Since(begin))
}

// lead is one leadership from election to loss.
func (c *Controller) lead(ctx context.Context) {
	elected := c.mono()
	if !c.establish(ctx) {
		return
	}
	t := &term{
		elected: elected, since: c.mono(), heard: map[string]time.Duration{},
		pending: map[string]metastate.Heartbeat{}, urgent: make(chan struct{}, 1),
		placing: map[topic.Incarnation][]topic.Assignment{}, disks: c.stampedUse(),
		missed: map[string]missed{},
	}
	c.term.Store(t)
	c.log.Info("leading the metastore", "cluster", c.raft.View().ClusterID())
	defer func() {
		c.term.Store(nil)
		c.setRefused(false)
		c.log.Info("no longer leading the metastore")
	}()
	var elections sync.WaitGroup
	elections.Go(func() { c.elections.Run(ctx) })
	elections.Go(func() { c.moves.Run(ctx) })
	elections.Go(func() { c.leaving.Run(ctx) })
	defer elections.Wait()
	judge, stamp := time.NewTicker(c.timing.JudgeEvery), time.NewTicker(c.timing.StampEvery)
	defer judge.Stop()
	defer stamp.Stop()
	for {
		select {
		case <-judge.C:
			c.judge(ctx, t)
		case <-stamp.C:
			c.stamp(ctx, t)
		case <-t.urgent:
			c.stamp(ctx, t)
		case <-ctx.Done():
			return
		}
	}
}

// establishPause is between tries of a barrier that failed while still leading.
const establishPause = 50 * time.Millisecond

// establish passes the barrier and makes sure that the cluster has an id; false
// when the leadership ended first.
func (c *Controller) establish(ctx context.Context) bool {
	pause := time.NewTicker(establishPause)
	defer pause.Stop()
	for ctx.Err() == nil {
		err := c.raft.Barrier(ctx)
		if err == nil {
			err = c.nameCluster(ctx)
		}
		if err == nil {
			return true
		}
		c.log.Debug("leadership not established yet", "err", err)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
	return false
}

func (c *Controller) nameCluster(ctx context.Context) error {
	if c.raft.View().ClusterID() != "" {
		return nil
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return fmt.Errorf("draw a cluster id: %w", err)
	}
	_, res, err := c.raft.Apply(ctx, &metastate.ClusterID{ID: hex.EncodeToString(id[:])})
	if err != nil {
		return err
	}
	return res.Err()
}

// leading returns the current term, or the refusal that says who leads.
func (c *Controller) leading() (*term, error) {
	if t := c.term.Load(); t != nil {
		return t, nil
	}
	switch {
	case c.raft.Empty():
		return nil, problem.New(problem.NoRaftConfiguration, "this node has no Raft configuration")
	case c.raft.IsLeader():
		return nil, problem.New(problem.NotReady, "this node was elected and is still catching up")
	}
	return nil, c.notLeader()
}

// notLeader says who leads. The cluster's id, "" before the first leader, tells a
// node with a new disk whether anything may have been committed already.
func (c *Controller) notLeader() *problem.Problem {
	id, _ := c.raft.Leader()
	return metaapi.NotLeader(id, c.cfg.LeaderAddr()).With("cluster_id", c.raft.View().ClusterID())
}

// propose puts an entry on the log and gives its result, or a refusal. It is the
// one place where entries are proposed, and so where their types are gated: a
// node that is being admitted is admitted before the look, or refused after it.
func (c *Controller) propose(ctx context.Context, e metastate.Entry) (uint64, *metastate.Result, error) {
	if !metastate.OfFirstRelease(e.EntryType()) {
		c.admission.RLock()
		defer c.admission.RUnlock()
		if err := c.supported(e.EntryType()); err != nil {
			return 0, nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.timing.Propose)
	defer cancel()
	index, res, err := c.raft.Apply(ctx, e)
	if err != nil {
		return 0, nil, c.refusal(err)
	}
	return index, res, res.Err()
}

// refusal turns an error of Raft into what a caller can act on.
func (c *Controller) refusal(err error) error {
	switch {
	case errors.Is(err, raftnode.ErrNotLeader):
		return c.notLeader()
	case errors.Is(err, raftnode.ErrBusy):
		return problem.New(problem.Overloaded, "too many metadata changes at once")
	case errors.Is(err, raftnode.ErrConflict):
		return problem.New(problem.NotReady, "the Raft configuration is changing")
	case errors.Is(err, raftnode.ErrOutcomeUnknown):
		return problem.New(problem.OutcomeUnknown, "the change was not confirmed in time")
	}
	return err
}

func invalid(parameter, reason string) *problem.Problem {
	return problem.New(problem.InvalidRequest, "%s %s", parameter, reason).With("parameter", parameter)
}

func (c *Controller) registerMetrics(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	err := errors.Join(
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_dead_marking_refused", Help: "1 while the breaker keeps the controller from marking members dead.",
		}, func() float64 {
			if c.refused.Load() {
				return 1
			}
			return 0
		})),
		r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "narad_controller_leading", Help: "1 while this voter leads the metastore and runs the controller.",
		}, func() float64 {
			if c.term.Load() != nil {
				return 1
			}
			return 0
		})),
		r.Register(newPartitionGauges(c.raft.View(), c.heardMissing)),
		r.Register(newServerGauges(func() serverCount {
			return countServers(c.raft.Configuration().Servers, c.raft.View().Members().ByID)
		}, func() bool { return c.term.Load() != nil })),
	)
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}
