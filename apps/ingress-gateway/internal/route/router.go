package route

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Limits and times.
const (
	// DefaultMaxWaiting bounds the consumes that wait at once (--max-waiting).
	DefaultMaxWaiting = 10_000
	// grace is how long past its deadline a waiter waits for a call that is under
	// way for it: so that a lease that is being made finds its taker.
	grace = 200 * time.Millisecond
	// overdue is when a call lets go of its takers, so that others may serve them.
	overdue = 150 * time.Millisecond
	// zeroWait is the time that a consume without a wait has to ask everybody: a
	// node that hangs, and then the others.
	zeroWait = 250 * time.Millisecond
	// claimBudget ends a claim. What comes after it is lost, and returns when its
	// lease runs out.
	claimBudget = 5 * time.Second
	// claimsPerNode: while calls are under way the next one gathers. A second one
	// keeps a large answer from holding up all others.
	claimsPerNode = 2
	// retryDown is how often a partition that could not be asked is asked again,
	// while somebody waits.
	retryDown = 500 * time.Millisecond
	// askAgain makes up for lost wake-ups: a wake-up is one call that nobody
	// repeats, so each topic with waiters is asked again this often, all in one
	// call per node.
	askAgain = 10 * time.Second
	// suspectsInTurn: nodes that gossip suspects are asked after all others, but in
	// one round of so many they have their turn. A false suspicion must not keep
	// their partitions from ever being asked, while others always have more.
	suspectsInTurn = 8
	// idleLife is after how long without a consume a topic's state is dropped.
	idleLife = time.Minute
)

// Config of a Router.
type Config struct {
	GatewayID  string // whom storage nodes wake
	MaxWaiting int    // 0: DefaultMaxWaiting
}

// Deps are what a Router works with.
type Deps struct {
	View metastate.View
	// Node returns the wire to a storage node of the member table; nil when it is not there.
	Node func(id string) nodeapi.Node
	// Suspected tells whether a node is probably dead, as gossip has it; nil: none is.
	Suspected func(id string) bool
	Registry  prometheus.Registerer
	Log       *slog.Logger
}

// Router implements api.Consumer and gatewayapi.Gateway. Safe for concurrent use.
type Router struct {
	cfg     Config
	deps    Deps
	waiting atomic.Int64
	lives   sync.Map // topic.Incarnation -> *life
	nodes   sync.Map // node id -> *node
	ctx     context.Context
	cancel  context.CancelFunc
	work    sync.WaitGroup

	measures *measures
}

var (
	_ api.Consumer       = (*Router)(nil)
	_ gatewayapi.Gateway = (*Router)(nil)
)

// New returns a router that serves at once; Run keeps it up to date.
func New(cfg Config, deps Deps) (*Router, error) {
	if cfg.MaxWaiting == 0 {
		cfg.MaxWaiting = DefaultMaxWaiting
	}
	if deps.Suspected == nil {
		deps.Suspected = func(string) bool { return false }
	}
	r := &Router{cfg: cfg, deps: deps}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	var err error
	r.measures, err = newMeasures(deps.Registry, func() float64 { return float64(r.waiting.Load()) })
	return r, err
}

// Run follows the view until ctx ends; then it ends the calls under way.
func (r *Router) Run(ctx context.Context) error {
	tick := time.NewTicker(askAgain)
	defer tick.Stop()
	for {
		changed := r.deps.View.Changed()
		r.eachLife(func(l *life) { l.refresh() })
		select {
		case <-ctx.Done():
			r.cancel()
			r.work.Wait()
			return nil
		case <-changed:
		case <-tick.C:
			r.eachLife(func(l *life) { l.askAgain(time.Now()) })
		}
	}
}

func (r *Router) eachLife(f func(*life)) {
	r.lives.Range(func(_, l any) bool {
		f(l.(*life))
		return true
	})
}

func (r *Router) life(t *topic.Topic) *life {
	if l, ok := r.lives.Load(t.Incarnation); ok {
		return l.(*life)
	}
	l, _ := r.lives.LoadOrStore(t.Incarnation, newLife(r, t))
	return l.(*life)
}

func (r *Router) node(id string) *node {
	if n, ok := r.nodes.Load(id); ok {
		return n.(*node)
	}
	n, _ := r.nodes.LoadOrStore(id, &node{r: r, id: id})
	return n.(*node)
}

// Consume implements api.Consumer.
func (r *Router) Consume(ctx context.Context, req *api.ConsumeRequest) (*api.ConsumeResult, error) {
	begin := time.Now()
	res, err := r.consume(ctx, req)
	r.measures.consumed(begin, res, err)
	return res, err
}

func (r *Router) consume(ctx context.Context, req *api.ConsumeRequest) (*api.ConsumeResult, error) {
	if r.waiting.Add(1) > int64(r.cfg.MaxWaiting) {
		r.waiting.Add(-1)
		return nil, problem.New(problem.TooManyRequests, "too many consumers wait at this gateway")
	}
	defer r.waiting.Add(-1)
	if !r.deps.View.Latched() {
		return nil, problem.New(problem.NotReady, "this gateway does not know yet who leads the partitions")
	}
	w := &waiter{req: req, result: make(chan outcome, 1)}
	for {
		l := r.life(req.Topic)
		l.refresh()
		if l.enter(w) {
			w.life = l
			break
		}
	}
	return w.wait(ctx)
}

// wait waits for the outcome.
func (w *waiter) wait(ctx context.Context) (*api.ConsumeResult, error) {
	d := w.req.Wait
	if d == 0 {
		d = zeroWait
	}
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	late := false
	for {
		select {
		case out := <-w.result:
			return out.result, out.err
		case <-ctx.Done():
			w.life.leave(w, true)
			out := <-w.result
			return out.result, out.err
		case <-deadline.C:
			if !w.life.leave(w, late) {
				late = true
				deadline.Reset(grace)
				continue
			}
			out := <-w.result
			return out.result, out.err
		}
	}
}

// Wake implements gatewayapi.Gateway.
func (r *Router) Wake(_ context.Context, req *gatewayapi.WakeRequest) error {
	var last *life
	for i := range req.Ready {
		p := &req.Ready[i]
		if last == nil || last.id != p.Incarnation {
			l, ok := r.lives.Load(p.Incarnation)
			if !ok {
				continue
			}
			if last != nil {
				last.pump()
			}
			last = l.(*life)
		}
		last.woken(p.Partition)
	}
	if last != nil {
		last.pump()
	}
	return nil
}

// leader is where a partition is led, as the view shows it.
func (r *Router) leader(t *topic.Topic, partition int32) (nodeapi.Target, string, error) {
	return Leader(r.deps.View, t, partition)
}

// Leader is where a partition of a life is led, as a view shows it: what to name in a
// call, and the node. Refusals: not_ready, partition_unavailable, and topic_not_found
// of a life that is known to have ended.
func Leader(view metastate.View, t *topic.Topic, partition int32) (nodeapi.Target, string, error) {
	parts, err := view.Assignments(t.Name)
	switch {
	case errors.Is(err, metastate.ErrUnavailable):
		return nodeapi.Target{}, "", problem.New(problem.NotReady, "this gateway does not know yet who leads the partitions")
	case err != nil || parts.Incarnation != t.Incarnation:
		if err := Ended(view, t); err != nil {
			return nodeapi.Target{}, "", err
		}
		return nodeapi.Target{}, "", noLeader(t, partition)
	case int(partition) >= len(parts.List) || parts.List[partition].Leader == "":
		return nodeapi.Target{}, "", noLeader(t, partition)
	}
	a := &parts.List[partition]
	rep, _ := a.ReplicaOn(a.Leader)
	return nodeapi.Target{
		Ref:    topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: partition},
		DiskID: rep.DiskID, Epoch: a.LeaderEpoch,
	}, a.Leader, nil
}

func noLeader(t *topic.Topic, partition int32) error {
	return problem.New(problem.PartitionUnavailable, "partition %d of %q has no leader", partition, t.Name).With("partition", partition)
}
