package gossip

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/prometheus/client_golang/prometheus"
)

// refreshEvery makes up for a hand-over that was missed.
const refreshEvery = 500 * time.Millisecond

// Config of a Gossip.
type Config struct {
	NodeID    string
	Bind      string       // host:port, TCP and UDP; port 0 takes a free one
	Advertise string       // host that others dial
	Key       []byte       // of Key or ReadKey; nil: plaintext
	Log       *slog.Logger // nil discards
	Registry  prometheus.Registerer
	Suspects  *Suspects // where the result goes
}

// Source is what Run follows: the node's own metadata view.
type Source struct {
	// ClusterID is the label; "" as long as it is not known.
	ClusterID func() string
	// Peers gives the gossip address of each member of record, this one too;
	// "": it does not gossip.
	Peers func() map[string]string
	// Changed is closed at the next change of either. Taken before reading.
	Changed func() <-chan struct{}
}

// Gossip is one node's part in the gossip of its cluster.
type Gossip struct {
	cfg  Config
	port int
	wire *memberlist.NetTransport
	// waiting ends the turning away of whoever comes. Run's, or Close's without it.
	waiting func()

	mu      sync.Mutex // guards started and closed
	started bool       // Run owns the port
	closed  bool
	stop    chan struct{} // closed by Close
	ended   chan struct{} // closed when the port is free

	peers   atomic.Pointer[map[string]string]
	poked   chan struct{} // something changed in memberlist
	members atomic.Int64  // in the gossip cluster, this one too

	// seen are those that were heard once and are members of record. Run's.
	seen map[string]bool
}

// Open binds the port. Run does the rest; until then whoever comes is turned away.
func Open(cfg Config) (*Gossip, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Suspects == nil {
		cfg.Suspects = NewSuspects()
	}
	host, port, err := bindAddr(cfg.Bind)
	if err != nil {
		return nil, fmt.Errorf("gossip address %q: %w", cfg.Bind, err)
	}
	g := &Gossip{
		cfg: cfg, stop: make(chan struct{}), ended: make(chan struct{}), poked: make(chan struct{}, 1), seen: map[string]bool{},
	}
	g.peers.Store(&map[string]string{})
	if g.wire, err = listen(host, port, g.logger()); err != nil {
		return nil, fmt.Errorf("listen for gossip on %q: %w", cfg.Bind, err)
	}
	g.port = g.wire.GetAutoBindPort()
	g.waiting = turnAway(g.wire)
	if err := g.register(); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Gossip) logger() *log.Logger {
	return log.New(&logWriter{log: g.cfg.Log, now: time.Now}, "", 0)
}

func (g *Gossip) register() error {
	if g.cfg.Registry == nil {
		return nil
	}
	gauge := func(name, help string, value func() float64) error {
		return g.cfg.Registry.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	err := errors.Join(
		gauge("narad_gossip_members", "Nodes that this node hears of in gossip, itself too; 0 before it takes part.", func() float64 {
			return float64(g.members.Load())
		}),
		gauge("narad_gossip_suspected", "Nodes that gossip holds for dead; a hint for routing only.", func() float64 {
			return float64(len(g.cfg.Suspects.All()))
		}),
	)
	if err != nil {
		return fmt.Errorf("register metrics of gossip: %w", err)
	}
	return nil
}

// turnAway keeps the port usable while there is no label to tell friend from
// stranger: the wire's own goroutines block until somebody reads it.
func turnAway(wire *memberlist.NetTransport) (end func()) {
	stop := make(chan struct{})
	var gone sync.WaitGroup
	gone.Go(func() {
		for {
			select {
			case conn := <-wire.StreamCh():
				_ = conn.Close()
			case <-wire.PacketCh():
			case <-stop:
				return
			}
		}
	})
	return func() { close(stop); gone.Wait() }
}

// Addr is what others dial.
func (g *Gossip) Addr() string { return net.JoinHostPort(g.cfg.Advertise, strconv.Itoa(g.port)) }

// Members is how many nodes are heard, this one too; 0 before it takes part.
func (g *Gossip) Members() int { return int(g.members.Load()) }

// Close ends Run, if it runs, and gives the port back. It may be called more than once.
func (g *Gossip) Close() {
	g.mu.Lock()
	first, started := !g.closed, g.started
	g.closed = true
	g.mu.Unlock()
	if first {
		close(g.stop)
		if !started {
			g.release()
		}
	}
	<-g.ended
}

// release gives the port back that nobody uses.
func (g *Gossip) release() {
	_ = g.wire.Shutdown() // its error is always nil
	g.waiting()
	close(g.ended)
}

// Run takes part in the gossip of the cluster until ctx ends, and gives the port
// back. It is called once. It returns nil: what goes wrong is logged and tried again.
func (g *Gossip) Run(ctx context.Context, src Source) error {
	g.mu.Lock()
	closed := g.closed
	g.started = !closed
	g.mu.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { // Close ends Run as well
		select {
		case <-g.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	list := g.begin(ctx, src)
	if list == nil {
		<-ctx.Done()
		g.release()
		return nil
	}
	var joining sync.WaitGroup
	joining.Go(func() { g.joinLoop(ctx, list) })
	g.watch(ctx, src, list)
	joining.Wait()
	g.members.Store(0)
	g.cfg.Suspects.set(nil)
	_ = list.Shutdown() // its error is always nil
	close(g.ended)
	return nil
}

// begin waits for what memberlist needs and starts it; nil: it does not run.
func (g *Gossip) begin(ctx context.Context, src Source) *memberlist.Memberlist {
	if !g.awaitCluster(ctx, src) {
		return nil
	}
	ip, err := g.advertiseIP(ctx)
	if err != nil {
		return nil // ctx ended
	}
	g.follow(src)
	g.waiting()
	list, err := memberlist.Create(g.options(src.ClusterID(), ip))
	if err != nil {
		g.waiting = turnAway(g.wire)
		g.cfg.Log.Error("gossip is off: it could not start; routing learns of dead nodes from the metastore only", "err", err)
		return nil
	}
	g.cfg.Log.Info("gossip has started", "addr", g.Addr(), "ip", ip.String(), "encrypted", g.cfg.Key != nil)
	return list
}

func (g *Gossip) awaitCluster(ctx context.Context, src Source) bool {
	for {
		changed := src.Changed()
		if src.ClusterID() != "" {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// follow takes over the members of record.
func (g *Gossip) follow(src Source) {
	peers := src.Peers()
	g.peers.Store(&peers)
}

// watch keeps the suspects up to date.
func (g *Gossip) watch(ctx context.Context, src Source, list *memberlist.Memberlist) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		changed := src.Changed()
		g.follow(src)
		g.refresh(list)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-g.poked:
		case <-tick.C:
		}
	}
}

// refresh compares who is heard with who was, among the members of record.
func (g *Gossip) refresh(list *memberlist.Memberlist) {
	peers := *g.peers.Load()
	live := map[string]bool{}
	for _, n := range list.Members() {
		live[n.Name] = true
	}
	g.members.Store(int64(len(live)))
	suspects := map[string]bool{}
	for id, addr := range peers {
		switch {
		case live[id]:
			g.seen[id] = true
		case g.seen[id] && addr != "":
			suspects[id] = true
		}
	}
	for id := range g.seen {
		if peers[id] == "" {
			delete(g.seen, id)
		}
	}
	before := g.cfg.Suspects.All()
	for id := range suspects {
		if !before[id] {
			g.cfg.Log.Info("gossip suspects a node", "node", id)
		}
	}
	g.cfg.Suspects.set(suspects)
}
