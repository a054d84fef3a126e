package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
)

// Request is one call as a handler sees it.
type Request struct {
	From string // node id that the sender gave; not proven
	// Body may be used until the handler returns nil. A handler that returns an
	// error may still be using it (a write that goes on after its caller gave
	// up): such a buffer is never used again for another call.
	Body []byte
}

// Handler does one call: it appends the reply to reply and returns it. Errors
// that are not a *problem.Problem become 500 internal and are logged here.
type Handler func(ctx context.Context, req *Request, reply []byte) ([]byte, error)

// PartsHandler is a Handler of large replies: it gives the reply in parts, which are
// written one after the other without being copied. The first is appended to reply. done,
// unless nil, is called when none of the parts is used any more.
type PartsHandler func(ctx context.Context, req *Request, reply []byte) (parts [][]byte, done func(), err error)

// ServerConfig is what a Server needs to know.
type ServerConfig struct {
	NodeID    string
	ClusterID func() string // of this node; "" before admission
	Log       *slog.Logger
	Release   string // whose request fields it knows; "": this one's (tests name an older one)
}

// Server answers calls. Make it with NewServer, give it handlers, then Serve.
type Server struct {
	cfg       ServerConfig
	http      *http.Server
	ops       map[string]*operation // complete before Serve; read only from then on
	limits    [classes]bounds
	use       [classes]usage
	bufs      buffers
	complains [complaints]atomic.Int64 // Unix seconds of the last logged call of each kind
}

type operation struct {
	Method
	handle PartsHandler
	json   bool
}

type usage struct {
	slots, bytes atomic.Int64
	_            [48]byte // classes do not share a cache line
}

// NewServer returns a server without operations.
func NewServer(cfg ServerConfig) *Server {
	if cfg.Release == "" {
		cfg.Release = release.Name
	}
	s := &Server{cfg: cfg, ops: map[string]*operation{}, limits: defaultBounds()}
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), MaxHeaderBytes: maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: serverIdle,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s
}

// Handle adds an operation whose bodies are raw bytes. Call it before Serve; a
// name that is taken panics.
func (s *Server) Handle(m Method, h Handler) { s.add(&operation{Method: m, handle: whole(h)}) }

// HandleParts is Handle for large replies.
func (s *Server) HandleParts(m Method, h PartsHandler) { s.add(&operation{Method: m, handle: h}) }

// whole is a handler whose reply is one part.
func whole(h Handler) PartsHandler {
	return func(ctx context.Context, req *Request, reply []byte) ([][]byte, func(), error) {
		reply, err := h(ctx, req, reply)
		return [][]byte{reply}, nil, err
	}
}

func (s *Server) add(op *operation) {
	if s.ops[op.Name] != nil {
		panic("BUG: rpc operation registered twice: " + op.Name)
	}
	s.ops[op.Name] = op
}

// Methods lists the operations that were added so far, by name. It is for tests that
// must miss none.
func (s *Server) Methods() []Method {
	out := make([]Method, 0, len(s.ops))
	for _, name := range slices.Sorted(maps.Keys(s.ops)) {
		out = append(out, s.ops[name].Method)
	}
	return out
}

// HandleJSON adds an operation with strict JSON both ways.
func HandleJSON[Req, Res any](s *Server, m Method, h func(context.Context, *Req) (*Res, error)) {
	lacks := release.Lacks(s.cfg.Release, m.Name)
	s.add(&operation{Method: m, json: true, handle: whole(func(ctx context.Context, r *Request, reply []byte) ([]byte, error) {
		if refusal := unknownField(r.Body, lacks); refusal != nil {
			return nil, refusal
		}
		req := new(Req)
		if err := decodeJSON(r.Body, req); err != nil {
			return nil, &malformedError{invalidJSON(err)}
		}
		res, err := h(ctx, req)
		if err != nil {
			return nil, err
		}
		return encodeJSON(reply, res)
	})})
}

// Serve answers on ln until Shutdown or Close, and then returns nil. The
// listener decides whether the plane is TLS.
func (s *Server) Serve(ln net.Listener) error {
	err := s.http.Serve(newLimitListener(ln, maxConns))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve node rpc on %s: %w", ln.Addr(), err)
}

// Shutdown stops accepting and waits for the calls that run, until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close ends every connection at once.
func (s *Server) Close() error { return s.http.Close() }

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header()["Date"] = nil // nobody reads it and formatting it costs
	op, p := s.admit(r)
	if p != nil {
		s.refuse(w, r, p)
		return
	}
	use, limit := &s.use[op.Class], s.limits[op.Class]
	slots, bytes := use.slots.Add(1), use.bytes.Add(r.ContentLength)
	defer use.slots.Add(-1)
	defer use.bytes.Add(-r.ContentLength)
	if slots > limit.slots || bytes > limit.bytes {
		s.refuse(w, r, problem.New(problem.Overloaded, "too many %s calls at once", op.Class))
		return
	}
	s.run(w, r, op)
}

// run reads the body, calls the handler and writes what it said.
func (s *Server) run(w http.ResponseWriter, r *http.Request, op *operation) {
	n := int(r.ContentLength)
	body := s.bufs.get(n)[:n]
	if _, err := io.ReadFull(r.Body, body); err != nil {
		s.refuse(w, r, bodyProblem(err))
		return
	}
	req := Request{From: r.Header.Get(headerFrom), Body: body}
	parts, done, err := op.handle(r.Context(), &req, s.bufs.get(0))
	if done != nil {
		defer done()
	}
	if err != nil {
		s.refuse(w, r, s.problemOf(r, op, err))
		return
	}
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if size > op.MaxReply {
		s.refuse(w, r, s.problemOf(r, op, fmt.Errorf("the reply has %d bytes, the bound is %d", size, op.MaxReply)))
		return
	}
	contentType := typeBinary
	if op.json {
		contentType = typeJSON
	}
	write(w, http.StatusOK, contentType, size, parts...)
	s.bufs.put(body)
	s.bufs.put(parts[0])
}

func bodyProblem(err error) *problem.Problem {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return problem.New(problem.RequestTimeout, "the body did not arrive in time")
	}
	return problem.New(problem.InvalidRequest, "the body ended early")
}

// admit checks everything that can be checked before the body is read.
func (s *Server) admit(r *http.Request) (*operation, *problem.Problem) {
	name, ok := strings.CutPrefix(r.URL.Path, Prefix)
	op := s.ops[name]
	if !ok || op == nil {
		if ok {
			s.complain(complaintRoute, "refused a call of an operation that this node does not serve", r, slog.String("operation", name[:min(len(name), maxLoggedName)]))
		}
		return nil, problem.New(problem.RouteNotFound, "no operation of that name")
	}
	if r.Method != http.MethodPost {
		return nil, problem.New(problem.MethodNotAllowed, "operations are called with POST")
	}
	theirs, ours := r.Header.Get(headerCluster), s.cfg.ClusterID()
	if theirs != "" && ours != "" && theirs != ours {
		s.complain(complaintCluster, "refused a call from another cluster", r, slog.String("their_cluster", theirs))
		return nil, problem.New(problem.WrongCluster, "this node belongs to another cluster")
	}
	if to := r.Header.Get(headerTo); to != "" && to != s.cfg.NodeID {
		s.complain(complaintNode, "refused a call that was meant for another node", r, slog.String("meant_for", to))
		return nil, problem.New(problem.WrongNode, "this node has another id")
	}
	if r.ContentLength < 0 {
		return nil, problem.New(problem.InvalidRequest, "a Content-Length is needed")
	}
	if r.ContentLength > int64(op.MaxRequest) {
		s.complain(complaintBody, "refused a call with too large a body", r, slog.String("operation", op.Name))
		return nil, problem.New(problem.BodyTooLarge, "the body may have %d bytes", op.MaxRequest)
	}
	return op, nil
}

// Kinds of calls that are logged; one does not hide another.
const (
	complaintCluster = iota
	complaintNode
	complaintBody
	complaintRoute // a warning: a newer release may ask for what an older one does not have
	complaints     // how many there are
)

// complainEvery bounds the log lines that a misconfigured peer can cause, by kind.
const complainEvery = 60 // seconds

// maxLoggedName bounds what is logged of a name that nobody registered, in bytes; ours
// are shorter.
const maxLoggedName = 64

func (s *Server) complain(kind int, what string, r *http.Request, attr slog.Attr) {
	level := slog.LevelError
	if kind == complaintRoute {
		level = slog.LevelWarn
	}
	now, last := time.Now().Unix(), s.complains[kind].Load()
	if now-last >= complainEvery && s.complains[kind].CompareAndSwap(last, now) {
		s.cfg.Log.LogAttrs(r.Context(), level, what,
			slog.String("from", r.Header.Get(headerFrom)), slog.String("address", r.RemoteAddr), attr)
	}
}

// problemOf is the boundary where an error becomes a refusal.
func (s *Server) problemOf(r *http.Request, op *operation, err error) *problem.Problem {
	var p *problem.Problem
	if errors.As(err, &p) {
		if malformed := (*malformedError)(nil); errors.As(err, &malformed) {
			s.complain(complaintBody, "refused a malformed call", r, slog.String("operation", op.Name))
		}
		return p
	}
	if r.Context().Err() != nil { // nobody waits for the answer
		return problem.New(problem.OutcomeUnknown, "the caller gave up")
	}
	s.cfg.Log.LogAttrs(r.Context(), slog.LevelError, "rpc failed", slog.String("operation", op.Name),
		slog.String("from", r.Header.Get(headerFrom)), slog.String("error", err.Error()))
	return problem.New(problem.Internal, "%s failed; the log of %s has the reason", op.Name, s.cfg.NodeID)
}
