package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/narad-mq/narad/libs/problem"
)

// ClientConfig is what a Client needs to know.
type ClientConfig struct {
	NodeID    string        // of this process; "" for a tool
	ClusterID func() string // "" before admission
	// Dial opens connections; nil dials plain TCP. TLS is a Dial of its own.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Client calls other nodes. It keeps connections per node and class. Safe for
// concurrent use.
type Client struct {
	cfg        ClientConfig
	transports [classes]*http.Transport
	bufs       buffers
}

// NewClient returns a client without connections.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: probeIdle, Interval: probeInterval, Count: probeCount,
		}}).DialContext
	}
	c := &Client{cfg: cfg}
	for class, limit := range defaultBounds() {
		n := limit.conns
		c.transports[class] = &http.Transport{
			DialContext: cfg.Dial, DisableCompression: true, IdleConnTimeout: clientIdle,
			MaxConnsPerHost: n, MaxIdleConnsPerHost: n,
			MaxResponseHeaderBytes: maxHeaderBytes, WriteBufferSize: limit.write,
		}
	}
	return c
}

// Close closes the idle connections; those in use close when their call ends.
func (c *Client) Close() {
	for _, t := range c.transports {
		t.CloseIdleConnections()
	}
}

// Peer is one node as calls are addressed to it. Make it once per node and
// keep it: it holds prepared headers, while the Client holds the connections.
type Peer struct {
	client *Client
	id     string
	addr   string
	header atomic.Pointer[preparedHeader]
}

type preparedHeader struct {
	cluster string
	header  http.Header // read only
}

// Peer returns a handle for the node id at host:port. With an id the peer
// refuses calls that reach another node (wrong_node); "" means whoever answers.
func (c *Client) Peer(id, addr string) *Peer { return &Peer{client: c, id: id, addr: addr} }

// Addr is the address that calls go to.
func (p *Peer) Addr() string { return p.addr }

// Reply is the body of an answer. Release gives its buffer back and is
// optional: keep the reply instead when something points into Body.
type Reply struct {
	Body []byte
	bufs *buffers
}

// Release ends the use of Body.
func (r Reply) Release() {
	if r.bufs != nil {
		r.bufs.put(r.Body)
	}
}

// Call sends the parts as one body and returns the whole reply. The context is
// the budget of the call; without a deadline it is DefaultBudget. Errors are
// *problem.Problem when the peer refused, else *TransportError. The parts are
// copied and belong to the caller again when Call returns.
func (p *Peer) Call(ctx context.Context, m Method, parts ...[]byte) (Reply, error) {
	size := 0
	for _, part := range parts {
		size += len(part)
	}
	if size == 0 || size > m.MaxRequest {
		return Reply{}, p.fail(m, false, fmt.Errorf("a body of %d bytes is outside 1..%d", size, m.MaxRequest))
	}
	// A copy, because net/http may read the body after a failed round trip, and
	// in one piece, because it writes header and body in one go only from a
	// reader that it knows. The buffer is used again only after a success.
	body := p.client.bufs.get(size)
	for _, part := range parts {
		body = append(body, part...)
	}
	reply, err := p.roundTrip(ctx, m, body)
	if err != nil {
		return Reply{}, err
	}
	p.client.bufs.put(body)
	return reply, nil
}

func (p *Peer) roundTrip(ctx context.Context, m Method, body []byte) (Reply, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultBudget)
		defer cancel()
	}
	ctx, tried := watch(ctx)
	newBody := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	first, err := newBody()
	if err != nil {
		return Reply{}, p.fail(m, false, err)
	}
	req := (&http.Request{
		Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		URL:  &url.URL{Scheme: "http", Host: p.addr, Path: Prefix + m.Name},
		Host: p.addr, Header: p.headers(), Body: first, ContentLength: int64(len(body)), GetBody: newBody,
	}).WithContext(ctx)
	resp, err := p.client.transports[m.Class].RoundTrip(req)
	if err != nil {
		return Reply{}, p.fail(m, tried.sent.Load(), err)
	}
	reply, err := p.client.read(resp, m)
	if closeErr := resp.Body.Close(); err == nil && closeErr != nil {
		err = closeErr
	}
	var refusal *problem.Problem
	if err != nil && !errors.As(err, &refusal) {
		err = p.fail(m, true, err)
	}
	return reply, err
}

func (p *Peer) fail(m Method, sent bool, err error) error {
	return &TransportError{Op: m.Name, Node: p.name(), Sent: sent, Err: err}
}

// CallJSON sends req and reads a Res, both strict JSON.
func CallJSON[Res any](ctx context.Context, p *Peer, m Method, req any) (*Res, error) {
	body, err := encodeJSON(nil, req)
	if err != nil {
		return nil, p.fail(m, false, err)
	}
	reply, err := p.Call(ctx, m, body)
	if err != nil {
		return nil, err
	}
	defer reply.Release()
	res := new(Res)
	if err := decodeJSON(reply.Body, res); err != nil {
		return nil, p.fail(m, true, fmt.Errorf("read the reply: %w", err))
	}
	return res, nil
}

func (p *Peer) name() string {
	if p.id == "" {
		return p.addr
	}
	return p.id + " at " + p.addr
}

// headers returns the shared header of this peer, made again when the cluster
// id became known.
func (p *Peer) headers() http.Header {
	cluster := p.client.cfg.ClusterID()
	if h := p.header.Load(); h != nil && h.cluster == cluster {
		return h.header
	}
	h := http.Header{"Content-Type": typeBinary, "User-Agent": {"narad"}}
	for name, value := range map[string]string{headerCluster: cluster, headerFrom: p.client.cfg.NodeID, headerTo: p.id} {
		if value != "" {
			h[name] = []string{value}
		}
	}
	p.header.Store(&preparedHeader{cluster: cluster, header: h})
	return h
}

var (
	errNoLength = errors.New("the answer has no length")
	errTooLarge = errors.New("the answer is larger than the operation allows")
	errNotOurs  = errors.New("the answer is no problem document")
)

func (c *Client) read(resp *http.Response, m Method) (Reply, error) {
	if resp.StatusCode == http.StatusOK {
		return c.readReply(resp, m.MaxReply)
	}
	refusal, err := c.readProblem(resp)
	if err != nil {
		return Reply{}, err
	}
	return Reply{}, refusal
}

// readReply reads a body to its end, so that its connection can be used again.
func (c *Client) readReply(resp *http.Response, limit int) (Reply, error) {
	n := resp.ContentLength
	switch {
	case n < 0:
		return Reply{}, errNoLength
	case n > int64(limit):
		return Reply{}, fmt.Errorf("%w: %d bytes", errTooLarge, n)
	}
	b := c.bufs.get(int(n))[:n]
	if _, err := io.ReadFull(resp.Body, b); err != nil {
		return Reply{}, fmt.Errorf("the answer ended early: %w", err)
	}
	return Reply{Body: b, bufs: &c.bufs}, nil
}

// readProblem reads a refusal. An error says that it is none.
func (c *Client) readProblem(resp *http.Response) (*problem.Problem, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxProblemBytes))
	if err != nil {
		return nil, fmt.Errorf("status %d, and the answer ended early: %w", resp.StatusCode, err)
	}
	p := new(problem.Problem)
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), problem.ContentType) {
		return nil, fmt.Errorf("status %d: %w", resp.StatusCode, errNotOurs)
	}
	if err := p.UnmarshalJSON(b); err != nil || p.Code == "" {
		return nil, fmt.Errorf("status %d: %w", resp.StatusCode, errNotOurs)
	}
	p.Status = resp.StatusCode
	return p, nil
}
