package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/fanout"
	"github.com/narad-mq/narad/apps/storage-node/internal/metrics"
	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/apps/storage-node/internal/replication"
	"github.com/narad-mq/narad/apps/storage-node/internal/wake"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/topicdir"
	"github.com/narad-mq/narad/libs/vfs"
)

// Config is what a node needs; all fields but Hold are required.
type Config struct {
	ID         string
	DiskID     topic.ID64
	DataDir    string
	CacheBytes int
	LogOptions partlog.Options
	// RetentionEvery is the time between two passes over all partitions led.
	RetentionEvery time.Duration
	// SweepEvery is the time between two sweeps of topic directories, and
	// ReconcileWait how long the first one waits for the replica to catch up.
	SweepEvery, ReconcileWait time.Duration

	View     metastate.View
	FS       vfs.FS
	Dirs     *topicdir.Store
	Confirm  Confirm
	Log      *slog.Logger
	Registry prometheus.Registerer
	Gateways func(id string) (gatewayapi.Gateway, error)
	Now      func() time.Time
	Random   func([]byte)

	// BootNonce, Peers and Elections are for replicated partitions; without
	// Elections there are none.
	BootNonce topic.ID64
	Peers     func(node string) (nodeapi.Replica, error)
	Elections metaapi.Elections
	// Holders asks the Raft leader who holds partitions, and Candidates finds another
	// storage node by its id, to judge copies that have moved away; without them
	// those stay.
	Holders    func(ctx context.Context, refs []topic.Ref) (map[topic.Ref]metaapi.Holding, error)
	Candidates func(node string) (nodeapi.Candidate, error)
	// Leaders finds other storage nodes, to commit what is copied to children that
	// they lead; ConfirmAttached is Confirm for attach epochs.
	Leaders         func(node string) (fanout.Committer, error)
	ConfirmAttached Confirm
	// Hold is for tests and may be nil, see queue.Config.
	Hold func(point string, ref topic.Ref)
}

// Node serves the partitions that this process leads. Safe for concurrent use.
type Node struct {
	cfg       Config
	self      string
	disk      topic.ID64
	view      metastate.View
	log       *slog.Logger
	metrics   *metrics.Set
	shared    *partition.Shared
	waker     *wake.Waker
	deadlines *alarm.Clock // of leases
	flusher   *queue.Flusher
	copies    *replication.Manager // nil without replicated partitions
	children  *fanout.Manager

	slots  sync.Map // topic.Ref -> *slot
	gates  gates    // of names whose directories are being opened
	reaper *reaper
	pace   *pacer // of all that removes directories
	// catchUp bounds what goes to copies that are far behind, by what commits feel.
	catchUp   *bucket
	farBufs   sync.Pool // of *[]byte: where batches for them are read
	pulse     *pulse
	turn      atomic.Uint64 // where the next claim begins
	expecting expecting     // claims that came too early
	free      atomic.Uint64 // bytes of the data disk, as looked at last
	full      atomic.Bool   // too few of them
	looked    atomic.Bool   // for lone copies that vanished
	fatal     chan error    // the first failure of the local disk

	mu      sync.Mutex // guards below
	closing bool
	opens   sync.WaitGroup // opens in flight; none is added once closing is set
	drops   sync.WaitGroup // slots that are being ended
}

var _ nodeapi.Node = (*Node)(nil)

// New makes a node. It serves as soon as the view is latched; Run does the rest.
func New(cfg Config) (*Node, error) {
	n := &Node{
		cfg: cfg, self: cfg.ID, disk: cfg.DiskID, view: cfg.View, log: cfg.Log, fatal: make(chan error, 1),
	}
	var err error
	n.metrics, err = metrics.New(cfg.Registry, metrics.Gauges{
		Leases: n.leases, Free: func() float64 { return float64(n.free.Load()) },
		Lost:       func() float64 { return float64(n.Lost()) },
		Damaged:    func() float64 { return float64(n.damagedHere()) },
		LagRecords: func() float64 { records, _ := n.lag(); return float64(records) },
		LagSeconds: func() float64 { _, ms := n.lag(); return float64(ms) / 1000 },
	})
	if err != nil {
		return nil, err
	}
	if err := n.lookAtDisk(); err != nil {
		return nil, err
	}
	n.reaper, n.pace = newReaper(), newPacer()
	n.pulse = &pulse{}
	n.catchUp = newBucket(n.pulse)
	n.waker = wake.New(cfg.ID, cfg.Gateways, n.alive)
	n.flusher = queue.NewFlusher(n.positionFailed)
	// Leases, delays and stamps run on the monotonic clock: a wall clock that is
	// stepped ends no lease and releases nothing early.
	began, at := time.Now(), cfg.Now().UnixMilli()
	mono := func() int64 { return time.Since(began).Milliseconds() }
	steady := func() int64 { return at + mono() }
	n.deadlines = alarm.New(steady)
	n.shared = &partition.Shared{
		Mono: mono, Steady: steady,
		FS: cfg.FS, Node: cfg.ID, DiskID: cfg.DiskID, Log: cfg.Log, Metrics: n.metrics, Now: cfg.Now, Random: cfg.Random,
		Cache: batches.NewCache(cfg.CacheBytes), Waker: n.waker, Deadlines: n.deadlines, Flusher: n.flusher,
		Failed: n.failed, Serving: n.serving, Hold: cfg.Hold, LogOptions: cfg.LogOptions,
	}
	n.children, err = fanout.New(fanout.Config{
		Self: cfg.ID, View: cfg.View, Host: parents{n}, Leaders: cfg.Leaders, Confirm: cfg.ConfirmAttached, Log: cfg.Log,
		Registry: cfg.Registry, Mono: n.shared.Mono,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Elections != nil {
		n.copies = replication.New(replication.Config{
			Self: cfg.ID, DiskID: cfg.DiskID, BootNonce: cfg.BootNonce, View: cfg.View, Host: n, Peers: cfg.Peers,
			Elections: cfg.Elections, Log: cfg.Log, Metrics: n.metrics, StepDown: stepDownFor,
		})
	}
	return n, nil
}

// stepDownFor bounds what a stop spends on handing leaderships over: a third of
// the 15 s in which a program stops.
const stepDownFor = 5 * time.Second

// Run follows the metastore replica, deadlines, positions and retention until
// ctx ends (nil) or a local disk fails (the error).
func (n *Node) Run(ctx context.Context) error {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var wg sync.WaitGroup
	wg.Go(func() { n.deadlines.Run(life) })
	wg.Go(func() { n.flusher.Run(life) })
	wg.Go(func() { n.watch(life) })
	wg.Go(func() { every(life, diskEvery, n.watchDisk) })
	wg.Go(func() { every(life, n.cfg.RetentionEvery, func() { n.retain(life) }) })
	wg.Go(func() { every(life, stallEvery, n.giveUpStalled) })
	var scrub scrubber
	wg.Go(func() { every(life, scrubEvery, func() { scrub.next(n) }) })
	wg.Go(func() { n.purges(life) })
	wg.Go(func() { n.sweeps(life) })
	wg.Go(func() { n.lookForLost(life) })
	wg.Go(func() { n.children.Run(life) })
	handedOver := make(chan struct{})
	go func() {
		defer close(handedOver)
		if n.copies != nil {
			n.copies.Run(ctx, life)
		}
	}()
	var err error
	select {
	case <-ctx.Done():
		select { // leaderships are handed over while everything still works
		case <-handedOver:
		case err = <-n.fatal:
		}
	case err = <-n.fatal:
	}
	end()
	<-handedOver
	wg.Wait()
	return err
}

// CatchingUp tells whether copies of replicated partitions have not had
// everything committed yet since the start.
func (n *Node) CatchingUp() bool { return n.copies != nil && n.copies.CatchingUp() }

// Close ends every partition in order: nothing new is opened, what was appended
// is synced, positions are saved. Requests still running are refused by the
// partitions. Call it when Run has returned and no request is sent any more.
func (n *Node) Close() error {
	n.mu.Lock()
	n.closing = true
	n.mu.Unlock()
	n.opens.Wait()
	n.drops.Wait()
	n.waker.Close()
	var mu sync.Mutex // guards errs
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, closers)
	n.slots.Range(func(_, v any) bool {
		p := asSlot(v).open.Load()
		if p == nil {
			return true
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := p.Close(); err != nil {
				mu.Lock()
				errs = append(errs, fmt.Errorf("close %s: %w", p.Ref(), err))
				mu.Unlock()
			}
		})
		return true
	})
	wg.Wait()
	return errors.Join(errs...)
}

// closers bounds the partitions that are closed at once: each has a sync or two.
const closers = 16

// failed is told by a partition whose disk failed. The whole process ends: its
// restart registers, which raises the epoch of every partition that it led, and
// recovers what the disk really holds. A disk that fails one partition is no
// disk to go on with for the others either.
func (n *Node) failed(err error) {
	n.log.Error("FATAL: the local disk failed; this process ends so that its restart recovers under new epochs", "error", err)
	select {
	case n.fatal <- err:
	default:
	}
}

func (n *Node) positionFailed(q *queue.Queue, err error) {
	n.metrics.PositionFailures.Inc()
	n.log.Warn("consumer positions were not written; they will be tried again", "partition", q.Ref().String(), "error", err)
}

// alive tells whether a gateway is worth telling again.
func (n *Node) alive(id string) bool {
	m := n.view.Members().ByID[id]
	return m != nil && m.Status != topic.StatusDead
}

func (n *Node) leases() float64 {
	total := int64(0)
	n.slots.Range(func(_, v any) bool {
		if p := asSlot(v).open.Load(); p != nil {
			if q := p.Queue(); q != nil {
				total += q.Stats().InFlight
			}
		}
		return true
	})
	return float64(total)
}

// lag is the largest lag of a replica of the partitions led here.
func (n *Node) lag() (records, ms int64) {
	n.slots.Range(func(_, v any) bool {
		if p := asSlot(v).open.Load(); p != nil {
			r, t := p.Lag()
			records, ms = max(records, r), max(ms, t)
		}
		return true
	})
	return records, ms
}
