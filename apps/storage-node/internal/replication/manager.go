package replication

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/metrics"
	"github.com/narad-mq/narad/apps/storage-node/internal/partition"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// passEvery is between looks when nothing changed: copies that could not be
	// opened, recorded or vouched for are tried again then.
	passEvery = time.Second
	// settleTime is the least between two looks over all copies, so that a burst of
	// changes costs few. The first one is looked at at once: a partition waits for it.
	settleTime = 20 * time.Millisecond
	// saveEvery is how often followers make what they know of positions durable: the
	// same second that a leader may lose to a power cut.
	saveEvery = time.Second
	// openers bounds the copies that are opened at once.
	openers = 16
	// syncers bounds the syncs of copied bytes that run at once: enough to keep a
	// disk busy, too few to starve the commits of partitions led here.
	syncers = 8
	// writers bounds the partitions of farBytes that are written and synced at once: the
	// sync of a commit waits for what the disk has been given before it, so it is given
	// one answer of one partition.
	writers = 1
	// recordLone is between two reports of lone copies, MaxCopyReports in each: 10,000
	// that are new at once cost ten entries within a minute. What is lost before it is
	// recorded begins empty, so it is short.
	recordLone = 5 * time.Second
	// catchingUpFor is how long a node that starts says that its copies are catching
	// up; one that takes longer is repaired, not waited for.
	catchingUpFor = 10 * time.Minute
)

// Host is the node whose copies these are. Safe for concurrent use.
type Host interface {
	// Copy opens this node's copy of a replicated partition in the role that the
	// assignment gives it; with an error the copy may be there nevertheless.
	Copy(ctx context.Context, a *topic.Assignment) (*partition.Partition, error)
	// Opened gives a copy that is open; nil: it is not.
	Opened(ref topic.Ref) *partition.Partition
	// Replace puts the start of a leader's log in place of a copy's log.
	Replace(ref topic.Ref, with *partition.Install) error
	// AskPieces asks a leader for damaged bytes.
	AskPieces(ctx context.Context, leader string, req *nodeapi.PiecesRequest) (*nodeapi.PiecesResult, error)
}

// Config is what a manager needs; all fields are required.
type Config struct {
	Self      string
	DiskID    topic.ID64
	BootNonce topic.ID64
	View      metastate.View
	Host      Host
	Peers     func(node string) (nodeapi.Replica, error)
	Elections metaapi.Elections
	Log       *slog.Logger
	Metrics   *metrics.Set
	// StepDown bounds what a stop spends on handing leaderships over.
	StepDown time.Duration
}

// Manager replicates the copies of one node. Run does the work.
type Manager struct {
	cfg     Config
	syncing chan struct{} // a slot per sync that runs
	writing chan struct{} // the one slot of what is far behind
	began   time.Time

	caughtUp  atomic.Bool   // every copy had everything committed once since the start
	recording atomic.Bool   // a report to the metastore is under way
	lone      atomic.Bool   // one of lone copies is
	gathering atomic.Bool   // damaged bytes are being fetched
	again     chan struct{} // asks for a pass

	background sync.WaitGroup // reports under way
	loneAt     time.Time      // of the last report of lone copies; of the passes

	mu       sync.Mutex // guards what follows
	fetchers map[string]*fetcher
	copies   map[topic.Ref]*partition.Partition // open, as of the last pass
}

// New returns a manager that does nothing before Run.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, began: time.Now(), syncing: make(chan struct{}, syncers), writing: make(chan struct{}, writers), again: make(chan struct{}, 1), fetchers: map[string]*fetcher{}}
}

// toTick is how many ms are left until the next moment at which waits for news
// end, all of a node together: so that groups of partitions that fell apart, each
// time one of them had news, come together again.
func (m *Manager) toTick() int {
	return int(nodeapi.MaxFetchWaitMS - time.Since(m.began).Milliseconds()%nodeapi.MaxFetchWaitMS)
}

// CatchingUp tells whether copies of this node have not had everything committed
// yet since it started.
func (m *Manager) CatchingUp() bool { return !m.caughtUp.Load() }

// Run follows the metastore replica until ctx ends; then it hands over what this
// node leads, and stops fetching. It ends at once when life ends, which comes from
// the same root as ctx and outlives it in an ordered stop.
func (m *Manager) Run(ctx, life context.Context) {
	work, stop := context.WithCancel(life)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer m.background.Wait()
	defer m.stop()
	defer stop()
	all.Go(func() { m.save(work) })
	all.Go(func() {
		select {
		case <-ctx.Done():
			m.stepDown(work)
		case <-work.Done():
		}
		stop()
	})
	began := time.Now()
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	for work.Err() == nil {
		changed := m.cfg.View.Changed() // before the look, so that no change falls between
		looked := time.Now()
		settled := m.pass(work)
		if settled || time.Since(began) >= catchingUpFor {
			m.caughtUp.Store(true)
		}
		select {
		case <-changed:
			if rest := settleTime - time.Since(looked); rest > 0 {
				wait(work, rest)
			}
		case <-m.again:
		case <-tick.C:
		case <-work.Done():
		}
	}
}

// lookAgain asks for a pass.
func (m *Manager) lookAgain() {
	select {
	case m.again <- struct{}{}:
	default:
	}
}

// wait returns true after d, false when ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// pass gives every copy its role, and tells whether all of them had everything
// committed once.
func (m *Manager) pass(ctx context.Context) bool {
	list, err := m.cfg.View.AssignmentsOf(m.cfg.Self)
	if err != nil {
		return false // before the latch nothing is decided
	}
	var mu sync.Mutex // guards what the openers find
	caughtUp := true
	copies := map[topic.Ref]*partition.Partition{}
	byLeader := map[string]map[topic.Ref]*part{}
	var reports []metaapi.CopyReport
	var lone []*topic.Assignment // whose copies are to be recorded
	var lacking []awaiting       // damaged bytes that their leaders may keep
	slots := make(chan struct{}, openers)
	var opening sync.WaitGroup
	for i := range list {
		a := &list[i]
		if !a.Replicated() {
			if m.unrecorded(a) && len(lone) < metaapi.MaxCopyReports && m.cfg.Host.Opened(a.Ref) != nil {
				lone = append(lone, a)
			}
			continue
		}
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			p, err := m.cfg.Host.Copy(ctx, a)
			if err != nil {
				m.cfg.Log.Debug("a copy has not its role yet", "partition", a.String(), "err", err)
			}
			mu.Lock()
			defer mu.Unlock()
			// What a move brings here counts for nothing yet: it may wait for its
			// source for long, and nobody else waits for it.
			if _, counts := a.ReplicaOn(m.cfg.Self); counts {
				caughtUp = caughtUp && p != nil && p.CaughtUp()
			}
			if p == nil {
				return
			}
			copies[a.Ref] = p
			reports = append(reports, m.report(a, p)...)
			if a.Leader != "" && a.Leader != m.cfg.Self {
				if byLeader[a.Leader] == nil {
					byLeader[a.Leader] = map[topic.Ref]*part{}
				}
				if p.AwaitsPieces() {
					lacking = append(lacking, awaiting{*a, p})
				}
				lead, _ := a.ReplicaOn(a.Leader)
				byLeader[a.Leader][a.Ref] = &part{p: p, epoch: a.LeaderEpoch, disk: lead.DiskID}
			}
		})
	}
	opening.Wait()
	m.mu.Lock()
	m.copies = copies
	m.mu.Unlock()
	m.assign(ctx, byLeader)
	if len(reports) > 0 && !m.recording.Swap(true) {
		// Beside the passes: a metastore that does not answer must not keep roles waiting.
		m.background.Go(func() {
			defer m.recording.Store(false)
			m.record(ctx, reports)
		})
	}
	m.reportLone(ctx, lone)
	m.gather(ctx, lacking)
	return caughtUp
}

// unrecorded tells that the metastore does not know yet which copy this node's is.
func (m *Manager) unrecorded(a *topic.Assignment) bool {
	own, ok := a.ReplicaOn(m.cfg.Self)
	return ok && own.CopyID == 0 && own.DiskID == m.cfg.DiskID
}

// reportLone has lone copies recorded, so that one whose directory vanishes later is
// missed and does not begin empty. There may be very many, of which none is in a
// hurry: they are reported some seconds after they were opened, many at once.
func (m *Manager) reportLone(ctx context.Context, lone []*topic.Assignment) {
	if len(lone) == 0 || time.Since(m.loneAt) < recordLone || m.lone.Swap(true) {
		return
	}
	m.loneAt = time.Now()
	m.background.Go(func() {
		defer m.lone.Store(false)
		var reports []metaapi.CopyReport
		for _, a := range lone {
			p := m.cfg.Host.Opened(a.Ref)
			if p == nil || ctx.Err() != nil {
				continue
			}
			id, err := p.LoneIdentity()
			if err != nil {
				m.cfg.Log.Debug("a lone copy cannot be recorded now", "partition", a.String(), "err", err)
				continue
			}
			reports = append(reports, metaapi.CopyReport{Ref: a.Ref, Node: m.cfg.Self, WasDisk: m.cfg.DiskID, DiskID: m.cfg.DiskID, CopyID: id})
		}
		m.record(ctx, reports)
	})
}

// report lists what the metastore has to record about a partition: this node's
// own fresh copy, and, when it leads, copies that replaced lost ones and have
// everything committed.
func (m *Manager) report(a *topic.Assignment, p *partition.Partition) []metaapi.CopyReport {
	own, _ := a.ReplicaOn(m.cfg.Self)
	if m.unrecorded(a) {
		id, err := p.Identity()
		if err != nil {
			m.cfg.Log.Warn("a copy cannot be recorded", "partition", a.String(), "error", err)
			return nil
		}
		return []metaapi.CopyReport{{Ref: a.Ref, Node: own.Node, WasDisk: own.DiskID, DiskID: own.DiskID, CopyID: id}}
	}
	if a.Leader != m.cfg.Self {
		return nil
	}
	v := p.Vouch(false)
	var out []metaapi.CopyReport
	for _, c := range v.Copies {
		if was, ok := a.ReplicaOn(c.Node); ok && c.Readmissible && v.Epoch == a.LeaderEpoch && v.ConfigVersion == a.ConfigVersion {
			out = append(out, metaapi.CopyReport{
				Ref: a.Ref, Node: c.Node, WasDisk: was.DiskID, Was: was.CopyID, DiskID: c.DiskID, CopyID: c.CopyID,
				Epoch: v.Epoch, ConfigVersion: v.ConfigVersion,
			})
		}
	}
	return out
}

// record reports copies; what is refused or not answered is reported again by a
// later pass.
func (m *Manager) record(ctx context.Context, reports []metaapi.CopyReport) {
	for part := range slices.Chunk(reports, metaapi.MaxCopyReports) {
		if _, err := m.cfg.Elections.RecordCopies(ctx, &metaapi.RecordCopiesRequest{Copies: part}); err != nil {
			m.cfg.Log.Debug("copies could not be recorded yet", "copies", len(part), "err", err)
			return
		}
	}
}

// assign gives each fetcher the partitions that its node leads.
func (m *Manager) assign(ctx context.Context, byLeader map[string]map[topic.Ref]*part) {
	m.mu.Lock()
	var idle []*fetcher
	for node, f := range m.fetchers {
		if byLeader[node] == nil {
			idle = append(idle, f)
			delete(m.fetchers, node)
		}
	}
	defer func() { // without the lock: what a fetcher has under way may wait for the disk
		m.mu.Unlock()
		for _, f := range idle {
			f.close()
		}
	}()
	for node, parts := range byLeader {
		f := m.fetchers[node]
		if f == nil {
			f = newFetcher(m, node)
			m.fetchers[node] = f
			f.start(ctx)
		}
		f.set(parts)
	}
}

// stop ends all fetchers.
func (m *Manager) stop() { m.assign(context.Background(), nil) }

// save makes what followers know of positions durable.
func (m *Manager) save(ctx context.Context) {
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.mu.Lock()
		copies := m.copies
		m.mu.Unlock()
		for ref, p := range copies {
			if err := p.SaveFollowed(true); err != nil && ctx.Err() == nil {
				m.cfg.Log.Warn("the state of a copy was not saved; it will be tried again", "partition", ref.String(), "error", err)
			}
		}
	}
}

// stepDown has what this node leads of replicated partitions handed to others.
func (m *Manager) stepDown(ctx context.Context) {
	m.mu.Lock()
	leads := 0
	for _, p := range m.copies {
		if p.Standing().Leads {
			leads++
		}
	}
	m.mu.Unlock()
	if leads == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.StepDown)
	defer cancel()
	began := time.Now()
	res, err := m.cfg.Elections.StepDown(ctx, &metaapi.StepDownRequest{NodeID: m.cfg.Self, BootNonce: m.cfg.BootNonce})
	if err != nil {
		m.cfg.Log.Warn("leaderships were not handed over; the others will elect", "partitions", leads, "err", err)
		return
	}
	m.cfg.Log.Info("handed leaderships over", "partitions", leads-res.Left, "left", res.Left, "took", time.Since(began))
}
