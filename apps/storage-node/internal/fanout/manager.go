package fanout

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// settleTime lets a burst of changes cost one look.
	settleTime = 20 * time.Millisecond
	// againEvery is between looks while a partition that should have cursors cannot
	// be served yet, or the leader could not be asked.
	againEvery = 200 * time.Millisecond
	// confirmLimit ends one question to the metastore leader.
	confirmLimit = 5 * time.Second
	// askAgain is how long an attachment that the leader does not call ended is not
	// asked about again.
	askAgain = 30 * time.Second
	// openers bounds the partitions that are opened at once.
	openers = 16
)

// Parent is a partition that is led here. Safe for concurrent use.
type Parent interface {
	// Serving tells whether it is led under that epoch and may serve.
	Serving(epoch topic.Epoch) bool
	HighWatermark() int64
	LogStart() int64
	// Batch as queue.Source has it.
	Batch(off int64) (*batches.Batch, error)
	// Clock stamps its commits, Unix ms.
	Clock() int64
	// Tap has f told that the high watermark moved.
	Tap(f func())
	Cursors(epoch topic.Epoch) map[topic.ID64]fanout.Position
	SetCursor(epoch topic.Epoch, attach topic.ID64, to fanout.Position) bool
	DropCursor(epoch topic.Epoch, attach topic.ID64)
}

// Committer takes batches, see nodeapi.Node.
type Committer interface {
	Commit(ctx context.Context, req *nodeapi.CommitRequest) (*nodeapi.CommitResult, error)
}

// Host is the node that leads the parents. Safe for concurrent use.
type Host interface {
	Committer
	// Lead opens a partition that the assignment lets this node lead.
	Lead(ctx context.Context, a *topic.Assignment) (Parent, error)
}

// Config is what a manager needs; all fields are required.
type Config struct {
	Self    string
	View    metastate.View
	Host    Host
	Leaders func(node string) (Committer, error) // other storage nodes
	// Confirm asks the metastore leader whether attachments have ended. What is
	// missing in the answer is unknown.
	Confirm  func(ctx context.Context, epochs []topic.ID64) (map[topic.ID64]metaapi.Verdict, error)
	Log      *slog.Logger
	Registry prometheus.Registerer
	Mono     func() int64 // ms of a clock that never goes back
}

// Manager runs the cursors of one node. Run does the work.
type Manager struct {
	cfg      Config
	metrics  *counters
	timers   *alarm.Clock
	work     schedule
	builders sync.Pool // of *record.Builder

	mu  sync.Mutex // guards led, which the loop of Run alone changes
	led map[topic.Ref]*led
}

// led is a parent partition under one leadership.
type led struct {
	ref     topic.Ref
	epoch   topic.Epoch
	p       Parent
	cursors map[topic.ID64]*cursor    // by attach epoch; guarded by mu of the manager
	list    atomic.Pointer[[]*cursor] // the same, for the tap
	asked   map[topic.ID64]time.Time  // of the loop: attachments that the leader did not call ended
}

// New returns a manager that does nothing before Run.
func New(cfg Config) (*Manager, error) {
	m := &Manager{cfg: cfg, led: map[topic.Ref]*led{}, timers: alarm.New(cfg.Mono)}
	m.work.init(m)
	var err error
	m.metrics, err = newCounters(cfg.Registry, m)
	return m, err
}

// Run keeps a cursor per child of every partition led here until ctx ends; then
// no cursor moves any more.
func (m *Manager) Run(ctx context.Context) {
	m.work.start(ctx)
	defer m.work.stop()
	defer m.releaseAll()
	var timing sync.WaitGroup
	defer timing.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timing.Go(func() { m.timers.Run(ctx) })
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		changed := m.cfg.View.Changed() // before the look, so that no change falls between
		timer.Stop()
		if m.reconcile(ctx) {
			timer.Reset(againEvery)
		}
		select {
		case <-changed:
			wait(ctx, settleTime)
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (m *Manager) releaseAll() {
	for _, l := range m.snapshot() {
		m.release(l)
	}
}

func (m *Manager) snapshot() []*led {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*led, 0, len(m.led))
	for _, l := range m.led {
		out = append(out, l)
	}
	return out
}

func (m *Manager) known(ref topic.Ref) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.led[ref] != nil
}

// release ends all cursors of a partition; their positions stay.
func (m *Manager) release(l *led) {
	l.p.Tap(nil)
	for attach, c := range l.cursors {
		m.end(l, attach, c)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.led[l.ref] == l {
		delete(m.led, l.ref)
	}
}

// end stops one cursor.
func (m *Manager) end(l *led, attach topic.ID64, c *cursor) {
	c.end()
	for i := range c.alarms {
		m.timers.End(&c.alarms[i])
	}
	m.mu.Lock()
	delete(l.cursors, attach)
	l.publishLocked()
	m.mu.Unlock()
}

// publishLocked shows the cursors to the tap.
func (l *led) publishLocked() {
	list := make([]*cursor, 0, len(l.cursors))
	for _, c := range l.cursors {
		list = append(list, c)
	}
	l.list.Store(&list)
}

// tapped wakes the cursors that wait for a commit. It runs under the append lock of
// the parent: it takes the schedule's lock only for those.
func (m *Manager) tapped(l *led) {
	for _, c := range *l.list.Load() {
		if c.waiting.Load() && c.waiting.Swap(false) {
			m.work.kick(c, fanout.Head)
		}
	}
}
