package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/release"
)

// ClientConfig is what a Client needs to know.
type ClientConfig struct {
	NodeID    string        // of this process; "" for a tool
	ClusterID func() string // "" before admission
	Release   string        // whose request fields it knows and sends; "": this one's (tests name an older one)
	// Dial opens connections; nil is Dial of this package. TLS is a Dial of its own.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial opens a plain TCP connection that finds a vanished peer by probes.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: probeIdle, Interval: probeInterval, Count: probeCount,
	}}
	return dialer.DialContext(ctx, network, address)
}

// Client calls other nodes. It keeps connections per node and class. Safe for
// concurrent use.
type Client struct {
	cfg     ClientConfig
	bufs    buffers
	dropped dropped

	mu    sync.Mutex // guards pools
	pools map[poolKey]*pool
}

type poolKey struct {
	class Class
	addr  string
}

// NewClient returns a client without connections.
func NewClient(cfg ClientConfig) *Client {
	if cfg.Dial == nil {
		cfg.Dial = Dial
	}
	if cfg.Release == "" {
		cfg.Release = release.Name
	}
	return &Client{cfg: cfg, pools: map[poolKey]*pool{}, dropped: dropped{now: time.Now}}
}

// Close closes the idle connections; those in use close when their call ends.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pools {
		p.close()
	}
}

// pool returns the connections of a class to an address. There are as many as
// addresses that this process ever called, each a few hundred bytes once unused.
func (c *Client) pool(class Class, addr string) *pool {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := poolKey{class, addr}
	p := c.pools[key]
	if p == nil {
		p = &pool{client: c, addr: addr, slots: make(chan struct{}, defaultBounds()[class].conns)}
		c.pools[key] = p
	}
	return p
}

// Peer is one node as calls are addressed to it. Make it once per node and
// keep it: it holds prepared headers, while the Client holds the connections.
type Peer struct {
	client *Client
	id     string
	addr   string
	header atomic.Pointer[preparedHeader]
	pools  [classes]atomic.Pointer[pool]
}

// preparedHeader is the part of the head that all calls to a peer share.
type preparedHeader struct {
	cluster string
	lines   string
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
	head, err := p.headers()
	if err != nil {
		return Reply{}, p.fail(m, false, err)
	}
	// In one piece, because then head and body leave in one write.
	request := appendHead(p.client.bufs.get(maxHead+size), m, head, size)
	for _, part := range parts {
		request = append(request, part...)
	}
	reply, err := p.roundTrip(ctx, m, request)
	p.client.bufs.put(request)
	return reply, err
}

// maxHead is room for the head of a request: three ids and an address of at most
// 255 bytes each, and the rest. A longer one costs an allocation.
const maxHead = 1 << 10

func appendHead(b []byte, m Method, lines string, size int) []byte {
	b = append(b, "POST "+Prefix...)
	b = append(b, m.Name...)
	b = append(b, lines...)
	b = strconv.AppendInt(b, int64(size), 10)
	return append(b, "\r\n\r\n"...)
}

func (p *Peer) roundTrip(ctx context.Context, m Method, request []byte) (Reply, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultBudget)
		defer cancel()
	}
	pool := p.pools[m.Class].Load()
	if pool == nil {
		pool = p.client.pool(m.Class, p.addr)
		p.pools[m.Class].Store(pool)
	}
	a, sent := pool.do(ctx, m, request)
	switch {
	case a.err != nil:
		return Reply{}, p.fail(m, sent, a.err)
	case a.status == http.StatusOK:
		return Reply{Body: a.body, bufs: &p.client.bufs}, nil
	}
	defer p.client.bufs.put(a.body)
	refusal, err := readProblem(&a)
	if err != nil {
		return Reply{}, p.fail(m, true, err)
	}
	return Reply{}, refusal
}

func (p *Peer) fail(m Method, sent bool, err error) error {
	return &TransportError{Op: m.Name, Node: p.name(), Sent: sent, Err: err}
}

// CallJSON sends req and reads a Res, both strict JSON. A field of req that an
// older peer refuses is left out when package release says that it may be.
func CallJSON[Res any](ctx context.Context, p *Peer, m Method, req any) (*Res, error) {
	body, err := encodeJSON(nil, req)
	if err != nil {
		return nil, p.fail(m, false, err)
	}
	reply, err := p.callWithout(ctx, m, body)
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

// headers returns the shared part of the head, up to the length of the body, made
// again when the cluster id became known.
func (p *Peer) headers() (string, error) {
	cluster := p.client.cfg.ClusterID()
	if h := p.header.Load(); h != nil && h.cluster == cluster {
		return h.lines, nil
	}
	lines := " HTTP/1.1"
	for _, h := range [][2]string{
		{"Host", p.addr},
		{"User-Agent", "narad"},
		{"Content-Type", typeBinary[0]},
		{headerCluster, cluster},
		{headerFrom, p.client.cfg.NodeID},
		{headerTo, p.id},
	} {
		if strings.ContainsFunc(h[1], func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", fmt.Errorf("%s: %q cannot stand in a header", h[0], h[1])
		}
		if h[1] != "" {
			lines += "\r\n" + h[0] + ": " + h[1]
		}
	}
	lines += "\r\nContent-Length: "
	p.header.Store(&preparedHeader{cluster: cluster, lines: lines})
	return lines, nil
}

var (
	errNoLength = errors.New("the answer has no length")
	errTooLarge = errors.New("the answer is larger than the operation allows")
	errNotOurs  = errors.New("the answer is no problem document")
)

// readProblem reads a refusal. An error says that it is none.
func readProblem(a *answer) (*problem.Problem, error) {
	p := new(problem.Problem)
	if !a.problem {
		return nil, fmt.Errorf("status %d: %w", a.status, errNotOurs)
	}
	if err := p.UnmarshalJSON(a.body); err != nil || p.Code == "" {
		return nil, fmt.Errorf("status %d: %w", a.status, errNotOurs)
	}
	p.Status = a.status
	return p, nil
}
