package partlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"sync"

	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

// The file `fence` holds two slots, at 0 and at fenceGap, big-endian:
//
//	 0  8    "NARADFN1"
//	 8  u64  generation; the valid slot with the higher one counts
//	16  u32  leader epoch promised
//	20  u32  CRC-32C of bytes 0..19
const (
	fenceName  = "fence"
	fenceMagic = "NARADFN1"
	fenceSize  = 24
	fenceGap   = 4096 // another block, so that one torn write cannot hit both
)

// Fence is the promise of a copy not to follow, answer or lead under an older
// leader epoch than the one promised. It stands in a file of its own, beside the
// log, that nothing else writes; a copy without a valid one is a new disk.
//
// What Promise has returned nil for is on disk. Safe for concurrent use. It keeps no
// file open.
type Fence struct {
	fs  vfs.FS
	dir string

	mu         sync.Mutex // guards all below, and is held across the writes
	epoch      topic.Epoch
	found      bool
	generation uint64
	slot       int  // of epoch
	durable    bool // by a write and sync of this object: what was read may be in the page cache only
	named      bool // the directory was synced
	closed     bool
}

// OpenFence reads the fence of the copy in dir, which need not exist. Errors are
// of the file system; damage is none.
func OpenFence(fsys vfs.FS, dir string) (*Fence, error) {
	f := &Fence{fs: fsys, dir: dir}
	file, err := fsys.OpenRead(f.name())
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open fence %s: %w", f.name(), err)
	}
	for i := range 2 {
		var b [fenceSize]byte
		n, rerr := file.ReadAt(b[:], int64(i)*fenceGap)
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			err = errors.Join(err, rerr)
		}
		if generation, epoch, ok := parseFence(b[:n]); ok && (!f.found || generation > f.generation) {
			f.generation, f.epoch, f.slot, f.found = generation, epoch, i, true
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read fence %s: %w", f.name(), err)
	}
	return f, nil
}

func (f *Fence) name() string { return path.Join(f.dir, fenceName) }

func appendFence(b []byte, generation uint64, epoch topic.Epoch) []byte {
	at := len(b)
	b = binary.BigEndian.AppendUint64(append(b, fenceMagic...), generation)
	b = binary.BigEndian.AppendUint32(b, uint32(epoch))
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[at:], castagnoli))
}

func parseFence(b []byte) (generation uint64, epoch topic.Epoch, ok bool) {
	if len(b) < fenceSize || string(b[:8]) != fenceMagic ||
		crc32.Checksum(b[:fenceSize-4], castagnoli) != binary.BigEndian.Uint32(b[fenceSize-4:]) {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(b[8:]), topic.Epoch(binary.BigEndian.Uint32(b[16:])), true
}

// Promised is the highest epoch promised; found is false for a copy that never
// promised one, or whose fence is lost.
func (f *Fence) Promised() (epoch topic.Epoch, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch, f.found
}

// Promise makes epoch durable before it returns nil; repeating the epoch promised
// is harmless and costs nothing once it is known to be on disk. Errors:
// ErrStaleEpoch when a newer one is promised; or of the file system: then it must
// not be answered, and may be repeated.
func (f *Fence) Promise(epoch topic.Epoch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.closed:
		return fmt.Errorf("promise epoch %d in %s: %w", epoch, f.dir, ErrClosed)
	case f.found && epoch < f.epoch:
		return fmt.Errorf("promise epoch %d in %s: %w: %d is promised", epoch, f.dir, ErrStaleEpoch, f.epoch)
	case f.found && f.durable && f.named && epoch == f.epoch:
		return nil
	}
	if err := f.promiseLocked(epoch); err != nil {
		return fmt.Errorf("promise epoch %d in %s: %w", epoch, f.dir, err)
	}
	return nil
}

// Close ends the use of the directory, which may belong to somebody else from now
// on: a promise that runs is waited for, and no other one is made.
func (f *Fence) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}

func (f *Fence) promiseLocked(epoch topic.Epoch) error {
	file, err := f.fs.Open(f.name())
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.fs.Create(f.name())
	}
	if err != nil {
		return err
	}
	if f.found && !f.durable {
		// The same bytes in the same place: no torn write can spoil them, and they are
		// on disk before the other slot, which may be the only one there, is overwritten.
		if err = write(file, f.slot, appendFence(nil, f.generation, f.epoch)); err == nil {
			f.durable = true
		}
	}
	if err == nil && (!f.found || epoch > f.epoch) {
		slot := 1 - f.slot
		if err = write(file, slot, appendFence(nil, f.generation+1, epoch)); err == nil {
			f.generation, f.epoch, f.slot, f.found, f.durable = f.generation+1, epoch, slot, true, true
		}
	}
	if err == nil && !f.named {
		err = f.fs.SyncDir(f.dir)
		f.named = err == nil
	}
	return errors.Join(err, file.Close())
}

func write(file vfs.File, slot int, b []byte) error {
	if _, err := file.WriteAt(b, int64(slot)*fenceGap); err != nil {
		return err
	}
	return file.Sync()
}
