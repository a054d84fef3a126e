package partlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"path"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	startMagic = "NARADPX1"
	// MaxStart bounds an exported start: as much as a state slot holds of a snapshot.
	MaxStart = maxSlot - MaxPosition

	replaceName = "replace"
	replaceTmp  = "replace.tmp"
)

// ErrBadStart: bytes that are no exported start.
var ErrBadStart = errors.New("invalid start of a log")

// ExportStart describes the log start, for a copy that lies below it: the offset,
// and in the bytes the epoch history, producer numbers and commit time there, as
// far as the batches from there on do not tell them. Replace takes the bytes.
// Errors: of the file system.
//
// Producer numbers at the log start are not kept, only those at some committed
// offset above it. What is exported are the numbers of the streams whose last
// batch lies below the log start: they are the same at both places. Every other
// stream has a batch between, which is committed, so that no leader can take it
// away, and which the copy gets before it can lead. So a copy never knows a number
// that is not in its log or was not below its start (a record would be taken for a
// duplicate of one that is gone), and one that has everything committed knows
// the same numbers as the leader (TestReplacedCopyKnowsTheSameNumbers).
func (l *Log) ExportStart() (start int64, exported []byte, err error) {
	for {
		l.mu.Lock()
		l.track.fold()
		start = l.startLocked()
		empty := start == l.written
		snap := snapshot{producers: l.track.base.before(start), epochs: l.epochs.truncate(start)}
		segments := len(l.bases)
		snap.producers.lastMS = 0
		if empty {
			snap.producers.lastMS = l.track.now.lastMS
		}
		l.mu.Unlock()
		if segments > 0 && !empty {
			ms, err := l.floorAt(start)
			if errors.Is(err, seglog.ErrRemoved) && l.LogStart() > start {
				continue // retention went on meanwhile
			}
			if err != nil {
				return 0, nil, fmt.Errorf("export the start of %s: %w", l.dir, err)
			}
			snap.producers.lastMS = ms
		}
		if l.closed.Load() {
			return 0, nil, fmt.Errorf("export the start of %s: %w", l.dir, ErrClosed)
		}
		snap.producers.sweptMS = snap.producers.lastMS
		return start, sealStart(appendSnapshot([]byte(startMagic), snap)), nil
	}
}

func sealStart(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// floorAt is the latest commit time before the first segment; 0 when its header
// is damaged.
func (l *Log) floorAt(base int64) (int64, error) {
	h, err := l.seg.Header(uint64(base))
	if err != nil {
		return 0, err
	}
	meta, _ := parseMeta(h)
	return meta.commitMS, nil
}

// before is what is known of the streams whose last batch lies below an offset,
// and of their WALs.
func (p *producers) before(at int64) *producers {
	out := newProducers()
	out.at = at
	for id, s := range p.streams {
		if s.base < at {
			out.streams[id] = s
		}
	}
	out.told = maps.Clone(p.told)
	out.orderClients()
	return out
}

// parseStart reads what ExportStart wrote, from whoever sent it.
func parseStart(b []byte) (snapshot, error) {
	n := len(b) - slotTrailer
	if n < len(startMagic) || len(b) > MaxStart || string(b[:len(startMagic)]) != startMagic ||
		crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return snapshot{}, ErrBadStart
	}
	c := cursor{b: b[len(startMagic):n]}
	snap := c.snapshot()
	p := snap.producers
	snap.start = p.at
	if c.bad || len(c.b) > 0 || p.at < 0 || p.at > record.MaxOffset || len(p.streams)-p.clients.n > maxStreams || p.clients.n > MaxClients || len(snap.epochs) > maxEpochs {
		return snapshot{}, ErrBadStart
	}
	for _, s := range p.streams {
		if s.base < 0 || s.base >= p.at {
			return snapshot{}, ErrBadStart
		}
	}
	last := EpochStart{Start: -1}
	for _, e := range snap.epochs {
		if e.Epoch <= last.Epoch || e.Start <= last.Start || e.Start >= p.at {
			return snapshot{}, ErrBadStart
		}
		last = e
	}
	return snap, nil
}

// StartOf tells the offset and the last epoch of an exported start. Errors:
// ErrBadStart.
func StartOf(exported []byte) (start int64, last topic.Epoch, err error) {
	snap, err := parseStart(exported)
	return snap.start, snap.epochs.last(), err
}

// Replace puts an empty log that begins at an exported start in place of the whole
// log in dir, which must exist and which nobody may have open. The state is st:
// identities and positions are the caller's; the HWM becomes the start when it is
// below, and stays when it is above: such a copy has lost what lies between. The
// fence is not touched.
//
// It is one rename: after an error the next Open finds the old log or the new one,
// never a mixture, and finishes what is left to do. Errors: ErrBadStart, a
// position longer than MaxPosition, or of the file system; it may be repeated.
func Replace(fsys vfs.FS, dir string, st State, exported []byte) error {
	snap, err := parseStart(exported)
	if err == nil && len(st.Position) > MaxPosition {
		err = fmt.Errorf("position of %d bytes, at most %d", len(st.Position), MaxPosition)
	}
	if err == nil {
		err = remove(fsys, path.Join(dir, replaceTmp))
	}
	if err == nil {
		st.HWM = max(st.HWM, snap.start)
		slot := appendSlot(nil, 1, &st, snap.start, appendSnapshot(nil, snap))
		err = createSynced(fsys, path.Join(dir, replaceTmp), slot)
	}
	if err == nil {
		err = fsys.Rename(path.Join(dir, replaceTmp), path.Join(dir, replaceName))
	}
	if err == nil {
		err = fsys.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("replace the log in %s: %w", dir, err)
	}
	return nil
}

// finishReplace does what a Replace has decided: the file `replace` holds the
// state slot of the new log. Everything may be done again until it is gone.
func finishReplace(fsys vfs.FS, dir string) error {
	name := path.Join(dir, replaceName)
	slot, err := readWhole(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A killed process may have left the name in memory only: the old log must not
	// go before the decision is on disk.
	if err := fsys.SyncDir(dir); err != nil {
		return err
	}
	// It was synced before it got its name, so one that is not valid has rotted. The
	// old log is whole then, or has no state any more, which its owner judges.
	if _, _, snap, err := parseSlot(slot); err == nil {
		if err := install(fsys, dir, snap, slot); err != nil {
			return err
		}
	}
	if err := fsys.Remove(name); err != nil {
		return err
	}
	// Synced before anything is appended: a decision that came back would remove it.
	return fsys.SyncDir(dir)
}

// install makes the directory hold an empty log with the given state.
func install(fsys vfs.FS, dir string, snap snapshot, slot []byte) error {
	s := slots{fs: fsys, dir: dir}
	for i := range s.files {
		if err := remove(fsys, s.name(i)); err != nil {
			return err
		}
	}
	if err := seglog.RemoveAll(fsys, dir); err != nil {
		return err
	}
	seg, err := seglog.Open(fsys, dir, seglog.Options{Format: batchFormat{}, MaxFrame: record.MaxBatch})
	if err != nil {
		return err
	}
	meta := segmentMeta{snap.start, snap.producers.lastMS, snap.epochs.last()}
	if err := errors.Join(seg.Roll(uint64(snap.start), meta.encode()), seg.Close()); err != nil {
		return err
	}
	if err := createSynced(fsys, s.name(0), slot); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

func remove(fsys vfs.FS, name string) error {
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func createSynced(fsys vfs.FS, name string, b []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(b, 0); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func readWhole(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.OpenRead(name)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	b := make([]byte, min(size, maxSlot))
	if err == nil {
		_, err = f.ReadAt(b, 0)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b, errors.Join(err, f.Close())
}
