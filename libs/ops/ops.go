// Package ops is the operator port that every daemon opens: /healthz, /readyz,
// /metrics, and what a role adds (/readyz/accept, /quorum, /metrics/topics).
//
// Invariant: the port answers from the first moment of the process until its
// end, whatever the role is doing: /healthz is 200 all that time, so that a node
// that recovers for minutes is never killed by its own probe, and /readyz says
// `starting` until the role has handed over its Source. Nothing here is trusted
// with a decision, and nothing carries message content. ops_test.go shows it.
package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Reason is why a node is not ready, or what is degraded about it.
type Reason struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// The codes of Reason that roles share (api.md, section 10).
const (
	ReasonStarting           = "starting"
	ReasonNotAdmitted        = "not_admitted"
	ReasonNoLeader           = "no_leader"
	ReasonContactStale       = "leader_contact_stale"
	ReasonNotCaughtUp        = "not_caught_up"
	ReasonReplicasCatchingUp = "replicas_catching_up"
	ReasonWALUnavailable     = "wal_unavailable"
	ReasonDiskFull           = "disk_full"
	ReasonDraining           = "draining"
	ReasonStopping           = "stopping"
	ReasonApplyStopped       = "apply_stopped"
)

// Source is what a role shows on its operator port. Every function is called
// from many goroutines, answers at once, and may be nil.
type Source struct {
	// Ready lists why the node is not ready (none: it is) and what is degraded.
	Ready func() (reasons, degraded []Reason)
	// Accept lists why a gateway would not answer a produce with 202.
	Accept func() []Reason
	// Quorum gives the program's own view of the metastore's Raft.
	Quorum func() (any, error)
	// TopicMetrics serves /metrics/topics.
	TopicMetrics http.Handler
}

// Identity is what the port says of the process.
type Identity struct{ NodeID, Role, Release string }

// Timeouts of the operator port: its requests are small and its clients local.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	stopTimeout  = time.Second
	maxHeader    = 16 << 10
)

// Server is a running operator port.
type Server struct {
	id     Identity
	http   *http.Server
	addr   net.Addr
	source atomic.Pointer[Source]
	ended  chan error
}

// Option adds something to the port that not every process shows.
type Option func(*http.ServeMux)

// WithProfiles adds /debug/pprof/ when on is set (--pprof): CPU and heap profiles
// and stacks of a running process, for whoever may reach the port. A CPU profile
// of 30 s or more is refused, because an answer ends before that.
func WithProfiles(on bool) Option {
	return func(mux *http.ServeMux) {
		if !on {
			return
		}
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
}

// Start opens the port and serves it. The registry is what /metrics shows.
func Start(addr string, id Identity, registry *prometheus.Registry, options ...Option) (*Server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("open the operator port: %w", err)
	}
	s := &Server{id: id, addr: listener.Addr(), ended: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /readyz/accept", s.accept)
	mux.HandleFunc("GET /quorum", s.quorum)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /metrics/topics", s.topicMetrics)
	for _, add := range options {
		add(mux)
	}
	s.http = &http.Server{
		Handler: mux, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader,
	}
	go func() { s.ended <- s.http.Serve(listener) }()
	return s, nil
}

// NewRegistry makes a registry with the Go and process collectors.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Addr is the bound address.
func (s *Server) Addr() net.Addr { return s.addr }

// SetSource hands the role's answers over; nil takes them back.
func (s *Server) SetSource(source *Source) { s.source.Store(source) }

// Close ends the port.
func (s *Server) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.ended
	return err
}

// readiness is the document of /readyz.
type readiness struct {
	Status   string   `json:"status"`
	NodeID   string   `json:"node_id"`
	Role     string   `json:"role"`
	Release  string   `json:"release"`
	Reasons  []Reason `json:"reasons"`
	Degraded []Reason `json:"degraded"`
}

func (s *Server) writeReadiness(w http.ResponseWriter, reasons, degraded []Reason) {
	doc := readiness{
		Status: "ready", NodeID: s.id.NodeID, Role: s.id.Role, Release: s.id.Release,
		Reasons: append([]Reason{}, reasons...), Degraded: append([]Reason{}, degraded...),
	}
	status := http.StatusOK
	if len(reasons) > 0 {
		doc.Status, status = "not_ready", http.StatusServiceUnavailable
	}
	writeJSON(w, status, doc)
}

func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	source := s.source.Load()
	if source == nil || source.Ready == nil {
		s.writeReadiness(w, []Reason{{ReasonStarting, "the role is opening"}}, nil)
		return
	}
	reasons, degraded := source.Ready()
	s.writeReadiness(w, reasons, degraded)
}

func (s *Server) accept(w http.ResponseWriter, r *http.Request) {
	source := s.source.Load()
	switch {
	case source == nil:
		s.writeReadiness(w, []Reason{{ReasonStarting, "the role is opening"}}, nil)
	case source.Accept == nil:
		http.NotFound(w, r)
	default:
		s.writeReadiness(w, source.Accept(), nil)
	}
}

func (s *Server) quorum(w http.ResponseWriter, r *http.Request) {
	source := s.source.Load()
	switch {
	case source == nil:
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "starting"})
		return
	case source.Quorum == nil:
		http.NotFound(w, r) // this role will never have one: it is not starting
		return
	}
	doc, err := source.Quorum()
	if err != nil {
		writeJSON(w, http.StatusServiceUnavailable, map[string]string{"status": "unavailable", "detail": err.Error()})
		return
	}
	writeJSON(w, http.StatusOK, doc)
}

func (s *Server) topicMetrics(w http.ResponseWriter, r *http.Request) {
	source := s.source.Load()
	if source == nil || source.TopicMetrics == nil {
		http.NotFound(w, r)
		return
	}
	source.TopicMetrics.ServeHTTP(w, r)
}

// writeJSON writes a document; a client that went away is its own business.
func writeJSON(w http.ResponseWriter, status int, doc any) {
	body, err := json.Marshal(doc)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"status":"internal"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n'))
}
