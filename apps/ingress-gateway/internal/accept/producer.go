package accept

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
	"github.com/narad-mq/narad/libs/wal"
)

// Log is the part of the WAL that accepting needs.
type Log interface {
	// Append makes the entries durable as one unit and returns the first id.
	Append(entries []wal.Entry) (wal.ID, error)
	Stats() wal.Stats
}

// Limits and intervals.
const (
	// DefaultWatermark is how full the disk may be, in percent, before produce is refused.
	DefaultWatermark = 90
	// topicShare: one topic may hold 1/topicShare of the WAL's space.
	topicShare = 4
	// maxAppends bounds the calls that wait for the disk at once: the connections
	// of a gateway and some more.
	maxAppends = 16384
	// lookEvery is how often disk and WAL are looked at; a disk fills by at most
	// some hundred megabytes in that time, and the rest above the watermark is more.
	lookEvery = 250 * time.Millisecond
	// keepBuffer bounds the encoding buffers that the pool holds on to.
	keepBuffer = 1 << 20
)

// Config of a Producer.
type Config struct {
	Watermark int // percent of the disk; 0: DefaultWatermark
}

// Deps are what a Producer works with. A nil Log refuses all (--no-wal).
type Deps struct {
	View    metastate.View
	Log     Log
	FS      vfs.FS
	Dir     string // of the WAL: whose disk is watched
	Metrics *Metrics
	// Leaving tells that the gateway is being decommissioned; nil: it never is.
	Leaving func() bool
	// Suspects says whom to avoid; nil: nobody.
	Suspects Suspects
	// Parked tells how many accepted records lie in parked logs, outside the WAL,
	// and no later than when the oldest was accepted (Unix milliseconds; 0: none).
	// nil: there are none.
	Parked func() (records, oldestMS int64)
}

// Producer implements api.Producer. Safe for concurrent use.
type Producer struct {
	cfg  Config
	deps Deps

	draining atomic.Bool
	caughtUp atomic.Bool
	full     atomic.Bool               // the disk is above the watermark
	free     atomic.Int64              // bytes of the disk
	share    atomic.Int64              // bytes that one topic may hold; 0: not known yet
	waiting  atomic.Int64              // calls in Append
	stats    atomic.Pointer[wal.Stats] // Backlog and OldestAcceptMS count parked records too

	backlog sync.Map // topic.Incarnation -> *topicState
	buffers sync.Pool
}

// topicState is what is kept per life of a topic.
type topicState struct {
	name   string
	bytes  atomic.Int64 // in the WAL and in parked logs
	next   atomic.Uint32
	places Places
}

// scratch is the memory of one call.
type scratch struct {
	buf     []byte
	entries []wal.Entry
}

var _ api.Producer = (*Producer)(nil)

// New returns a producer that has looked at its disk once. Run keeps looking.
func New(cfg Config, deps Deps) *Producer {
	if cfg.Watermark == 0 {
		cfg.Watermark = DefaultWatermark
	}
	p := &Producer{cfg: cfg, deps: deps}
	p.buffers.New = func() any { return &scratch{} }
	p.stats.Store(&wal.Stats{})
	p.look()
	deps.Metrics.watch(p)
	return p
}

// Run looks at disk and WAL until ctx ends.
func (p *Producer) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.look()
		}
	}
}

// look refreshes what Accept decides by.
func (p *Producer) look() {
	// An error here is left to the writes, which meet the same disk.
	if total, free, err := p.deps.FS.Usage(p.deps.Dir); err == nil && total > 0 {
		limit := total / 100 * uint64(p.cfg.Watermark)
		p.free.Store(int64(free))
		p.full.Store(total-min(free, total) >= limit)
		p.share.Store(int64(limit / topicShare))
	}
	if p.deps.Log == nil {
		return
	}
	p.stats.Store(p.backlogged())
	p.backlog.Range(func(id, state any) bool {
		inc, ok := id.(topic.Incarnation)
		if s := state.(*topicState); ok && s.bytes.Load() == 0 && p.ended(s.name, inc) {
			p.backlog.Delete(id)
		}
		return true
	})
}

// ended tells whether the replica shows the end of a life. Most lives live, and
// that costs a look-up.
func (p *Producer) ended(name string, id topic.Incarnation) bool {
	if t, err := p.deps.View.Topic(name); err == nil && t.Incarnation == id {
		return false
	}
	return p.deps.View.Ended(id)
}

// backlogged is what the WAL says, with the parked records: they are accepted and
// not dispatched either, and a gateway that holds them must not look empty.
func (p *Producer) backlogged() *wal.Stats {
	s := p.deps.Log.Stats() // first: a record that is parked meanwhile counts twice, not never
	if p.deps.Parked == nil {
		return &s
	}
	parked, oldest := p.deps.Parked()
	s.Backlog += parked
	if oldest != 0 && (s.OldestAcceptMS == 0 || oldest < s.OldestAcceptMS) {
		s.OldestAcceptMS = oldest
	}
	return &s
}

// Drain makes Accept refuse from now on.
func (p *Producer) Drain() { p.draining.Store(true) }

// CanAccept implements api.Producer.
func (p *Producer) CanAccept() error {
	if err := p.refusal(); err != nil {
		return err
	}
	if s := p.deps.Log.Stats(); s.Failed {
		return problem.New(problem.WALUnavailable, "the write-ahead log of this gateway cannot be written")
	}
	return nil
}

// Load is what heartbeats show: records not dispatched, percent of the disk used.
func (p *Producer) Load() (backlog int64, diskUsedPercent int) {
	return p.stats.Load().Backlog, vfs.UsedPercent(p.deps.FS, p.deps.Dir)
}

// Oldest is when the oldest record that is not dispatched was accepted, in Unix
// milliseconds; 0: there is none.
func (p *Producer) Oldest() int64 { return p.stats.Load().OldestAcceptMS }

// refusal is why nothing is accepted now; nil when something may be.
func (p *Producer) refusal() error {
	switch {
	case p.deps.Log == nil:
		return problem.New(problem.WALUnavailable, "this gateway keeps no write-ahead log")
	case p.draining.Load():
		return problem.New(problem.Draining, "this gateway is stopping")
	case p.deps.Leaving != nil && p.deps.Leaving():
		return leaving()
	case !p.ready():
		return problem.New(problem.NotReady, "this gateway has not been caught up with the metastore since its start")
	case p.full.Load():
		return problem.New(problem.DiskFull, "the disk of this gateway is full")
	case p.waiting.Load() >= maxAppends:
		return problem.New(problem.Overloaded, "too many messages wait for the disk of this gateway")
	}
	return nil
}

func (p *Producer) ready() bool {
	if p.caughtUp.Load() {
		return true
	}
	if !p.deps.View.CaughtUpOnce() {
		return false
	}
	p.caughtUp.Store(true) // it never clears
	return true
}

// Accept implements api.Producer. The context is not looked at: once staged, a
// call waits for the true outcome, and before that nothing waits.
func (p *Producer) Accept(_ context.Context, t *topic.Topic, msgs []api.Produced) (string, error) {
	start := time.Now()
	id, err := p.accept(t, msgs, start)
	p.deps.Metrics.accepted(err, len(msgs), time.Since(start))
	return id, err
}

func (p *Producer) accept(t *topic.Topic, msgs []api.Produced, now time.Time) (string, error) {
	if err := p.refusal(); err != nil {
		return "", err
	}
	size := 0
	for i := range msgs {
		if err := Check(t, &msgs[i]); err != nil {
			return "", err
		}
		size += record.BodySize(&msgs[i].Message)
	}
	state := p.state(t.Name, t.Incarnation)
	if share := p.share.Load(); share > 0 && state.bytes.Load()+int64(size) > share {
		return "", problem.New(problem.TopicBacklogFull, "topic %q holds as much of this gateway's write-ahead log as one topic may", t.Name)
	}
	s := p.buffers.Get().(*scratch)
	defer p.release(s)
	p.encode(s, t, state, msgs, size, now.UnixMilli())
	// Counted before it is written: the dispatcher may be done with it at once.
	state.bytes.Add(int64(size))
	p.waiting.Add(1)
	id, err := p.deps.Log.Append(s.entries)
	p.waiting.Add(-1)
	if err != nil {
		state.bytes.Add(-int64(size))
		return "", refused(err)
	}
	kind := record.StreamWAL
	if s.entries[0].Pinned {
		kind = record.StreamWALPinned
	}
	return record.MessageID(record.Stream{Kind: kind, ID: id.Identity}, record.Number{Seq: id.Seq}), nil
}

// Check refuses what could not be read back: the API has checked it before.
func Check(t *topic.Topic, m *api.Produced) error {
	if m.Pin != api.AnyPartition && (m.Pin < 0 || int(m.Pin) >= t.Partitions) {
		return problem.New(problem.PartitionOutOfRange, "topic %q has %d partitions", t.Name, t.Partitions).
			With("partitions", t.Partitions)
	}
	if err := record.CheckMessage(&m.Message); err != nil {
		return problem.New(problem.InvalidRequest, "a message is beyond the limits")
	}
	return nil
}

// encode fills the entries; their bodies lie one after another in one buffer.
func (p *Producer) encode(s *scratch, t *topic.Topic, state *topicState, msgs []api.Produced, size int, nowMS int64) {
	if cap(s.buf) < size {
		s.buf = make([]byte, 0, size)
	}
	buf := s.buf[:0]
	s.entries = s.entries[:0]
	fine := state.places.Fine(t, p.deps.View, p.deps.Suspects)
	for i := range msgs {
		at := len(buf)
		buf = record.AppendBody(buf, &msgs[i].Message)
		s.entries = append(s.entries, wal.Entry{
			Topic: t.Name, Incarnation: t.Incarnation, Partition: partition(t, state, fine, &msgs[i]),
			Pinned: msgs[i].Pin != api.AnyPartition, AcceptMS: nowMS, Body: buf[at:len(buf):len(buf)],
		})
	}
	s.buf = buf
}

// partition chooses: what is fixed, or in turn among those that are fine.
func partition(t *topic.Topic, state *topicState, fine []int32, m *api.Produced) int32 {
	if p, fixed := Fixed(t, m); fixed {
		return p
	}
	return Turn(state.next.Add(1), t, fine)
}

// Fixed is the partition that a message has to go to: pinned, or by its key (the same
// for all of /v1). false: it may go anywhere.
func Fixed(t *topic.Topic, m *api.Produced) (partition int32, fixed bool) {
	switch {
	case m.Pin != api.AnyPartition:
		return m.Pin, true
	case len(m.Message.Key) > 0:
		return topic.PartitionOfKey(m.Message.Key, t.Partitions), true
	}
	return 0, false
}

func (p *Producer) release(s *scratch) {
	clear(s.entries)
	if cap(s.buf) <= keepBuffer {
		p.buffers.Put(s)
	}
}

func leaving() error { return problem.New(problem.Draining, "this gateway is being decommissioned") }

// refused turns the WAL's error into the refusal that a client sees.
func refused(err error) error {
	switch {
	case errors.Is(err, wal.ErrSealed):
		return leaving()
	case errors.Is(err, wal.ErrTooLarge):
		return problem.New(problem.BodyTooLarge, "the messages of one request are too large together").With("limit_bytes", wal.MaxUnitBytes)
	case errors.Is(err, wal.ErrRefused):
		return problem.New(problem.WALUnavailable, "the write-ahead log of this gateway cannot be written")
	default:
		return problem.New(problem.WALUnavailable, "the write-ahead log of this gateway failed while it was written").Unknown()
	}
}

func (p *Producer) state(name string, id topic.Incarnation) *topicState {
	if s, ok := p.backlog.Load(id); ok {
		return s.(*topicState)
	}
	s, _ := p.backlog.LoadOrStore(id, &topicState{name: name})
	return s.(*topicState)
}

// Recovered counts a record of an earlier start that lies in the WAL or in a
// parked log; bytes is the length of its body.
func (p *Producer) Recovered(name string, id topic.Incarnation, bytes int) {
	p.state(name, id).bytes.Add(int64(bytes))
}

// Dispatched takes records off again that are done for good.
func (p *Producer) Dispatched(id topic.Incarnation, bytes int) {
	if s, ok := p.backlog.Load(id); ok {
		s.(*topicState).bytes.Add(-int64(bytes))
	}
}

// Undispatched calls f for every life of a topic of which accepted records are not
// done, in no order; bytes is the length of their bodies.
func (p *Producer) Undispatched(f func(name string, id topic.Incarnation, bytes int64)) {
	p.backlog.Range(func(id, state any) bool {
		s := state.(*topicState)
		if bytes := s.bytes.Load(); bytes > 0 {
			f(s.name, id.(topic.Incarnation), bytes)
		}
		return true
	})
}
