package wal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"io/fs"
	"path"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/vfs"
)

// The file `checkpoint` holds two slots, at 0 and at slotGap, little-endian:
//
//	0   8  "NARADCKP"
//	8   8  generation, grows by one with each write
//	16  8  segment
//	24  8  byte offset in it
//	32  8  the sequence that comes there, for counting only
//	40  8  the last sequence acknowledged
//	48  4  CRC-32C of bytes 0..48
//
// The valid slot of the higher generation counts. A slot that is known to be on
// disk is never written to: writes go to the other one until a sync succeeds.
const (
	slotMagic      = "NARADCKP"
	slotSize       = 52
	slotGap        = 4096 // another block, so that one torn write cannot hit both
	checkpointName = "checkpoint"
)

type checkpoint struct {
	gen  uint64
	pos  seglog.Pos
	next uint64
	seq  uint64
}

func (c checkpoint) encode() []byte {
	b := make([]byte, 0, slotSize)
	b = append(b, slotMagic...)
	b = binary.LittleEndian.AppendUint64(b, c.gen)
	b = binary.LittleEndian.AppendUint64(b, c.pos.Segment)
	b = binary.LittleEndian.AppendUint64(b, uint64(c.pos.Offset))
	b = binary.LittleEndian.AppendUint64(b, c.next)
	b = binary.LittleEndian.AppendUint64(b, c.seq)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parseCheckpoint(b []byte) (checkpoint, bool) {
	if len(b) < slotSize || string(b[:8]) != slotMagic ||
		crc32.Checksum(b[:slotSize-4], castagnoli) != binary.LittleEndian.Uint32(b[slotSize-4:]) {
		return checkpoint{}, false
	}
	return checkpoint{
		binary.LittleEndian.Uint64(b[8:]),
		seglog.Pos{Segment: binary.LittleEndian.Uint64(b[16:]), Offset: int64(binary.LittleEndian.Uint64(b[24:]))},
		binary.LittleEndian.Uint64(b[32:]),
		binary.LittleEndian.Uint64(b[40:]),
	}, true
}

// slots is the open checkpoint file. It is for one goroutine at a time.
type slots struct {
	f       vfs.File
	durable int // slot known to be on disk; -1: none
	gen     uint64
}

// openSlots opens or makes the file. Broken slots are no error: the zero
// checkpoint then starts at the oldest segment. What it returns is durable.
func openSlots(fsys vfs.FS, dir string) (*slots, checkpoint, error) {
	name := path.Join(dir, checkpointName)
	f, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = fsys.Create(name); err == nil {
			err = fsys.SyncDir(dir)
		}
	}
	if err != nil {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return nil, checkpoint{}, err
	}
	s := &slots{f: f, durable: -1}
	best, err := s.load()
	if err != nil {
		return nil, checkpoint{}, errors.Join(err, f.Close())
	}
	return s, best, nil
}

func (s *slots) load() (checkpoint, error) {
	// What a killed process wrote may be in the page cache only.
	if err := s.f.Sync(); err != nil {
		return checkpoint{}, err
	}
	var best checkpoint
	for i := range 2 {
		var b [slotSize]byte
		n, err := s.f.ReadAt(b[:], int64(i)*slotGap)
		if err != nil && err != io.EOF {
			return checkpoint{}, err
		}
		if c, ok := parseCheckpoint(b[:n]); ok && (s.durable < 0 || c.gen > best.gen) {
			best, s.durable = c, i
		}
	}
	s.gen = best.gen
	return best, nil
}

// store makes a checkpoint durable.
func (s *slots) store(c checkpoint) error {
	s.gen++
	c.gen = s.gen
	slot := 1 - max(s.durable, 0)
	if _, err := s.f.WriteAt(c.encode(), int64(slot)*slotGap); err != nil {
		return err
	}
	if err := s.f.Sync(); err != nil {
		return err
	}
	s.durable = slot
	return nil
}
