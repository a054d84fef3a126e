package partition

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/storage-node/internal/alarm"
	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/metrics"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/fanout"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// ErrLost: the copy that the metastore means is not what is on this disk.
var ErrLost = errors.New("the copy on this disk is not the recorded one")

// Shared is what all partitions of a node use together. All fields are required.
type Shared struct {
	FS        vfs.FS
	Node      string
	DiskID    topic.ID64
	Log       *slog.Logger
	Metrics   *metrics.Set
	Now       func() time.Time // the wall clock: it may be stepped
	Mono      func() int64     // ms of a clock that never goes back, nor jumps
	Steady    func() int64     // Unix ms as of the start of the process, and Mono since
	Random    func([]byte)     // fills with unguessable bytes
	Cache     *batches.Cache
	Waker     queue.Waker
	Deadlines *alarm.Clock // of queues, on Steady
	Flusher   *queue.Flusher
	// Failed is told once when a local disk failed under a partition: what it
	// led is not served before a new epoch.
	Failed func(error)
	// Serving is told, under the append lock, when a partition begins to answer
	// claims, or does so again. It waits for nothing.
	Serving func(ref topic.Ref, epoch topic.Epoch)
	// Hold, for tests only, see queue.Config; nil otherwise.
	Hold func(point string, ref topic.Ref)
	// LogOptions are for every log; OnDamage is set by the partition.
	LogOptions partlog.Options

	complained atomic.Int64  // when Complain logged last, in monotonic ms
	live       atomic.Int64  // when something was written last that a commit waits for, in monotonic ms
	ids        atomic.Uint64 // numbers the objects for the cache
	codecs     sync.Pool     // of *codec, for the rare batch of which a partition has a part
	buffers    sync.Pool     // of *[]byte, readAhead long: what is decoded is copied out of them
}

// complainEvery bounds what peers that misbehave make this node log; all of it is
// counted.
const complainEvery = 1000

// Complain logs what no honest peer does, at most once a second.
func (s *Shared) Complain(msg string, args ...any) {
	now := s.Mono() + complainEvery // never 0
	if last := s.complained.Load(); (last == 0 || now-last >= complainEvery) && s.complained.CompareAndSwap(last, now) {
		s.Log.Warn(msg, args...)
	}
}

// Partition is one opened partition of one life of a topic. Safe for concurrent
// use. Close or Drop ends it.
type Partition struct {
	s     *Shared
	ref   topic.Ref
	id    uint64 // of this object, in the cache
	log   *partlog.Log
	state partlog.State // identities of the copy, and the positions; the rest is filled in at each save

	// fenceFile and fence are the copy's promise, on disk and as the rule sees it. A
	// lone copy has no file until another one comes beside it.
	fenceFile *partlog.Fence

	// What requests read without the append lock, which is held across writes.
	hwm   atomic.Int64  // stored under mu, read anywhere
	epoch atomic.Uint32 // that is led; 0: none
	// serves is until when, in monotonic ms, this leadership may answer reads and
	// claims; forever for a lone copy, 0 while it may not.
	serves atomic.Int64
	queue  atomic.Pointer[queue.Queue] // nil while it does not lead, or may not serve yet
	used   atomic.Bool                 // since the last look of Idle
	// syncing is when the fsync began that is running, in monotonic ms; 0: none is.
	syncing atomic.Int64
	asked   atomic.Int64 // about the highest offset that was read; neverAsked

	// roleMu makes changes of the role take turns: assignments, promises and the end
	// of a leadership. It guards newest, and is held across syncs; taken before mu.
	roleMu sync.Mutex
	newest Set // the newest assignment that was ever given to Assume

	watch   watchers            // of fetches that wait for news
	assumed atomic.Pointer[Set] // the assignment whose role was assumed last
	dir     string

	// saveMu orders writes of the state and is held across them, so that older
	// positions never replace newer ones. Taken before mu and posMu.
	saveMu sync.Mutex

	// posMu guards what changes of state, the positions, and their version: as a
	// leader that of the last saved, as a follower what the leader told last. A leaf.
	posMu      sync.Mutex
	posVersion uint64
	cursors    cursors
	unsaved    bool // as a follower: the state has news that are not on disk
	identified bool // the identities in the state are on disk

	// mu is the append lock: it guards what follows and is held across the
	// write of a batch (not its sync), so that batches stand in the order in
	// which their producer numbers were judged.
	mu         sync.Mutex
	fence      *quorum.Fence
	leader     *quorum.Leader   // nil while it does not lead
	elected    *quorum.Leader   // a leadership that the rule allowed and the log could not begin yet
	setSize    int              // of the replica set that leader counts by
	follower   *quorum.Follower // nil while it leads, and of a lone copy
	lastFetch  int64            // monotonic ms at which a fetch was answered last; neverFetched
	told       int64            // the leader's high watermark, as the last answer had it
	caughtUp   bool             // it had everything below its leader's high watermark once
	primed     primed           // positions for the leadership to come
	ledSince   int64            // monotonic ms at which this leadership began
	level      map[string]int64 // by node of a replica: monotonic ms at which it last had everything written here
	confirming int              // reads that wait until a majority has fetched again
	heldUntil  int64            // monotonic ms until which nothing is appended, for a hand-over
	moved      chan struct{}    // closed when the high watermark moves or the leadership ends; nil: nobody waits
	changeDue  bool             // the leader-change batch is still to be appended
	damage     []partlog.Gap    // below the high watermark, of a copy that has others: it is fetched again
	intended   []partlog.Gap    // that were found to be as the leader wrote them, or that no replica has
	lacks      bool             // it goes on, alone, without something that it had committed
	gapsCopied int              // answers of a leader with a gap that were taken over

	pieces map[quorum.Replica]*served // of the leader's pieces, by copy

	gatherAt, gatherPause atomic.Int64 // when pieces are asked for again, in monotonic ms, and the pause before
	clockBase             int64        // partition clock: Unix ms at clockAt
	clockAt               int64        // monotonic ms
	round                 *round       // the fsync that is running
	waiting               int          // commits appended since the last fsync began
	failed                error
	closed                bool
}

// round is one fsync and those who wait for it.
type round struct{ done chan struct{} }

// Open opens the partition in dir, which is made when it is missing. It serves
// nothing before Assume.
func Open(s *Shared, ref topic.Ref, dir string, set Set) (*Partition, error) {
	if err := set.present(s, dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	if err := makeDir(s.FS, dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	p := &Partition{s: s, ref: ref, dir: dir, id: s.ids.Add(1), lastFetch: neverFetched}
	p.asked.Store(neverAsked)
	fence, err := partlog.OpenFence(s.FS, dir)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	p.fenceFile = fence
	opt := s.LogOptions
	opt.OnDamage = p.damaged
	log, err := partlog.Open(s.FS, dir, opt)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ref, err)
	}
	p.log = log
	whole, vouched, err := p.lookForDamage(&set)
	if err == nil {
		err = p.identify(&set, whole, vouched)
	}
	if err == nil && vouched > 0 { // after the new identity is on disk: without what was cut nothing would tell
		err = log.Truncate(whole)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", ref, err), log.Close())
	}
	p.hwm.Store(p.state.HWM)
	p.fence.Recorded(p.own(&set))
	if !set.alone() {
		if !set.only(s.Node) { // others have what is missing; the only replica goes on from what it told of
			p.hwm.Store(min(p.state.HWM, log.LEO()))
		}
		if err := p.followLocked(); err != nil { // nobody else has it yet
			return nil, errors.Join(fmt.Errorf("open %s: %w", ref, err), log.Close())
		}
	}
	if r := log.Recovery(); r.GapOffsets > 0 || r.TornBytes > 0 || r.StateDamaged {
		s.Metrics.DamagedOffsets.Add(float64(r.GapOffsets))
		s.Log.Warn("partition log recovered", "partition", ref.String(), "torn_bytes", r.TornBytes,
			"gap_offsets", r.GapOffsets, "state_damaged", r.StateDamaged)
	}
	return p, nil
}

// makeDir makes the directory durable: files in it that are synced are worth
// nothing under a name that a power cut takes away.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	if err := fs.MkdirAll(dir); err != nil {
		return err
	}
	return fs.SyncDir(path.Dir(dir))
}

func (p *Partition) randomID() topic.ID64 {
	for {
		var b [8]byte
		p.s.Random(b[:])
		id := topic.ID64(0)
		for _, c := range b {
			id = id<<8 | topic.ID64(c)
		}
		if id != 0 {
			return id
		}
	}
}

func (p *Partition) damaged(d seglog.Damage) {
	p.s.Metrics.DamagedRanges.Inc()
	p.s.Log.Error("damage in a partition log", "partition", p.ref.String(), "segment", d.Segment,
		"from", d.From, "to", d.To, "copied", d.Copied)
}

// Ref names the partition.
func (p *Partition) Ref() topic.Ref { return p.ref }

// Queue is the consume side, or nil while this node may not serve the partition.
func (p *Partition) Queue() *queue.Queue {
	if p.s.Mono() >= p.serves.Load() {
		return nil
	}
	return p.queue.Load()
}

// HighWatermark implements queue.Source.
func (p *Partition) HighWatermark() int64 { return p.hwm.Load() }

// LogStart implements queue.Source.
func (p *Partition) LogStart() int64 { return min(p.log.LogStart(), p.hwm.Load()) }

// Epoch is the epoch under which the partition is led here; 0 while it is not. It takes no lock.
func (p *Partition) Epoch() topic.Epoch { return topic.Epoch(p.epoch.Load()) }

// Idle tells whether the partition was not used since the last call, and lets
// go of its files then.
func (p *Partition) Idle() (bool, error) {
	if p.used.Swap(false) {
		return false, nil
	}
	return true, p.log.ReleaseFiles()
}

// Close stops the partition in order: what is appended is synced, positions and
// high watermark are saved. Whoever still waits for a commit hears that its
// outcome is unknown.
func (p *Partition) Close() error {
	p.roleMu.Lock()
	defer p.roleMu.Unlock()
	var errs []error
	if q := p.queue.Load(); q != nil {
		errs = append(errs, q.Close())
	} else if p.following() {
		errs = append(errs, p.saveFollowed(true))
	}
	errs = append(errs, p.end())
	if q := p.queue.Load(); q != nil {
		q.Drop() // a fetch opened it in between
	}
	return errors.Join(errs...)
}

// Drop ends the partition without writing to it: its topic has ended, and the
// directory is somebody else's business from now on.
func (p *Partition) Drop() error {
	if q := p.queue.Load(); q != nil {
		q.Drop()
	}
	err := p.end()
	if q := p.queue.Load(); q != nil {
		q.Drop() // it was opened in between
	}
	return err
}

func (p *Partition) following() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.follower != nil
}

func (p *Partition) end() error {
	p.mu.Lock()
	already := p.closed
	p.closed = true
	p.serves.Store(0)
	p.tellLocked()
	r := p.round
	p.mu.Unlock()
	if already {
		return nil
	}
	if r != nil {
		<-r.done
	}
	p.s.Cache.Forget(p.id)
	if p.fenceFile != nil {
		p.fenceFile.Close()
	}
	return p.log.Close()
}

// SavePositions implements queue.Source.
func (p *Partition) SavePositions(data []byte, sync bool) error {
	p.saveMu.Lock()
	defer p.saveMu.Unlock()
	p.posMu.Lock()
	if position := fanout.AppendPositions(nil, data, p.cursors.at); !bytes.Equal(position, p.state.Position) {
		p.state.Position = position
		p.posVersion++ // else it is saved for the high watermark, and followers have it
	}
	if q := p.queue.Load(); q != nil {
		p.state.DroppedUnsettled = q.Dropped()
	}
	st := p.state
	p.posMu.Unlock()
	st.HWM = p.hwm.Load()
	if err := p.log.SaveState(st, sync); err != nil {
		return err
	}
	p.watch.tell()
	return nil
}
