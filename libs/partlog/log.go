package partlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"sync"
	"sync/atomic"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// Errors of this package.
var (
	// ErrFailed: a write or sync failed; nothing is appended before BeginEpoch or
	// BeginFollow.
	ErrFailed = errors.New("partition log failed")
	// ErrStaleEpoch: the epoch is not the one that BeginEpoch began, not above
	// every epoch in the log, or below what was followed or promised.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrBadCopy: what a leader sent is not what continues this log. Nothing of it
	// was appended.
	ErrBadCopy = errors.New("batches do not continue the log")
	// ErrOutOfRange: an offset above the end of the log.
	ErrOutOfRange = errors.New("offset above the end of the log")
	// ErrGone: an offset below the log start.
	ErrGone = errors.New("offset below the log start")
	// ErrClosed: the log was closed. Its directory may belong to somebody else by
	// now: nothing is opened, written, renamed or removed any more, and no offset is
	// said to be missing.
	ErrClosed = seglog.ErrClosed
	// ErrBelowHWM: a truncation below what is committed.
	ErrBelowHWM = errors.New("would cut below the high watermark")
)

// DefaultSegmentBytes is when a segment is full: large enough that files and
// directory syncs do not count, small enough that retention is not coarse and
// the scan of the active one at open is short.
const DefaultSegmentBytes = 64 << 20

// Options of a log. The zero value is the default.
type Options struct {
	SegmentBytes int64 // 0: DefaultSegmentBytes
	// FillAhead is how many zero bytes are written ahead, see seglog.Options.
	FillAhead int64
	// OnDamage, when set, is told once of each damaged byte range, on the
	// goroutine that met it.
	OnDamage func(seglog.Damage)
}

// Recovery tells what Open found.
type Recovery struct {
	StateFound   bool  // a valid state slot was there
	StateDamaged bool  // a slot was there and not valid
	TornBytes    int64 // unfinished bytes cut at the end, and what came behind them
	GapOffsets   int64 // offsets lost between valid batches, as far as they were scanned
}

// Log is an open partition log. All methods are safe for concurrent use.
type Log struct {
	fs  vfs.FS
	dir string
	opt Options
	seg *seglog.Log

	// Lock order: syncMu, appendMu, stateMu, mu.

	// syncMu makes fsyncs take turns, and is held across them: whoever waits
	// for it finds that the one before has done its work.
	syncMu sync.Mutex
	// appendMu makes changes of the files take turns, and is held across the
	// writes: batches stand on disk in the order of their offsets.
	appendMu sync.Mutex
	// stateMu guards slots and the encoded snapshot, and is held across their
	// writes: an older state never lands behind a newer one.
	stateMu   sync.Mutex
	slots     slots
	encoded   []byte // snapshot as in the last state
	encodedAt int64  // its offset

	// closed is set while all three are held: whoever holds one of them and finds
	// it false may use the paths of the log until it lets go.
	closed atomic.Bool
	// cuts is odd while offsets move in the files (under appendMu), and changes with
	// each time: a read that ran beside it may have met anything, and begins again.
	cuts atomic.Uint64

	mu         sync.Mutex // guards all below; never held across I/O
	written    int64      // end of what was written
	writtenPos seglog.Pos
	synced     int64 // end of what is on disk; synced <= written
	syncedPos  seglog.Pos
	bases      []int64     // of the segments, ascending
	began      topic.Epoch // led, or followed when copying
	copying    bool
	failed     error
	cut        bool // after a failure: the files end at synced
	epochs     epochs
	track      *tracked
	state      State
	savedStart int64 // log start as in the state
	sinceSnap  int64 // bytes appended since the snapshot was taken
	wantSnap   bool
	index      indexes
	recovery   Recovery
}

// Open opens the log of one partition copy and recovers it; the directory is
// made when it is missing. What it returns as LEO is on disk. It costs a scan of
// the last segment, and of those behind the snapshot of producers, which are
// the earlier ones only after a crash. Nothing can be appended before BeginEpoch or
// BeginFollow. A Replace that was interrupted is completed or undone. Errors are of the file system; damage is none.
func Open(fs vfs.FS, dir string, opt Options) (*Log, error) {
	if opt.SegmentBytes <= 0 {
		opt.SegmentBytes = DefaultSegmentBytes
	}
	l := &Log{fs: fs, dir: dir, opt: opt, slots: slots{fs: fs, dir: dir}}
	if err := l.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("open partition log %s: %w", dir, err), l.Close())
	}
	return l, nil
}

func (l *Log) open() error {
	if err := finishReplace(l.fs, l.dir); err != nil {
		return err
	}
	st, snap, found, damaged, err := l.slots.load()
	if err != nil {
		return err
	}
	l.recovery = Recovery{StateFound: found, StateDamaged: damaged}
	if !found {
		snap = snapshot{producers: newProducers()}
	}
	l.state, l.epochs, l.savedStart = st, snap.epochs, snap.start
	l.encodedAt, l.encoded = snap.producers.at, appendSnapshot(nil, snap)
	l.index = newIndexes()
	rep := newReplay(l, snap.producers)
	l.seg, err = seglog.Open(l.fs, l.dir, seglog.Options{
		Format: batchFormat{}, MaxFrame: record.MaxBatch, FillAhead: l.opt.FillAhead, OnDamage: l.opt.OnDamage,
		UndoFull: true, Headers: true, Visit: rep.visitActive, Unpromised: rep.unpromised,
	})
	if err != nil {
		return err
	}
	// A power cut in the middle of a removal may have left any of the files.
	if err := l.seg.RemoveBelow(uint64(l.savedStart)); err != nil {
		return err
	}
	for _, s := range l.seg.Segments() {
		l.bases = append(l.bases, int64(s.Base))
	}
	// A killed process may have left names that no directory sync has covered.
	if err := errors.Join(l.fs.SyncDir(l.dir), l.fs.SyncDir(path.Dir(l.dir))); err != nil {
		return err
	}
	if err := rep.finish(); err != nil {
		return err
	}
	l.recovery.TornBytes = l.seg.Recovery().TornBytes
	return nil
}

// State is the state as it was loaded or saved last; found is false when no
// valid slot was there at open and none was saved since.
func (l *Log) State() (st State, found bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.recovery.StateFound
}

// Recovery tells what Open found.
func (l *Log) Recovery() Recovery {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recovery
}

// LEO is the end of what is on disk. It may be below State().HWM: then this copy
// has lost something, and BeginEpoch must begin at the HWM.
func (l *Log) LEO() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.synced
}

// WrittenEnd is the end of what was appended, synced or not.
func (l *Log) WrittenEnd() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.written
}

// LogStart is the lowest offset that may still be there; WrittenEnd when the log
// is empty.
func (l *Log) LogStart() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.startLocked()
}

func (l *Log) startLocked() int64 {
	if len(l.bases) == 0 {
		return l.written
	}
	return l.bases[0]
}

// Epochs is the epoch history, ascending.
func (l *Log) Epochs() []EpochStart {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]EpochStart(nil), l.epochs...)
}

// LastEpoch is the epoch of the last batch; 0 when there never was one.
func (l *Log) LastEpoch() topic.Epoch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epochs.last()
}

// LastCommitMS is the latest commit time in the log, Unix milliseconds, 0 when
// there is none. A leader's partition clock starts at or above it, so that
// commit times never decrease.
func (l *Log) LastCommitMS() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.track.now.lastMS
}

// Bytes is the size of the segments.
func (l *Log) Bytes() int64 { return l.seg.Bytes() }

// Failed is the error that ended appending, or nil.
func (l *Log) Failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// Producer is the highest number that the log holds of a stream, written or
// synced; ok is false for a stream that it does not know or has forgotten.
func (l *Log) Producer(s record.Stream) (highest record.Number, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.track.now.streams[s]
	return p.highest, ok
}

// Committed tells the log where the HWM is: what may be folded into a snapshot
// and must not be truncated. It writes nothing; SaveState stores it. A follower
// passes at most its own LEO.
func (l *Log) Committed(hwm int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.track.committed(hwm)
}

// ReleaseFiles closes the files of an idle log; use opens them again. What is
// not synced stays open.
func (l *Log) ReleaseFiles() error {
	l.stateMu.Lock()
	err := l.slots.release()
	l.stateMu.Unlock()
	return errors.Join(err, l.seg.ReleaseFiles())
}

// Close syncs what was appended and closes the files. It does not save the
// state. When it returns nothing touches the directory any more; what is called
// later, or was in flight, answers ErrClosed.
func (l *Log) Close() error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	l.stateMu.Lock()
	l.closed.Store(true)
	err := l.slots.release()
	l.stateMu.Unlock()
	if l.seg == nil {
		return err
	}
	return errors.Join(err, l.seg.Close())
}

// batchFormat tells seglog what a frame is: a placed batch at or above the
// segment's base.
type batchFormat struct{}

// Magic implements seglog.Format.
func (batchFormat) Magic() [4]byte { return [4]byte([]byte(record.Magic)) }

// Parse implements seglog.Format.
func (batchFormat) Parse(h *seglog.Header, b []byte) (int, seglog.Verdict) {
	bh, err := record.ParseHeader(b)
	if errors.Is(err, record.ErrShort) {
		return record.HeaderSize, seglog.NeedMore
	}
	if err != nil || bh.BaseOffset < 0 || uint64(bh.BaseOffset) < h.Base || record.VerifyPlacement(b) != nil {
		return 0, seglog.NotFrame
	}
	if len(b) < bh.Size() {
		return bh.Size(), seglog.NeedMore
	}
	if record.Verify(b[:bh.Size()]) != nil {
		return 0, seglog.NotFrame
	}
	return bh.Size(), seglog.Whole
}

const metaSize = 20

// segmentMeta is what a segment's header says of the log before it.
type segmentMeta struct {
	prevEnd   int64
	commitMS  int64
	lastEpoch topic.Epoch
}

func (m segmentMeta) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, metaSize), uint64(m.prevEnd))
	b = binary.BigEndian.AppendUint64(b, uint64(m.commitMS))
	return binary.BigEndian.AppendUint32(b, uint32(m.lastEpoch))
}

func parseMeta(h *seglog.Header) (segmentMeta, bool) {
	if h.Damaged || len(h.Meta) < metaSize {
		return segmentMeta{}, false
	}
	return segmentMeta{
		prevEnd:   int64(binary.BigEndian.Uint64(h.Meta)),
		commitMS:  int64(binary.BigEndian.Uint64(h.Meta[8:])),
		lastEpoch: topic.Epoch(binary.BigEndian.Uint32(h.Meta[16:])),
	}, true
}
