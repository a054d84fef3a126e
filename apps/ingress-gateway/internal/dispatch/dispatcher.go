package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/vfs"
	"github.com/narad-mq/narad/libs/wal"
)

// CommitBudget is how long one commit may take before its outcome counts as
// unknown: above the 5 s after which a leader gives up on its own disk.
const CommitBudget = 10 * time.Second

// ProbeBudget is how long a leader may take to say that it serves.
const ProbeBudget = 2 * time.Second

// statsEvery is how old the numbers for metrics may be.
const statsEvery = 500 * time.Millisecond

// pendingReports bounds the answers that wait for the loop; beyond it their
// goroutines wait.
const pendingReports = 256

// DefaultParkBelow is in the middle between the usual watermark and a full disk.
const DefaultParkBelow = 95

// parkedIO is how many parked logs are written, and how many are read, at once:
// each takes up to 8 MiB of memory and some descriptors.
const parkedIO = 4

// Deps are what a Dispatcher works with. All but Suspects are needed.
type Deps struct {
	View metastate.View
	WAL  *wal.WAL
	FS   vfs.FS
	Dir  string // of the WAL: parked logs lie there
	// Node returns the wire to a storage node of the member table; nil when it is
	// not there.
	Node func(id string) nodeapi.Node
	// ParkBelow is how full the disk may be, in percent, for queues to be parked:
	// above the watermark of accepting, because parking frees the WAL, and below
	// full, because the metastore replica shares the disk. 0: DefaultParkBelow.
	ParkBelow int
	Space     Space
	Confirm   Confirm     // of the metastore leader
	CaughtUp  func() bool // whether the replica is caught up with it now
	Suspects  Suspects    // whom to avoid; nil: nobody
	Registry  prometheus.Registerer
	Log       *slog.Logger
}

// Dispatcher is the dispatch of one gateway.
type Dispatcher struct {
	deps      Deps
	machine   *dispatchq.Machine            // the loop's
	world     *world                        // the loop's
	marks     marks                         // the loop's
	aborts    map[uint64]context.CancelFunc // the loop's: of the batches in flight
	origin    time.Time
	chunks    chunks
	records   chan []added
	reports   chan func(now time.Duration)
	batches   sync.Pool // of *record.Builder
	parked    parkedLogs
	metrics   *metrics
	parking   chan struct{}  // a slot per parking under way
	loading   chan struct{}  // a slot per read of a parked log under way
	work      sync.WaitGroup // orders under way
	stats     atomic.Pointer[dispatchq.Stats]
	recovered atomic.Bool
	held      confirming    // the loop's
	budget    time.Duration // CommitBudget but in tests
}

// New prepares a dispatcher; Run starts it.
func New(cfg dispatchq.Config, deps Deps) (*Dispatcher, error) {
	if deps.ParkBelow == 0 {
		deps.ParkBelow = DefaultParkBelow
	}
	d := &Dispatcher{
		deps: deps, world: newWorld(deps.View), origin: time.Now().Add(-time.Second), // times are above 0
		records: make(chan []added, 4), reports: make(chan func(time.Duration), pendingReports), budget: CommitBudget,
		aborts: map[uint64]context.CancelFunc{}, parking: make(chan struct{}, parkedIO), loading: make(chan struct{}, parkedIO),
	}
	d.batches.New = newBuilder
	d.machine = dispatchq.New(cfg, d.world)
	d.parked.init(d)
	d.stats.Store(&dispatchq.Stats{})
	var err error
	d.metrics, err = newMetrics(deps.Registry, d)
	return d, err
}

func (d *Dispatcher) now() time.Duration { return time.Since(d.origin) }

// Run dispatches until ctx ends, then ends the calls in flight and returns.
func (d *Dispatcher) Run(ctx context.Context) error {
	d.recoverParked(ctx)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.read(ctx) })
	g.Go(func() error { d.loop(ctx); return nil })
	err := g.Wait()
	d.work.Wait()
	d.parked.close()
	return err
}

// Left is how many accepted records are not dispatched.
func (d *Dispatcher) Left() int64 {
	return d.deps.WAL.Stats().Backlog + d.parked.left()
}

// Parked is how many accepted records lie in parked logs, and no later than when
// the oldest of them was accepted, in Unix milliseconds (0: there are none).
func (d *Dispatcher) Parked() (records, oldestMS int64) { return d.parked.backlog() }

// Recovered tells whether everything that lay here when this process started has
// been read, and so counted (Space.Recovered).
func (d *Dispatcher) Recovered() bool { return d.recovered.Load() }

// Moving tells whether anything is left besides what is held or parked: what an
// ordered stop waits for.
func (d *Dispatcher) Moving() bool {
	return d.deps.WAL.Stats().Backlog > max(0, d.stats.Load().Held-d.parked.left())
}

// loop owns the machine.
func (d *Dispatcher) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	tick := time.NewTicker(statsEvery)
	defer tick.Stop()
	changed := d.deps.View.Changed()
	d.world.changed()
	suspects := suspicions{from: d.deps.Suspects}
	suspects.tell(d.now(), d.machine.Suspect)
	for {
		now := d.now()
		orders, next := d.machine.Step(now)
		d.execute(ctx, orders)
		if next > 0 {
			timer.Reset(max(next-now, 0))
		} else {
			timer.Stop()
		}
		records := d.records
		if d.machine.Full() {
			records = nil // the WAL keeps them
		}
		select {
		case <-ctx.Done():
			return
		case list := <-records:
			d.add(list)
		case f := <-d.reports:
			f(d.now())
			d.drainReports()
		case <-changed:
			changed = d.deps.View.Changed() // before reading, so that nothing falls between
			d.world.changed()
			d.machine.ViewChanged()
		case <-suspects.changed:
			suspects.tell(d.now(), d.machine.Suspect)
		case <-tick.C:
			s := d.machine.Stats()
			d.stats.Store(&s)
			d.confirmHeld(ctx, d.now())
		case <-timer.C:
		}
	}
}

// answered ends what execute began for a batch.
func (d *Dispatcher) answered(id uint64) {
	if cancel := d.aborts[id]; cancel != nil {
		cancel()
		delete(d.aborts, id)
	}
}

// drainReports takes what else is there, so that one step serves it all.
func (d *Dispatcher) drainReports() {
	for range pendingReports {
		select {
		case f := <-d.reports:
			f(d.now())
		default:
			return
		}
	}
}

func (d *Dispatcher) add(list []added) {
	now := d.now()
	d.marks.read(list)
	for i := range list {
		if !d.machine.Add(now, list[i].key, list[i].item) {
			d.deps.WAL.Done(wal.Position(list[i].item.Pos))                          // its parked log holds it
			d.deps.Space.Dispatched(list[i].key.Incarnation, int(list[i].item.Size)) // counted there
			d.marks.done(&list[i].item)
			d.chunks.done([]dispatchq.Item{list[i].item})
		}
	}
}

// execute starts what the machine orders.
func (d *Dispatcher) execute(ctx context.Context, o dispatchq.Orders) {
	if len(o.Send) > 0 {
		oldest := d.marks.oldest()
		if d.parked.left() > 0 {
			oldest = record.Oldest{} // parked records are older than what the WAL says
		}
		for _, b := range o.Send {
			own, cancel := context.WithCancel(ctx)
			d.aborts[b.ID] = cancel
			d.start(func() { d.send(ctx, own, b, oldest) })
		}
	}
	for _, id := range o.Abort {
		if cancel := d.aborts[id]; cancel != nil {
			cancel()
		}
	}
	for _, p := range o.Probe {
		d.start(func() { d.probe(ctx, p) })
	}
	for _, p := range o.Park {
		d.start(func() { d.park(ctx, p) })
	}
	for _, l := range o.Load {
		d.start(func() { d.load(ctx, l) })
	}
}

func (d *Dispatcher) start(f func()) {
	d.work.Add(1)
	go func() {
		defer d.work.Done()
		f()
	}()
}

// report hands an answer to the loop; without effect when the loop has ended.
func (d *Dispatcher) report(ctx context.Context, f func(now time.Duration)) {
	select {
	case d.reports <- f:
	case <-ctx.Done():
	}
}
