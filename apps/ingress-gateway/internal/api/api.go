package api

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/libs/problem"
)

// Config is what an operator may set of the API.
type Config struct {
	// NodeID names this gateway in answers.
	NodeID string
	// Release is the version of the program.
	Release string
	// MaxMessageBytes bounds one payload: MinMaxMessageBytes..MaxMaxMessageBytes;
	// 0 is DefaultMaxMessageBytes.
	MaxMessageBytes int
	// MaxBodyMemory bounds the bytes of all request bodies in memory together, as
	// sent and decoded; at least MinBodyMemory, which is also the default.
	MaxBodyMemory int64
	// Features is what GET /v1/info lists beyond the routes themselves.
	Features []string
}

// Deps is what the API stands on. Logger and Registry may be nil.
type Deps struct {
	Topics   Topics
	Children Children
	Producer Producer
	// Committer is for ack=committed.
	Committer Committer
	Consumer  Consumer
	Cluster   Cluster
	// ClusterID gives the cluster's id, "" until it is known.
	ClusterID func() string
	// Removed tells that this gateway is no member any more: what it knows of the cluster
	// stands still, so every route refuses. nil: it always is one.
	Removed  func() bool
	Logger   *slog.Logger
	Registry prometheus.Registerer
}

// API serves the routes of Routes. Safe for concurrent use.
type API struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	router  *node
	ids     *requestIDs
	bodies  budget
	inflate *inflater
	metrics *metrics
	calls   sync.Pool // of *call

	draining  atomic.Bool
	parked    context.Context // ends when parked consumes must answer
	endParked context.CancelFunc
}

// New checks cfg and returns an API. It starts nothing.
func New(cfg Config, deps Deps) (*API, error) {
	if cfg.MaxMessageBytes == 0 {
		cfg.MaxMessageBytes = DefaultMaxMessageBytes
	}
	if cfg.MaxMessageBytes < MinMaxMessageBytes || cfg.MaxMessageBytes > MaxMaxMessageBytes {
		return nil, errors.New("max message bytes must be between 1 KiB and 4 MiB")
	}
	cfg.MaxBodyMemory = max(cfg.MaxBodyMemory, MinBodyMemory)
	if deps.Topics == nil || deps.Producer == nil || deps.Committer == nil || deps.Consumer == nil || deps.Cluster == nil {
		return nil, errors.New("the API needs topics, a producer, a committer, a consumer and the cluster")
	}
	a := &API{cfg: cfg, deps: deps, log: deps.Logger, ids: newRequestIDs()}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.deps.ClusterID == nil {
		a.deps.ClusterID = func() string { return "" }
	}
	if a.deps.Removed == nil {
		a.deps.Removed = func() bool { return false }
	}
	routes := Routes()
	var err error
	if a.metrics, err = newMetrics(deps.Registry, routes); err != nil {
		return nil, err
	}
	if a.inflate, err = newInflater(); err != nil {
		return nil, err
	}
	a.router = newRouter(routes)
	a.bodies.limit = cfg.MaxBodyMemory
	a.calls.New = func() any { return newCall(a) }
	a.parked, a.endParked = context.WithCancel(context.Background())
	return a, nil
}

// BeginDrain makes every later answer end its connection and answers parked
// consumes with 204. Requests are served as before. It may be called again.
func (a *API) BeginDrain() {
	a.draining.Store(true)
	a.endParked()
}

// Serve answers one request. The caller writes resp and then calls resp.Finish.
func (a *API) Serve(req *Request, resp *Response) {
	c := a.calls.Get().(*call)
	*resp = Response{call: c}
	c.req, c.resp = req, resp
	c.serve()
	resp.Body = c.out
	if a.draining.Load() {
		resp.Close = true
	}
	if !resp.WantsBody {
		a.metrics.count(c.route, req.Method, resp.Status)
	}
}

// Refuse makes resp the answer to a request that never became one: what the
// adapter could not parse. Finish must follow, as after Serve.
func (a *API) Refuse(resp *Response, p *problem.Problem) {
	c := a.calls.Get().(*call)
	*resp = Response{call: c, Close: true}
	c.resp = resp
	c.id = a.ids.appendNew(c.id[:0])
	resp.RequestID = viewString(c.id)
	c.refuse(p)
	resp.Body = c.out
	a.metrics.count(nil, nil, resp.Status)
}

// serve runs the handler and turns what it returns into an answer.
func (c *call) serve() {
	defer func() {
		if r := recover(); r != nil {
			c.api.log.Error("handler panicked", "request_id", string(c.id), "panic", r, "stack", string(debug.Stack()))
			c.resp.Close = true // the body may be half read
			c.refuse(problem.New(problem.Internal, "internal error"))
		}
	}()
	err := c.handle()
	switch {
	case err == nil:
	case err == errWantsBody:
		c.resp.WantsBody = true
	default:
		c.refuse(c.asProblem(err))
	}
}

// asProblem is the one place where an error becomes what a client sees.
func (c *call) asProblem(err error) *problem.Problem {
	var p *problem.Problem
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		if c.route != nil && c.route.Mutating {
			return problem.New(problem.OutcomeUnknown, "no answer in time; it may have been applied")
		}
		return problem.New(problem.NotReady, "no answer in time")
	default:
		c.api.log.Error("request failed", "request_id", string(c.id), "route", c.routeName(), "error", err)
		return problem.New(problem.Internal, "internal error")
	}
}

// refuse writes p as the answer. p may be shared: it is not changed.
func (c *call) refuse(p *problem.Problem) {
	shown := *p
	shown.RequestID = string(c.id)
	if c.route == nil || !c.route.Mutating {
		shown.Applied = problem.AppliedNone
	}
	doc, err := shown.MarshalJSON()
	if err != nil {
		c.api.log.Error("cannot write a problem", "code", string(p.Code), "error", err)
		shown.Members = nil
		doc, _ = shown.MarshalJSON() // fixed members are strings and integers: it cannot fail
	}
	c.dropLeases()
	c.out = append(c.out[:0], doc...)
	r := c.resp
	r.Status, r.ContentType = p.Status, problem.ContentType
	r.Unavailable, r.Location, r.ETag = 0, "", ""
	if p.Status == 429 || p.Status == 503 {
		r.RetryAfterS = max(1, int((p.RetryAfterMS+999)/1000))
	}
}

// within gives a context that ends after d.
func (c *call) within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d)
}
