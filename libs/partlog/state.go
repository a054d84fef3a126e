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
	"slices"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/vfs"
)

const (
	slotMagic   = "NARADPS2"
	slotMagic1  = "NARADPS1" // the same without a position generation, which is 0 then
	slotHead    = 20
	slotTrailer = 4
	// MaxPosition bounds the consumer position: a million settled ranges, which
	// is the highest cap of a topic, at their longest usual encoding.
	MaxPosition = 8 << 20
	// maxSlot bounds what a slot file may make us read.
	maxSlot = MaxPosition + 4<<20
)

// State is what is kept beside the log. The log adds the snapshot of producers
// and the epoch history by itself.
type State struct {
	CopyID, DiskID, LogID topic.ID64
	HWM                   int64 // everything below is committed
	DroppedUnsettled      int64 // records that retention removed before they were settled
	// PositionGeneration tells which positions count when copies differ: a seek
	// starts a new one. It only grows: a Position of a lower one is not stored.
	PositionGeneration uint64
	Position           []byte
}

// snapshot is the part of the state that is a function of the log.
type snapshot struct {
	producers *producers
	epochs    epochs
	start     int64 // of the log: segments below it are removed or about to be
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	errSlot    = errors.New("invalid state slot")
)

func appendSlot(dst []byte, generation uint64, s *State, start int64, encoded []byte) []byte {
	at := len(dst)
	dst = append(dst, slotMagic...)
	dst = binary.BigEndian.AppendUint64(dst, generation)
	dst = binary.BigEndian.AppendUint32(dst, 0)
	for _, id := range []topic.ID64{s.CopyID, s.DiskID, s.LogID} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(id))
	}
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.HWM))
	dst = binary.BigEndian.AppendUint64(dst, uint64(start))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.DroppedUnsettled))
	dst = binary.BigEndian.AppendUint64(dst, s.PositionGeneration)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s.Position)))
	dst = append(dst, s.Position...)
	dst = append(dst, encoded...)
	binary.BigEndian.PutUint32(dst[at+16:], uint32(len(dst)-at-slotHead))
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

func appendSnapshot(dst []byte, snap snapshot) []byte {
	p := snap.producers
	for _, v := range []int64{p.at, p.lastMS, p.sweptMS} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.streams)))
	for _, id := range p.order() {
		s := p.streams[id]
		dst = append(dst, byte(id.Kind))
		dst = binary.BigEndian.AppendUint64(dst, uint64(id.ID))
		dst = binary.BigEndian.AppendUint32(dst, id.A)
		dst = binary.BigEndian.AppendUint32(dst, id.B)
		dst = binary.BigEndian.AppendUint32(dst, s.highest.Epoch)
		dst = binary.BigEndian.AppendUint64(dst, s.highest.Seq)
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.base))
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.lastMS))
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.oldestID))
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.passedMS))
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(p.told)))
	for _, id := range slices.Sorted(maps.Keys(p.told)) {
		t := p.told[id]
		gone := byte(0)
		if t.gone {
			gone = 1
		}
		dst = binary.BigEndian.AppendUint64(dst, uint64(id))
		dst = append(binary.BigEndian.AppendUint64(dst, t.seq), gone)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(snap.epochs)))
	for _, e := range snap.epochs {
		dst = binary.BigEndian.AppendUint32(dst, uint32(e.Epoch))
		dst = binary.BigEndian.AppendUint64(dst, uint64(e.Start))
	}
	return dst
}

// parseSlot reads what appendSlot wrote, or errSlot.
func parseSlot(b []byte) (generation uint64, s State, snap snapshot, err error) {
	if len(b) < slotHead+slotTrailer || string(b[:8]) != slotMagic && string(b[:8]) != slotMagic1 {
		return 0, State{}, snapshot{}, errSlot
	}
	n := int64(binary.BigEndian.Uint32(b[16:])) + slotHead
	// The file may be longer: a slot is overwritten in place by a shorter one.
	if int64(len(b)) < n+slotTrailer || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return 0, State{}, snapshot{}, errSlot
	}
	generation = binary.BigEndian.Uint64(b[8:])
	c := cursor{b: b[slotHead:n]}
	s.CopyID, s.DiskID, s.LogID = topic.ID64(c.u64()), topic.ID64(c.u64()), topic.ID64(c.u64())
	hwm, start := c.i64(), c.i64()
	s.HWM, s.DroppedUnsettled = hwm, c.i64()
	if string(b[:8]) == slotMagic {
		s.PositionGeneration = c.u64()
	}
	s.Position = append([]byte(nil), c.bytes(int(c.u32()))...)
	snap = c.snapshot()
	snap.start = start
	if c.bad || len(c.b) > 0 || s.HWM < 0 || snap.producers.at > s.HWM || start < 0 || start > s.HWM || len(s.Position) > MaxPosition {
		return 0, State{}, snapshot{}, errSlot
	}
	return generation, s, snap, nil
}

// cursor reads fields until they end; bad tells that they ended too early.
type cursor struct {
	b   []byte
	bad bool
}

func (c *cursor) bytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.b, c.bad = nil, true
		return nil
	}
	out := c.b[:n]
	c.b = c.b[n:]
	return out
}

func (c *cursor) u8() byte {
	if b := c.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) i64() int64 { return int64(c.u64()) }

func (c *cursor) snapshot() snapshot {
	p := newProducers()
	p.at, p.lastMS, p.sweptMS = c.i64(), c.i64(), c.i64()
	for n := c.u32(); n > 0 && !c.bad; n-- {
		id := record.Stream{Kind: record.StreamKind(c.u8()), ID: topic.ID64(c.u64()), A: c.u32(), B: c.u32()}
		p.streams[id] = producer{
			highest: record.Number{Epoch: c.u32(), Seq: c.u64()}, base: c.i64(), lastMS: c.i64(),
			oldestID: topic.ID64(c.u64()), passedMS: c.i64(),
		}
	}
	p.orderClients()
	for n := c.u32(); n > 0 && !c.bad; n-- {
		id := topic.ID64(c.u64())
		p.told[id] = told{c.u64(), c.u8() == 1}
	}
	var e epochs
	for n := c.u32(); n > 0 && !c.bad; n-- {
		e = append(e, EpochStart{Epoch: topic.Epoch(c.u32()), Start: c.i64()})
	}
	return snapshot{producers: p, epochs: e}
}

// slots are the two state files. The one known to be durable is never written
// to: a torn or unsynced write can only spoil the other one.
type slots struct {
	fs         vfs.FS
	dir        string
	durable    int    // index of the durable slot; -1: none
	generation uint64 // highest used
	files      [2]vfs.File
	named      [2]bool // the name is on disk; what was there at load is synced by open
	buf        []byte
}

func (s *slots) name(i int) string { return path.Join(s.dir, fmt.Sprintf("state.%d", i)) }

// load reads both slots, syncs them (a killed process may have left them in the
// page cache only), and returns the newest valid one. found is false when none
// is; damaged when a slot has content that is not valid.
func (s *slots) load() (st State, snap snapshot, found, damaged bool, err error) {
	s.durable = -1
	for i := range s.files {
		b, err := s.read(i)
		if err != nil {
			return State{}, snapshot{}, false, false, fmt.Errorf("read state slot %s: %w", s.name(i), err)
		}
		if b == nil {
			continue
		}
		generation, slot, slotSnap, perr := parseSlot(b)
		if perr != nil {
			damaged = true
			continue
		}
		if !found || generation > s.generation {
			s.durable, s.generation, st, snap, found = i, generation, slot, slotSnap, true
		}
	}
	return st, snap, found, damaged, nil
}

// read returns the content of a slot; nil when it does not exist.
func (s *slots) read(i int) ([]byte, error) {
	f, err := s.fs.Open(s.name(i))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	s.files[i], s.named[i] = f, true
	if err := f.Sync(); err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, maxSlot))
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return b[:n], nil
}

// save writes the state to the slot that is not the durable one.
func (s *slots) save(st *State, start int64, encoded []byte, sync bool) error {
	target := 0
	if s.durable == 0 {
		target = 1
	}
	if err := s.open(target); err != nil {
		return fmt.Errorf("open state slot %s: %w", s.name(target), err)
	}
	s.generation++
	s.buf = appendSlot(s.buf[:0], s.generation, st, start, encoded)
	if _, err := s.files[target].WriteAt(s.buf, 0); err != nil {
		return fmt.Errorf("write state slot %s: %w", s.name(target), err)
	}
	if !sync {
		return nil
	}
	if err := s.files[target].Sync(); err != nil {
		return errors.Join(fmt.Errorf("sync state slot %s: %w", s.name(target), err), s.discard(target))
	}
	s.durable = target
	return nil
}

// open opens the file or makes it. Its name is on disk when it returns nil.
func (s *slots) open(i int) error {
	if s.files[i] == nil {
		f, err := s.fs.Open(s.name(i))
		if errors.Is(err, fs.ErrNotExist) {
			s.named[i] = false
			f, err = s.fs.Create(s.name(i))
		}
		if err != nil {
			return err
		}
		s.files[i] = f
	}
	if !s.named[i] {
		if err := s.fs.SyncDir(s.dir); err != nil {
			return err
		}
		s.named[i] = true
	}
	return nil
}

// discard removes a slot whose sync failed: a later sync of the same file could
// report success for bytes that never reached the disk.
func (s *slots) discard(i int) error {
	err := errors.Join(s.files[i].Close(), s.fs.Remove(s.name(i)))
	s.files[i] = nil
	return err
}

// release closes the files; the next save opens them again.
func (s *slots) release() error {
	var errs error
	for i, f := range s.files {
		if f != nil {
			errs = errors.Join(errs, f.Close())
			s.files[i] = nil
		}
	}
	return errs
}
