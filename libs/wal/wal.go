package wal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Errors of Append. Every refusal wraps ErrUnavailable or is ErrTooLarge.
var (
	// ErrUnavailable: the WAL cannot take records now. It tries to recover by
	// itself every second.
	ErrUnavailable = errors.New("wal unavailable")
	// ErrRefused: nothing of the unit was written, and it will never be read.
	ErrRefused = fmt.Errorf("%w: refused before anything was written", ErrUnavailable)
	// ErrOutcomeUnknown: a write or sync failed. Unless the machine stops before
	// a new segment was made, the unit is never read.
	ErrOutcomeUnknown = fmt.Errorf("%w: write or sync failed", ErrUnavailable)
	// ErrTooLarge: the unit exceeds MaxUnitBytes, or a topic name 255 bytes.
	ErrTooLarge = errors.New("unit too large for the wal")
	// ErrClosed: the WAL was closed; nothing was written.
	ErrClosed = fmt.Errorf("%w: closed", ErrRefused)
)

// Defaults of Options.
const (
	// DefaultSegmentBytes: small enough to come back soon, large enough that a
	// roll does not count.
	DefaultSegmentBytes = 64 << 20
	// defaultFillAhead and defaultRecycle make syncs run over written blocks
	// (BenchmarkWriteSync in seglog: less than half the time).
	defaultFillAhead = 4 << 20
	defaultRecycle   = 2
	// recoverEvery is how often a failed WAL tries a new segment.
	recoverEvery = time.Second
	// checkpointEvery bounds how old the synced checkpoint is.
	checkpointEvery = 250 * time.Millisecond
	// maxGroup bounds what is staged for the next sync, unless one unit is larger.
	maxGroup = 8 << 20
	// keepBuffer bounds the staging memory kept between syncs.
	keepBuffer = 4 << 20
)

// Options of a WAL. The zero value is usable.
type Options struct {
	SegmentBytes int64               // 0: DefaultSegmentBytes
	FillAhead    int64               // bytes of zeros written ahead; 0: 4 MiB, negative: none
	Recycle      int                 // segment files kept for reuse; 0: 2, negative: none
	Identity     func() topic.ID64   // nil: random. Must never repeat.
	OnSync       func(time.Duration) // each fdatasync of a group; must be quick
	OnDamage     func(seglog.Damage) // each damaged range, once
	OnError      func(error)         // what failed in the background (checkpoint, recovery)
}

func (o *Options) setDefaults() {
	if o.SegmentBytes == 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.FillAhead == 0 {
		o.FillAhead = defaultFillAhead
	}
	if o.Recycle == 0 {
		o.Recycle = defaultRecycle
	}
	if o.Identity == nil {
		o.Identity = randomIdentity
	}
}

func randomIdentity() topic.ID64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails (crypto/rand)
		if id := binary.LittleEndian.Uint64(b[:]); id != 0 {
			return topic.ID64(id)
		}
	}
}

// WAL is an open ingress WAL. All methods are safe for concurrent use; there
// is one Reader.
type WAL struct {
	fs       vfs.FS
	dir      string
	opt      Options
	log      *seglog.Log
	identity topic.ID64
	lock     io.Closer
	slots    *slots // used by run only, and by Close after it

	// commitMu is held across the write and sync of a group: that one group at a
	// time is written is what makes the next one gather. It is taken before mu.
	commitMu    sync.Mutex
	nonce       uint64 // of the segment written to; guarded by commitMu
	filesClosed bool   // guarded by commitMu

	// sealMu is held across the work of Seal and Unseal, so that they take turns. It is
	// taken before commitMu.
	sealMu sync.Mutex

	mu      sync.Mutex // guards what follows; never held across I/O
	room    *sync.Cond // a group was taken, or nothing is taken any more
	cur     *group     // being staged
	spare   []byte     // buffer of a finished group
	nextSeq uint64
	acked   uint64 // last sequence that is on disk
	failed  error  // nil: appends are accepted
	closed  bool

	sealed    bool // Append refuses
	sealSaved bool // and so will the next Open

	reader   Reader
	tracker  tracker
	wake     chan struct{} // something was synced; one pending signal is enough
	dirty    chan struct{} // the checkpoint moved
	broken   chan struct{} // failed was set
	stop     chan struct{}
	stopped  chan struct{}
	damages  atomic.Int64
	lost     atomic.Int64 // bytes in damaged ranges
	ckptFail atomic.Bool  // the last checkpoint write failed
}

// group is what one sync serves.
type group struct {
	buf         []byte
	first, last uint64
	led         bool
	done        chan struct{}
	err         error // set before done is closed
}

// Open locks and recovers the WAL in dir (made when missing), draws a new
// identity and starts a segment for it. When only that fails, as on a full
// disk, the WAL opens in the failed state: old records can be read, and it
// recovers by itself.
func Open(fsys vfs.FS, dir string, opt Options) (*WAL, error) {
	opt.setDefaults()
	w := &WAL{
		fs: fsys, dir: dir, opt: opt, identity: opt.Identity(),
		wake: make(chan struct{}, 1), dirty: make(chan struct{}, 1), broken: make(chan struct{}, 1),
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	w.room = sync.NewCond(&w.mu)
	w.cur = newGroup(nil)
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("open wal %s: %w", dir, errors.Join(err, w.closeFiles()))
	}
	go w.run()
	return w, nil
}

func newGroup(buf []byte) *group { return &group{buf: buf[:0], done: make(chan struct{})} }

func (w *WAL) open() error {
	if err := w.fs.MkdirAll(w.dir); err != nil {
		return err
	}
	if err := w.fs.SyncDir(path.Dir(w.dir)); err != nil {
		return err
	}
	var err error
	if w.lock, err = w.fs.Lock(path.Join(w.dir, "lock")); err != nil {
		return err
	}
	if err = w.loadSeal(); err != nil {
		return err
	}
	var c checkpoint
	if w.slots, c, err = openSlots(w.fs, w.dir); err != nil {
		return err
	}
	last := c.seq
	w.log, err = seglog.Open(w.fs, w.dir, seglog.Options{
		Format: format{}, MaxFrame: MaxUnitBytes, FillAhead: w.opt.FillAhead, Recycle: w.opt.Recycle,
		OnDamage: w.onDamage, Suspect: suspect,
		Visit: func(f seglog.Frame) error {
			u := openUnit(f)
			last = max(last, u.lastSeq())
			return nil
		},
	})
	if err != nil {
		return err
	}
	limits, next, err := w.readHeaders(last)
	if err != nil {
		return err
	}
	w.nextSeq, w.acked = next, next-1
	w.startReader(c, limits)
	if err := w.log.Roll(next, w.meta()); err != nil {
		w.nextSeq++ // a segment of this number may have been left behind
		w.fail(err)
		return nil
	}
	return w.loadNonce()
}

// readHeaders finds up to which sequence each segment may be read, where a
// later header of its identity says so, and the next sequence.
func (w *WAL) readHeaders(last uint64) (limits map[uint64]uint64, next uint64, err error) {
	limits = map[uint64]uint64{}
	segs := w.log.Segments()
	acked := map[topic.ID64]uint64{}
	for i := len(segs) - 1; i >= 0; i-- {
		h, err := w.log.Header(segs[i].Base)
		if err != nil {
			return nil, 0, err
		}
		m, ok := parseMeta(h.Meta)
		if !ok {
			continue
		}
		if limit, ok := acked[m.identity]; ok {
			limits[segs[i].Base] = limit
		}
		acked[m.identity] = m.acked
	}
	next = max(last+1, 1)
	if len(segs) == 0 {
		return limits, next, nil
	}
	tail := segs[len(segs)-1]
	h, err := w.log.Header(tail.Base)
	if err != nil {
		return nil, 0, err
	}
	m, ok := parseMeta(h.Meta)
	empty := tail.Size <= seglog.HeaderSize
	// An empty segment is replaced, so that restarts leave none behind, unless
	// its header is what hides refused records.
	if keep := !empty || ok && !m.first; keep {
		next = max(next, tail.Base+1)
	} else {
		next = max(next, tail.Base)
	}
	return limits, next, nil
}

// meta is the WAL's part of a segment header: identity, the last acknowledged
// sequence of it (8 bytes each), and 1 in a byte when it is the identity's first.
type meta struct {
	identity topic.ID64
	acked    uint64
	first    bool
}

const metaSize = 17

func (w *WAL) meta() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(w.identity))
	b = binary.LittleEndian.AppendUint64(b, w.acked)
	if w.nonce == 0 {
		return append(b, 1)
	}
	return append(b, 0)
}

func parseMeta(b []byte) (meta, bool) {
	if len(b) != metaSize {
		return meta{}, false
	}
	return meta{
		topic.ID64(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[8:]), b[16] == 1,
	}, true
}

// loadNonce learns the nonce of the segment that was just started.
func (w *WAL) loadNonce() error {
	h, err := w.log.Header(w.log.End().Segment)
	if err == nil {
		w.nonce = h.Nonce
	}
	return err
}

// Identity is that of the records appended by this open.
func (w *WAL) Identity() topic.ID64 { return w.identity }

func (w *WAL) onDamage(d seglog.Damage) {
	w.damages.Add(1)
	w.lost.Add(d.To - d.From)
	if w.opt.OnDamage != nil {
		w.opt.OnDamage(d)
	}
}

// Close stops accepting, waits for the group in flight, writes the checkpoint
// and closes the files. The Reader ends with ErrClosed.
func (w *WAL) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	w.room.Broadcast()
	w.mu.Unlock()
	close(w.stop)
	<-w.stopped
	w.commitMu.Lock()
	defer w.commitMu.Unlock()
	w.filesClosed = true
	var err error
	if c, ok := w.nextCheckpoint(); ok {
		err = w.store(c)
	}
	return errors.Join(err, w.closeFiles())
}

func (w *WAL) closeFiles() error {
	var err error
	if w.log != nil {
		err = w.log.Close()
	}
	if w.slots != nil {
		err = errors.Join(err, w.slots.f.Close())
	}
	if w.lock != nil {
		err = errors.Join(err, w.lock.Close())
	}
	return err
}
