package edge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/problem"
)

// Limits and timeouts of the edge (api.md, section 12).
const (
	// maxHeaderBytes bounds the header section: cookies and tracing baggage of
	// proxies fit, sixteen attributes of a kilobyte each too.
	maxHeaderBytes = 32 << 10
	// maxRequestLine fits a key of 1 KiB with every byte escaped, and a long path.
	maxRequestLine = 8 << 10
	// headerTimeout ends a connection whose header does not come.
	headerTimeout = 10 * time.Second
	// bodyTimeout is for the whole body: a byte a second holds nothing for long.
	bodyTimeout = 30 * time.Second
	// writeTimeout is for one answer: 16 MiB at 2.2 Mbit/s.
	writeTimeout = 60 * time.Second
	// lingerBytes and lingerTimeout bound what is read and thrown away after an
	// answer that came before the end of the body, so that the client, busy
	// sending, sees the answer and not a reset.
	lingerBytes   = 4 << 20
	lingerTimeout = 10 * time.Second
	// keepAliveDrain is the rest of a body that is read to keep the connection.
	keepAliveDrain = 64 << 10
	// prefetch is how much of a body the server may read before the handler
	// decides whether it wants it at all.
	prefetch = 1

	// DefaultMaxConnections is --max-connections.
	DefaultMaxConnections = 10_000
	// ConnectionBytes is about what an open connection takes: the read buffer, the
	// write buffer, a stack and the request.
	ConnectionBytes = maxHeaderBytes + maxRequestLine + 12<<10
	// DefaultIdleTimeout is above the idle timeouts of common balancers, so that
	// they and not we close a connection that they are about to use.
	DefaultIdleTimeout = 650 * time.Second
)

// Handler answers requests; api.API is one.
type Handler interface {
	Serve(req *api.Request, resp *api.Response)
	Refuse(resp *api.Response, p *problem.Problem)
}

// Config is what an operator may set of the edge.
type Config struct {
	MaxConnections int           // 0: DefaultMaxConnections
	IdleTimeout    time.Duration // 0: DefaultIdleTimeout
	// BodyTimeout and HeaderTimeout are for tests; 0 is the value of api.md.
	BodyTimeout, HeaderTimeout time.Duration
}

// Server runs a Handler on one listener. Make one with New.
type Server struct {
	cfg     Config
	handler Handler
	log     *slog.Logger
	http    *fasthttp.Server

	mu sync.Mutex // guards ln
	ln *listener
}

// New makes a server. It starts nothing. log may be nil.
func New(cfg Config, h Handler, log *slog.Logger) *Server {
	if cfg.MaxConnections <= 0 {
		cfg.MaxConnections = DefaultMaxConnections
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&cfg.IdleTimeout, DefaultIdleTimeout}, {&cfg.BodyTimeout, bodyTimeout}, {&cfg.HeaderTimeout, headerTimeout}} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, handler: h, log: log}
	s.http = &fasthttp.Server{
		Handler: s.handle, ErrorHandler: s.malformed, ExpectHandler: s.expect,
		HeaderReceived: s.headerReceived, ConnState: connState, Logger: debugLogger{log},
		Concurrency:    2*cfg.MaxConnections + 64, // the listener limits; a worker may outlive its connection for a moment
		ReadBufferSize: maxHeaderBytes + maxRequestLine, ReadTimeout: cfg.HeaderTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: cfg.IdleTimeout,
		StreamRequestBody: true, MaxRequestBodySize: prefetch, DisablePreParseMultipartForm: true,
		NoDefaultServerHeader: true, NoDefaultContentType: true, CloseOnShutdown: true,
		SecureErrorLogMessage: true, LazyRequestTime: true,
	}
	return s
}

// Serve accepts connections until Shutdown; then it returns nil at once.
func (s *Server) Serve(ln net.Listener) error {
	l := newListener(ln, s.cfg.MaxConnections)
	s.mu.Lock()
	if s.ln != nil {
		s.mu.Unlock()
		return errors.New("this server serves already")
	}
	s.ln = l
	s.mu.Unlock()
	return s.http.Serve(l)
}

// Shutdown closes the listener, lets running requests end, and closes idle
// connections. When ctx ends first it closes what is left and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	l := s.ln
	s.mu.Unlock()
	if l == nil {
		return nil
	}
	lnErr := l.Close()
	err := s.http.ShutdownWithContext(ctx)
	l.closeConns()
	if err != nil {
		return err
	}
	return lnErr
}

// Connections is the number of open connections.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ln == nil {
		return 0
	}
	return s.ln.open()
}

// headerReceived gives the body its own time.
func (s *Server) headerReceived(h *fasthttp.RequestHeader) (cfg fasthttp.RequestConfig) {
	if n := h.ContentLength(); n > 0 || n == -1 {
		cfg.ReadTimeout = s.cfg.BodyTimeout
	}
	return cfg
}

// connState ends the exchange when its answer has been written, or when the
// connection ended before that.
func connState(nc net.Conn, state fasthttp.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	switch state {
	case fasthttp.StateIdle:
		c.linger.Store(false)
		c.x.end(!c.failed)
	case fasthttp.StateClosed:
		c.finish()
	}
}

// handle serves one request.
func (s *Server) handle(ctx *fasthttp.RequestCtx) { s.run(ctx, false) }

// run serves the request; it returns false, with nothing written, when a dry run
// got as far as the body.
func (s *Server) run(ctx *fasthttp.RequestCtx, dry bool) bool {
	c, ok := ctx.Conn().(*conn)
	if !ok {
		panic("BUG: a connection that did not come from the listener")
	}
	x := &c.x
	x.begin(c, ctx, dry)
	if p := tooLong(&ctx.Request.Header); p != nil {
		s.handler.Refuse(&x.resp, p)
	} else {
		s.handler.Serve(&x.req, &x.resp)
	}
	if x.resp.WantsBody {
		x.end(true)
		return false
	}
	// What is left of the body is read by the server if that is little, else after
	// the answer, before the connection ends.
	c.linger.Store(!x.body.done())
	if !x.body.drainable() {
		x.resp.Close = true
	}
	x.write(ctx)
	return true
}

// expect decides about "Expect: 100-continue" by a dry run of the handler.
func (s *Server) expect(ctx *fasthttp.RequestCtx) int {
	if !s.run(ctx, true) {
		return fasthttp.StatusContinue
	}
	return ctx.Response.StatusCode()
}

// tooLong holds a header that fitted into the buffer against its two limits.
func tooLong(h *fasthttp.RequestHeader) *problem.Problem {
	if len(h.Method())+len(h.RequestURI())+len(" ")+len(" HTTP/1.1") > maxRequestLine {
		return problem.New(problem.URITooLong, "a request line has at most %d bytes", maxRequestLine)
	}
	if len(h.RawHeaders()) > maxHeaderBytes {
		return problem.New(problem.HeadersTooLarge, "headers take at most %d bytes", maxHeaderBytes)
	}
	return nil
}

// malformed answers what is no request, or ends the connection without an answer
// when nothing came in time.
func (s *Server) malformed(ctx *fasthttp.RequestCtx, err error) {
	c, ok := ctx.Conn().(*conn)
	if !ok {
		return
	}
	p := s.classify(c, err)
	if p == nil {
		c.abort()
		return
	}
	x := &c.x
	x.end(true)
	s.handler.Refuse(&x.resp, p)
	x.open = true
	c.linger.Store(true)
	c.sent, c.failed = 0, false
	ctx.Response.Reset()
	x.write(ctx)
}

// classify tells what an error of the server means; nil: end without an answer.
func (s *Server) classify(c *conn, err error) *problem.Problem {
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.As(err, &small):
		if c.sinceLF >= maxHeaderBytes+maxRequestLine {
			return problem.New(problem.URITooLong, "a request line has at most %d bytes", maxRequestLine)
		}
		return problem.New(problem.HeadersTooLarge, "headers take at most %d bytes", maxHeaderBytes)
	case timedOut(err):
		// The server wraps errors of reading a header, and passes on those of a
		// body, or of a connection on which nothing came, as they are.
		if _, bare := err.(*net.OpError); bare && c.received > 0 {
			return problem.New(problem.RequestTimeout, "the body came too slowly")
		}
		return nil
	default:
		return problem.New(problem.InvalidRequest, "this is not a valid HTTP/1.1 request")
	}
}

// debugLogger takes what the server logs: only clients' faults, so at debug level.
type debugLogger struct{ log *slog.Logger }

// Printf implements fasthttp.Logger.
func (l debugLogger) Printf(format string, _ ...any) {
	l.log.Debug("http server", "event", format) // arguments may hold what a client sent
}
