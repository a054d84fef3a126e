package commit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/accept"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/route"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// maxWaiting bounds the requests that wait for a commit at once: more than the
	// connections of a gateway.
	maxWaiting = 16384
	// retryFirst and retryMost: what was refused is tried again after so long, doubled
	// each time, or as soon as the metastore replica shows a change. A new leader takes
	// some milliseconds to hear that it is one.
	retryFirst = 10 * time.Millisecond
	retryMost  = 250 * time.Millisecond
	// lookEvery is how often lanes that nobody uses are dropped.
	lookEvery = time.Minute
)

// Deps are what a Committer works with; all but Suspects are required.
type Deps struct {
	View metastate.View
	// Node returns the wire to a storage node of the member table; nil when it is not there.
	Node     func(id string) nodeapi.Node
	Suspects accept.Suspects // whom to avoid; nil: nobody
	// ID is drawn at random for this start of the gateway: message ids begin with it.
	ID       topic.ID64
	Registry prometheus.Registerer
}

// Committer implements api.Committer. Safe for concurrent use.
type Committer struct {
	deps    Deps
	metrics *metrics
	next    atomic.Uint64 // the last number given to a record of the own stream
	waiting atomic.Int64
	lanes   sync.Map // laneKey -> *lane
	places  sync.Map // topic.Incarnation -> *placing
	builds  sync.Pool

	draining chan struct{}
	drain    sync.Once
}

// placing is how the free messages of one life are shared out.
type placing struct {
	name   string
	places accept.Places
	turn   atomic.Uint32
}

var _ api.Committer = (*Committer)(nil)

// New returns a committer that serves at once; Run tidies up.
func New(deps Deps) (*Committer, error) {
	c := &Committer{deps: deps, draining: make(chan struct{})}
	c.builds.New = func() any { return &record.Builder{} }
	var err error
	c.metrics, err = newMetrics(deps.Registry, func() float64 { return float64(c.waiting.Load()) })
	return c, err
}

// Run drops what is not used any more until ctx ends.
func (c *Committer) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.tidy()
		}
	}
}

// tidy forgets idle lanes, and topics that have ended. Whoever holds a lane that is
// forgotten goes on with it: it only shares no call with the next one.
func (c *Committer) tidy() {
	c.lanes.Range(func(key, l any) bool {
		if l.(*lane).idle() {
			c.lanes.Delete(key)
		}
		return true
	})
	c.places.Range(func(id, p any) bool {
		t := topic.Topic{Name: p.(*placing).name, Incarnation: id.(topic.Incarnation)}
		if route.Ended(c.deps.View, &t) != nil {
			c.places.Delete(id)
		}
		return true
	})
}

// Drain makes Commit refuse from now on; what was not sent yet is refused too.
func (c *Committer) Drain() { c.drain.Do(func() { close(c.draining) }) }

// CanCommit implements api.Committer.
func (c *Committer) CanCommit() error {
	select {
	case <-c.draining:
		return drained()
	default:
	}
	switch {
	case !c.deps.View.CaughtUpOnce() || !c.deps.View.Latched():
		return problem.New(problem.NotReady, "this gateway has not been caught up with the metastore since its start")
	case c.waiting.Load() >= maxWaiting:
		return problem.New(problem.Overloaded, "too many messages wait for their partitions at this gateway")
	}
	return nil
}

func drained() *problem.Problem {
	return problem.New(problem.Draining, "this gateway is stopping")
}

// Commit implements api.Committer.
func (c *Committer) Commit(req *api.CommitRequest) ([]api.Committed, error) {
	begin := time.Now()
	out, err := c.commit(req, begin.Add(req.Timeout))
	c.metrics.count(out, err, len(req.Messages), time.Since(begin))
	return out, err
}

func (c *Committer) commit(req *api.CommitRequest, deadline time.Time) ([]api.Committed, error) {
	if err := c.CanCommit(); err != nil {
		return nil, err
	}
	c.waiting.Add(1)
	defer c.waiting.Add(-1)
	groups, err := plan(req.Topic, req.Messages, func() int32 { return c.place(req.Topic) })
	if err != nil {
		return nil, err
	}
	out := make([]api.Committed, len(req.Messages))
	if len(groups) == 1 {
		u := newUnit(req.Topic, groups[0], req.Messages, deadline)
		if req.Producer != "" {
			u.numbered, u.seq, u.stream = true, req.Seq, producerStream(u.ref(), req.Producer)
		}
		c.carry(u, out)
		return out, nil
	}
	var wg sync.WaitGroup
	for i := range groups {
		u := newUnit(req.Topic, groups[i], req.Messages, deadline)
		wg.Go(func() { c.carry(u, out) }) // each writes the outcomes of its own messages
	}
	wg.Wait()
	return out, nil
}

func (c *Committer) placing(t *topic.Topic) *placing {
	if p, ok := c.places.Load(t.Incarnation); ok {
		return p.(*placing)
	}
	p, _ := c.places.LoadOrStore(t.Incarnation, &placing{name: t.Name})
	return p.(*placing)
}

// place is the next partition for messages that may go anywhere.
func (c *Committer) place(t *topic.Topic) int32 {
	p := c.placing(t)
	return accept.Turn(p.turn.Add(1), t, p.places.Fine(t, c.deps.View, c.deps.Suspects))
}

// laneKey keeps what clients number apart: each is a call of its own, and would hold
// up what shares one.
type laneKey struct {
	ref      topic.Ref
	numbered bool
}

func (c *Committer) lane(u *unit) *lane {
	key := laneKey{u.ref(), u.numbered}
	if l, ok := c.lanes.Load(key); ok {
		return l.(*lane)
	}
	limit := callsPerLane
	if u.numbered {
		limit = numberedCalls
	}
	l, _ := c.lanes.LoadOrStore(key, &lane{c: c, ref: key.ref, limit: limit})
	return l.(*lane)
}
