package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// restartDelay is the contract's second.
	restartDelay = time.Second
	// lookEvery is how often a hold file and readiness are looked at.
	lookEvery = 50 * time.Millisecond
	// probeTimeout bounds one look at /readyz.
	probeTimeout = 2 * time.Second
	// stageTimeout is the programs' promise (15 s) and a little; then they are killed.
	stageTimeout = 16 * time.Second
	// stopTimeout bounds a whole stop: normally stages take well under a second.
	stopTimeout = 36 * time.Second
)

// Config of a cluster.
type Config struct {
	Size      Size
	BasePort  int
	DataDir   string // made when it does not exist
	ReadyFile string // written once every node was ready and every voter had its vote, removed when they stop; empty: none
	LogLevel  string // of the nodes; empty: info
	TLS       bool   // between nodes, with certificates under DataDir that are made if they are not there
	NoGossip  bool   // start every node without gossip
	NATSURL   string // of the NATS server of the bus; empty: one inside this process
	// Program finds the executable of a role. Nil: Find.
	Program func(name string) (string, error)
	// Log hears of nodes that die and come back, one line each. Nil: nobody.
	Log io.Writer
}

// Cluster is a planned and then running set of nodes.
type Cluster struct {
	cfg    Config
	bus    string // address of the NATS server inside this process; empty: none
	nodes  []*process
	starts chan func() // run on the one thread that the children's lives hang on
	kill   chan struct{}

	voteWait time.Duration // voteLimit, but in tests

	mu  sync.Mutex // guards log and the order of writes of endpoints.json; held across that write on purpose: the file must not go back in time
	pid []int      // by index of nodes; guarded by mu
}

// New plans a cluster and checks all that can be checked before a process runs: the
// programs are there, the ports are free, the data belongs to such a cluster.
func New(cfg Config) (*Cluster, error) {
	if cfg.Program == nil {
		cfg.Program = Find
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	if cfg.LogLevel == "" {
		cfg.LogLevel = "info"
	}
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", cfg.DataDir, err)
	}
	cfg.DataDir = dir
	l, err := plan(cfg)
	if err != nil {
		return nil, err
	}
	if addr := l.busy(); addr != "" {
		return nil, fmt.Errorf("%s is in use: stop what listens there, or choose another --base-port (%d ports from it are needed)", addr, PortSpan)
	}
	c := &Cluster{cfg: cfg, bus: l.bus, pid: make([]int, len(l.nodes)), starts: make(chan func()), kill: make(chan struct{}), voteWait: voteLimit}
	for i, n := range l.nodes {
		path, err := cfg.Program(n.role)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, &process{node: n, cluster: c, index: i, path: path, stop: make(chan struct{}), done: make(chan struct{})})
	}
	if err := claim(dir, made{BasePort: cfg.BasePort, Voters: cfg.Size.Voters}); err != nil {
		return nil, err
	}
	if cfg.TLS {
		return c, errors.Join(makeCerts(certsDir(dir), l.nodes), makeSecret(secretFile(dir)))
	}
	return c, nil
}

// URLs of the gateways, for clients.
func (c *Cluster) URLs() []string {
	var urls []string
	for _, p := range c.nodes {
		if p.http != "" {
			urls = append(urls, "http://"+p.http)
		}
	}
	return urls
}

// Run starts every node, calls ready once when all are ready and vote, keeps them running
// until ctx ends, then stops them in order: gateways, storage nodes, voters. An
// error names nodes that had to be killed or that stopped with a failure.
func (c *Cluster) Run(ctx context.Context, ready func()) error {
	if c.cfg.ReadyFile != "" {
		if err := remove(c.cfg.ReadyFile); err != nil { // of an earlier run
			return fmt.Errorf("remove old ready file: %w", err)
		}
	}
	for _, p := range c.nodes { // of an earlier run that was killed
		if err := remove(c.file(p.id + ".pid")); err != nil {
			return fmt.Errorf("remove old pid file: %w", err)
		}
	}
	if err := c.setPID(0, 0); err != nil { // endpoints.json is there before any process
		return err
	}
	if c.bus != "" {
		stopBus, err := serveBus(c.bus)
		if err != nil {
			return err
		}
		defer stopBus() // after the last node, so that none loses it on its way out
	}
	launcher := make(chan struct{})
	go func() { defer close(launcher); c.launch() }()
	for _, p := range c.nodes {
		go p.supervise()
	}
	err := c.awaitReady(ctx)
	if err == nil && ctx.Err() == nil && ready != nil {
		ready()
	}
	if err == nil {
		<-ctx.Done()
	}
	err = errors.Join(err, c.stop())
	close(c.starts)
	<-launcher
	return err
}

// Kill ends the children at once: the answer to an operator who asks to stop twice.
// To be called once, while Run stops.
func (c *Cluster) Kill() { close(c.kill) }

// launch runs starts on one thread that lives until the last child has ended:
// Pdeathsig fires when the thread that made the child ends, not the process.
func (c *Cluster) launch() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for start := range c.starts {
		start()
	}
}

// awaitReady returns when one look at every node found it ready and every voter with its
// vote, as far as that comes in time, and has written the ready file then; or when ctx ends.
func (c *Cluster) awaitReady(ctx context.Context) error {
	client := &http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var since time.Time // when every node was ready first
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if slices.ContainsFunc(c.nodes, func(p *process) bool { return !isReady(ctx, client, p.ops) }) {
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		if !c.allVote(ctx, client) {
			if time.Since(since) < c.voteWait {
				continue
			}
			c.logf("not every voter has its vote after %s: end none of the others before `narad cluster quorum` shows all as voters", c.voteWait)
		}
		if c.cfg.ReadyFile == "" {
			return nil
		}
		content := ""
		for _, u := range c.URLs() {
			content += u + "\n"
		}
		return replace(c.cfg.ReadyFile, []byte(content))
	}
}

// stop ends the roles one after the other, each node of a role at once.
func (c *Cluster) stop() error {
	all := time.Now().Add(stopTimeout)
	var errs []error
	if c.cfg.ReadyFile != "" {
		errs = append(errs, remove(c.cfg.ReadyFile)) // ready no more, and no trap for the next run
	}
	for _, role := range []string{Gateway, Storage, Voter} {
		deadline := time.NewTimer(min(stageTimeout, time.Until(all)))
		for _, p := range c.nodes {
			if p.role == role {
				close(p.stop)
			}
		}
		expired := false
		for _, p := range c.nodes {
			if p.role != role {
				continue
			}
			if !expired {
				select {
				case <-p.done:
				case <-deadline.C:
					expired = true
				case <-c.kill:
					expired = true
				}
			}
			if expired {
				p.kill()
				<-p.done
			}
			errs = append(errs, p.err)
		}
		deadline.Stop()
	}
	return errors.Join(errs...)
}

// setPID notes the process of a node (0: none) and replaces endpoints.json.
func (c *Cluster) setPID(index, pid int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pid[index] = pid
	list := make([]endpoint, len(c.nodes))
	for i, p := range c.nodes {
		list[i] = endpoint{ID: p.id, Role: p.role, PID: c.pid[i], HTTP: addr(p.http), RPC: addr(p.rpc), Raft: addr(p.raft), Ops: addr(p.ops)}
	}
	return writeJSON(c.file("endpoints.json"), list)
}

func addr(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func (c *Cluster) file(name string) string { return filepath.Join(c.cfg.DataDir, "run", name) }

func (c *Cluster) logf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.cfg.Log, format+"\n", args...)
}
