package wal

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"sync"

	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// A frame holds one unit, little-endian:
//
//	0   4  "NWAL"
//	4   4  length of the frame
//	8   8  nonce of the segment (set when the segment is known: not in the CRC)
//	16  4  CRC-32C of bytes 20..length
//	20  4  number of records, 1 or more
//	24  8  identity
//	32  8  sequence of the first record
//	40     records
//
// and a record:
//
//	0   4  length of the record
//	4   4  CRC-32C of bytes 24..40 of the frame, then of bytes 8.. of the record
//	8   4  sequence minus the first one
//	12  8  accept time, Unix milliseconds
//	20  8  incarnation
//	28  4  partition
//	32  1  flags: 1 pinned
//	33  1  length of the topic name
//	34     topic name, then the body
//
// A record has a CRC of its own so that one of a large unit can be read alone.
const (
	frameMagic = "NWAL"
	frameHead  = 40
	recordHead = 34
	flagPinned = 1

	// MaxUnitBytes bounds one Append: half a segment, and well above what a
	// batch request may hold.
	MaxUnitBytes = 32 << 20
	maxTopic     = math.MaxUint8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Entry is what a record holds besides its ID. Body is the encoded message
// (record.AppendBody).
type Entry struct {
	Topic       string
	Incarnation topic.Incarnation
	Partition   int32 // accepted for
	Pinned      bool  // by the client
	AcceptMS    int64 // Unix milliseconds
	Body        []byte
}

// ID names a record for ever: over restarts, parking and reroutes.
type ID struct {
	Identity topic.ID64
	Seq      uint64
}

// Position tells where a record stands. It is small so that queues can hold
// positions in place of records.
type Position struct {
	Segment uint64
	Frame   uint32 // byte offset of the frame in the segment
	Record  uint32 // byte offset of the record in the frame
	Size    uint32 // bytes of the record
	Index   uint32 // of the record in its unit
}

func (p Position) framePos() seglog.Pos {
	return seglog.Pos{Segment: p.Segment, Offset: int64(p.Frame)}
}

// Record is one durable record.
type Record struct {
	Position
	ID
	Entry
}

// unitSize is the frame length of a unit, or -1 when an entry has no place in one.
func unitSize(entries []Entry) int {
	n := frameHead
	for i := range entries {
		if len(entries[i].Topic) > maxTopic || len(entries[i].Body) > MaxUnitBytes {
			return -1
		}
		n += recordHead + len(entries[i].Topic) + len(entries[i].Body)
		if n > MaxUnitBytes {
			return -1
		}
	}
	return n
}

// appendHead starts a frame; sealFrame completes it.
func appendHead(b []byte, count int, first ID) []byte {
	b = append(b, frameMagic...)
	b = append(b, make([]byte, 16)...) // length, nonce, CRC
	b = binary.LittleEndian.AppendUint32(b, uint32(count))
	b = binary.LittleEndian.AppendUint64(b, uint64(first.Identity))
	return binary.LittleEndian.AppendUint64(b, first.Seq)
}

// appendRecord adds a record to the frame that starts at frame.
func appendRecord(b []byte, frame int, delta uint32, e *Entry) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(recordHead+len(e.Topic)+len(e.Body)))
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, delta)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.AcceptMS))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Incarnation))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.Partition))
	var flags byte
	if e.Pinned {
		flags = flagPinned
	}
	b = append(b, flags, byte(len(e.Topic)))
	b = append(b, e.Topic...)
	b = append(b, e.Body...)
	binary.LittleEndian.PutUint32(b[at+4:], recordCRC(b[frame:], b[at:]))
	return b
}

func recordCRC(frame, rec []byte) uint32 {
	return crc32.Update(crc32.Checksum(frame[24:frameHead], castagnoli), castagnoli, rec[8:])
}

func sealFrame(b []byte, frame int) {
	f := b[frame:]
	binary.LittleEndian.PutUint32(f[4:], uint32(len(f)))
	binary.LittleEndian.PutUint32(f[16:], crc32.Checksum(f[20:], castagnoli))
}

// setNonce marks every frame in b as one of the segment with that nonce.
func setNonce(b []byte, nonce uint64) {
	for len(b) > 0 {
		binary.LittleEndian.PutUint64(b[8:], nonce)
		b = b[binary.LittleEndian.Uint32(b[4:]):]
	}
}

// format tells seglog what a frame is. In the WAL sequences start at the base
// of the segment, in a parked log they do not.
type format struct{ parked bool }

func (format) Magic() [4]byte { return [4]byte([]byte(frameMagic)) }

func (f format) Parse(h *seglog.Header, b []byte) (int, seglog.Verdict) {
	if len(b) < frameHead {
		return frameHead, seglog.NeedMore
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	switch {
	case string(b[:4]) != frameMagic, n <= frameHead, n > MaxUnitBytes,
		!h.Damaged && binary.LittleEndian.Uint64(b[8:]) != h.Nonce,
		!f.parked && binary.LittleEndian.Uint64(b[32:]) < h.Base:
		return 0, seglog.NotFrame
	case len(b) < n:
		return n, seglog.NeedMore
	case crc32.Checksum(b[20:n], castagnoli) != binary.LittleEndian.Uint32(b[16:]):
		return 0, seglog.NotFrame
	}
	return n, seglog.Whole
}

// suspect tells how long a frame is that looks complete but for its checksum: a
// head of this segment, and an end that was written. The end of an unfinished write
// is zeros (filled ahead) or not there; in a recycled file old bytes may stand
// there, and a false alarm is better than a silent loss.
func suspect(h *seglog.Header, b []byte) int {
	const end = 16
	if len(b) < frameHead+recordHead || string(b[:4]) != frameMagic || !h.Damaged && binary.LittleEndian.Uint64(b[8:]) != h.Nonce {
		return 0
	}
	n := int(binary.LittleEndian.Uint32(b[4:]))
	if n < frameHead+recordHead || n > len(b) {
		return 0
	}
	for _, c := range b[n-end : n] {
		if c != 0 {
			return n
		}
	}
	return 0
}

// unit is a frame being read.
type unit struct {
	pos   seglog.Pos
	b     []byte
	first ID
	count uint32
	at    int    // offset of the next record
	index uint32 // of the next record
}

// errRecord: a frame or record whose parts do not fit together. Only a wrong
// write of ours or a forged checksum gives that below an intact frame.
var errRecord = errors.New("broken record")

func openUnit(f seglog.Frame) unit {
	return unit{
		pos: f.Pos, b: f.Bytes, at: frameHead, count: binary.LittleEndian.Uint32(f.Bytes[20:]),
		first: ID{topic.ID64(binary.LittleEndian.Uint64(f.Bytes[24:])), binary.LittleEndian.Uint64(f.Bytes[32:])},
	}
}

// lastSeq is the sequence of the last record of a unit of the WAL.
func (u *unit) lastSeq() uint64 { return u.first.Seq + uint64(max(u.count, 1)) - 1 }

// next decodes the next record. ok is false at the end.
func (u *unit) next(names *interner) (rec Record, ok bool, err error) {
	if u.at >= len(u.b) {
		return Record{}, false, nil
	}
	rest := u.b[u.at:]
	if len(rest) < recordHead {
		return Record{}, false, errRecord
	}
	n := int(binary.LittleEndian.Uint32(rest))
	if n < recordHead || n > len(rest) {
		return Record{}, false, errRecord
	}
	if err := decodeRecord(&rec, u.first, rest[:n], names); err != nil {
		return Record{}, false, err
	}
	rec.Position = Position{u.pos.Segment, uint32(u.pos.Offset), uint32(u.at), uint32(n), u.index}
	u.at += n
	u.index++
	return rec, true, nil
}

// decodeRecord reads the bytes of one record. Body aliases b.
func decodeRecord(rec *Record, first ID, b []byte, names *interner) error {
	nameEnd := recordHead + int(b[33])
	if nameEnd > len(b) {
		return errRecord
	}
	rec.ID = ID{first.Identity, first.Seq + uint64(binary.LittleEndian.Uint32(b[8:]))}
	rec.Entry = Entry{
		Topic:       names.name(b[recordHead:nameEnd]),
		Incarnation: topic.ID64(binary.LittleEndian.Uint64(b[20:])),
		Partition:   int32(binary.LittleEndian.Uint32(b[28:])),
		Pinned:      b[32]&flagPinned != 0,
		AcceptMS:    int64(binary.LittleEndian.Uint64(b[12:])),
		Body:        b[nameEnd:len(b):len(b)],
	}
	return nil
}

// interner gives the same string for the same name, so that a record costs no
// allocation for it.
type interner struct {
	mu    sync.Mutex // guards names
	names map[string]string
}

// maxInterned bounds the names remembered; above it they are forgotten at once.
const maxInterned = 4096

func (in *interner) name(b []byte) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s, ok := in.names[string(b)]; ok {
		return s
	}
	if in.names == nil || len(in.names) >= maxInterned {
		in.names = map[string]string{}
	}
	s := string(b)
	in.names[s] = s
	return s
}
