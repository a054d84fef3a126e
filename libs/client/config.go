package client

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// DefaultURL is where a gateway listens when nothing else was said.
const DefaultURL = "http://127.0.0.1:7942"

const (
	// defaultAttempts follows an election (about 10 s) at the default delays.
	defaultAttempts = 8
	// defaultBaseDelay is a little above the time of one healthy request.
	defaultBaseDelay = 100 * time.Millisecond
	// defaultMaxDelay keeps a client that waits for a gateway within seconds of its return.
	defaultMaxDelay = 5 * time.Second
	// defaultAttemptTimeout is above every budget of the server (metadata: 10 s).
	defaultAttemptTimeout = 30 * time.Second
	// dialTimeout bounds how long a gateway that drops packets holds up the next one.
	dialTimeout = 5 * time.Second
	// idleConnTimeout is far below the gateway's (650 s), so that the client closes
	// first and a produce is not written into a connection that is being closed.
	idleConnTimeout = 90 * time.Second
	// idleConnsPerGateway lets that many concurrent callers keep their connections.
	idleConnsPerGateway = 128
)

// Retry says how often and how fast a failed attempt is repeated.
type Retry struct {
	// Attempts is the total number of tries of one call; 1 switches repeating off.
	// 0 means 8. With several URLs it is raised so that each gets two tries.
	Attempts int
	// BaseDelay is the first delay, doubled per attempt up to MaxDelay, each with
	// jitter. 0 means 100 ms and 5 s. A Retry-After that asks for more wins.
	BaseDelay, MaxDelay time.Duration
}

// Config is what New needs. The zero value talks to DefaultURL.
type Config struct {
	// URL of one gateway (or of a balancer before several): http or https, with an
	// optional path prefix.
	URL string
	// URLs of several gateways, tried in order. With URL given too, URL comes first.
	URLs []string
	// HTTPClient is used instead of an own one, for TLS or proxies. It is copied;
	// redirects are refused whatever it says. Leave its Timeout 0: it would cut long polls.
	HTTPClient *http.Client
	// UserAgent is sent as it is; empty: "narad-go".
	UserAgent string
	// AttemptTimeout bounds one try, beside the time that the server waits on
	// purpose. 0 means 30 s. The caller's context bounds the whole call.
	AttemptTimeout time.Duration
	// Retry of failed attempts.
	Retry Retry
}

// Client talks to the gateways of one cluster. It is safe for concurrent use.
type Client struct {
	bases     []string // without a trailing slash
	http      *http.Client
	own       *http.Transport // nil when the caller brought a client
	userAgent string
	timeout   time.Duration
	retry     Retry
	current   atomic.Uint32 // index of the gateway that answered last
}

// New checks cfg and makes a client. Nothing is dialled.
func New(cfg Config) (*Client, error) {
	bases, err := baseURLs(cfg)
	if err != nil {
		return nil, err
	}
	c := &Client{bases: bases, userAgent: cfg.UserAgent, timeout: cfg.AttemptTimeout, retry: cfg.Retry}
	if c.userAgent == "" {
		c.userAgent = "narad-go"
	}
	if c.timeout <= 0 {
		c.timeout = defaultAttemptTimeout
	}
	c.retry = c.retry.withDefaults(len(bases))
	if cfg.HTTPClient != nil {
		shallow := *cfg.HTTPClient
		c.http = &shallow
	} else {
		c.own = newTransport()
		c.http = &http.Client{Transport: c.own}
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// Close closes idle connections of a client that made its own. Calls in flight go on.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

func (r Retry) withDefaults(gateways int) Retry {
	if r.Attempts <= 0 {
		r.Attempts = defaultAttempts
	}
	if r.Attempts > 1 && gateways > 1 {
		r.Attempts = max(r.Attempts, 2*gateways)
	}
	if r.BaseDelay <= 0 {
		r.BaseDelay = defaultBaseDelay
	}
	if r.MaxDelay <= 0 {
		r.MaxDelay = defaultMaxDelay
	}
	r.MaxDelay = max(r.MaxDelay, r.BaseDelay)
	return r
}

func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: dialTimeout,
		MaxIdleConnsPerHost: idleConnsPerGateway,
		IdleConnTimeout:     idleConnTimeout,
		DisableCompression:  true, // answers are not compressed
		ForceAttemptHTTP2:   true,
	}
}

func baseURLs(cfg Config) ([]string, error) {
	var given []string
	if cfg.URL != "" {
		given = append(given, cfg.URL)
	}
	given = append(given, cfg.URLs...)
	if len(given) == 0 {
		given = []string{DefaultURL}
	}
	bases := make([]string, 0, len(given))
	for _, s := range given {
		b, err := baseURL(s)
		if err != nil {
			return nil, err
		}
		bases = append(bases, b)
	}
	return bases, nil
}

func baseURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("gateway url: not a url (want http://host:port)") // err would repeat the text, maybe a secret
	}
	switch {
	case u.User != nil:
		return "", errors.New("gateway url: user info is refused, it ends in logs")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("gateway url %q: want http://host:port or https://host:port", s)
	case u.Host == "":
		return "", fmt.Errorf("gateway url %q: no host", s)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("gateway url %q: no query and no fragment are allowed", s)
	}
	return u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}
