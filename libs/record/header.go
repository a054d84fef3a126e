package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/narad-mq/narad/libs/topic"
)

// Codec is how the body of a batch is stored.
type Codec uint8

// The codecs, fixed for ever.
const (
	CodecNone Codec = 0
	CodecZstd Codec = 1
)

// Positions of the header fields; doc.go describes them.
const (
	atVersion   = 4
	atCodec     = 5
	atFlags     = 6
	atKind      = 7
	atBodyLen   = 8
	atRawLen    = 12
	atCount     = 16
	atStreamID  = 20
	atStreamA   = 28
	atStreamB   = 32
	atNumEpoch  = 36
	atFirst     = 40
	atLast      = 48
	atOldestID  = 56
	atOldestSeq = 64
	atCRC       = 72
	atBase      = 76
	atEpoch     = 84
	atCommitMS  = 88
	atPlaceCRC  = 96

	batchVersion = 1
	flagControl  = 1

	// Unplaced is the base offset of a batch that no leader has placed.
	Unplaced = -1
)

// Magic begins every batch.
const Magic = "NRB1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Oldest names the oldest record that a producer's WAL still holds, so that a
// partition may forget streams that have passed for good. The zero value tells
// nothing.
type Oldest struct {
	ID  topic.ID64 // WAL identity under which that record was first written
	Seq uint64
}

// Header is the parsed header of a batch.
type Header struct {
	Codec    Codec
	Control  bool
	BodyLen  int // as stored
	RawLen   int // uncompressed
	Count    int // offsets that the batch takes
	Stream   Stream
	NumEpoch uint32 // Number.Epoch of every record
	FirstSeq uint64
	LastSeq  uint64
	Oldest   Oldest
	CRC      uint32 // of everything immutable

	BaseOffset  int64 // Unplaced until a leader has placed the batch
	LeaderEpoch topic.Epoch
	CommitMS    int64 // Unix milliseconds, the partition clock
}

// Size is the length of the whole batch in bytes.
func (h *Header) Size() int { return HeaderSize + h.BodyLen }

// EndOffset is the offset after the last one that the batch takes.
func (h *Header) EndOffset() int64 { return h.BaseOffset + int64(h.Count) }

// First is the number of the first record.
func (h *Header) First() Number { return Number{h.NumEpoch, h.FirstSeq} }

// Last is the number of the last record.
func (h *Header) Last() Number { return Number{h.NumEpoch, h.LastSeq} }

// ParseHeader reads the header at the start of b, which may end anywhere after
// it. It checks structure, not checksums (see Verify). Errors: ErrShort when
// fewer than HeaderSize bytes are there and they may be the start of a batch,
// ErrNotBatch for anything that is no header of this version.
func ParseHeader(b []byte) (Header, error) {
	var h Header
	if n := min(len(b), len(Magic)); string(b[:n]) != Magic[:n] {
		return h, fmt.Errorf("%w: no magic", ErrNotBatch)
	}
	if len(b) < HeaderSize {
		return h, fmt.Errorf("%w: %d bytes of a header", ErrShort, len(b))
	}
	if b[atVersion] != batchVersion {
		return h, fmt.Errorf("%w: version %d", ErrNotBatch, b[atVersion])
	}
	h = Header{
		Codec: Codec(b[atCodec]), Control: b[atFlags] == flagControl,
		BodyLen: int(binary.BigEndian.Uint32(b[atBodyLen:])),
		RawLen:  int(binary.BigEndian.Uint32(b[atRawLen:])),
		Count:   int(binary.BigEndian.Uint32(b[atCount:])),
		Stream: Stream{
			Kind: StreamKind(b[atKind]), ID: topic.ID64(binary.BigEndian.Uint64(b[atStreamID:])),
			A: binary.BigEndian.Uint32(b[atStreamA:]), B: binary.BigEndian.Uint32(b[atStreamB:]),
		},
		NumEpoch: binary.BigEndian.Uint32(b[atNumEpoch:]),
		FirstSeq: binary.BigEndian.Uint64(b[atFirst:]),
		LastSeq:  binary.BigEndian.Uint64(b[atLast:]),
		Oldest: Oldest{
			ID: topic.ID64(binary.BigEndian.Uint64(b[atOldestID:])), Seq: binary.BigEndian.Uint64(b[atOldestSeq:]),
		},
		CRC:         binary.BigEndian.Uint32(b[atCRC:]),
		BaseOffset:  int64(binary.BigEndian.Uint64(b[atBase:])),
		LeaderEpoch: topic.Epoch(binary.BigEndian.Uint32(b[atEpoch:])),
		CommitMS:    int64(binary.BigEndian.Uint64(b[atCommitMS:])),
	}
	if b[atFlags]&^flagControl != 0 {
		return Header{}, fmt.Errorf("%w: unknown flags %#x", ErrNotBatch, b[atFlags])
	}
	if err := h.check(); err != nil {
		return Header{}, err
	}
	return h, nil
}

// check is what holds for the fields of every header.
func (h *Header) check() error {
	switch {
	case h.Codec > CodecZstd:
		return fmt.Errorf("%w: codec %d", ErrNotBatch, h.Codec)
	case h.BodyLen < 1 || h.BodyLen > MaxRaw || h.RawLen < 1 || h.RawLen > MaxRaw:
		return fmt.Errorf("%w: body of %d bytes, raw %d", ErrNotBatch, h.BodyLen, h.RawLen)
	case h.Codec == CodecNone && h.BodyLen != h.RawLen:
		return fmt.Errorf("%w: uncompressed body of %d bytes, raw %d", ErrNotBatch, h.BodyLen, h.RawLen)
	case h.Count < 1 || h.Count > MaxRecords:
		return fmt.Errorf("%w: %d records", ErrNotBatch, h.Count)
	case h.Control != (h.Stream.Kind == StreamNone), h.Control && h.Count != 1:
		return fmt.Errorf("%w: control %t, stream kind %d, %d records", ErrNotBatch, h.Control, h.Stream.Kind, h.Count)
	case h.LastSeq < h.FirstSeq || h.LastSeq-h.FirstSeq < uint64(h.Count-1):
		return fmt.Errorf("%w: sequences %d..%d for %d records", ErrNotBatch, h.FirstSeq, h.LastSeq, h.Count)
	case h.BaseOffset < Unplaced || h.BaseOffset > MaxOffset:
		return fmt.Errorf("%w: base offset %d", ErrNotBatch, h.BaseOffset)
	}
	return nil
}

// MaxOffset bounds every offset; it keeps base + count, and sums of it, far from
// overflow.
const MaxOffset = 1 << 62

// Cut takes the batch at the start of b and returns what follows it, without a
// look at the checksums: for bytes that were verified before, such as those that
// a partition log returns. Errors: ErrShort, ErrNotBatch.
func Cut(b []byte) (h Header, batch, rest []byte, err error) {
	if h, err = ParseHeader(b); err != nil {
		return Header{}, nil, nil, err
	}
	n := h.Size()
	if len(b) < n {
		return Header{}, nil, nil, fmt.Errorf("%w: %d bytes of %d", ErrShort, len(b), n)
	}
	return h, b[:n:n], b[n:], nil
}

// Split parses and verifies the batch at the start of b and returns what
// follows it. Errors as ParseHeader and Verify.
func Split(b []byte) (h Header, batch, rest []byte, err error) {
	if h, batch, rest, err = Cut(b); err != nil {
		return Header{}, nil, nil, err
	}
	if err := checkSums(batch); err != nil {
		return Header{}, nil, nil, err
	}
	return h, batch, rest, nil
}

// Verify tells whether b is exactly one intact batch: structure, length and
// both checksums. It does not look into a compressed body. Errors: ErrShort,
// ErrNotBatch, ErrDamaged.
func Verify(b []byte) error {
	_, _, rest, err := Split(b)
	if err == nil && len(rest) > 0 {
		return fmt.Errorf("%w: %d bytes behind it", ErrDamaged, len(rest))
	}
	return err
}

func checkSums(b []byte) error {
	if sum := bodySum(b); sum != binary.BigEndian.Uint32(b[atCRC:]) {
		return fmt.Errorf("%w: checksum of the body", ErrDamaged)
	}
	return VerifyPlacement(b)
}

func bodySum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:atCRC], castagnoli), castagnoli, b[HeaderSize:])
}

// Place sets what the leader decides, in place: offset of the first record,
// leader epoch, commit time. The immutable part and its checksum stay. b must
// begin with a header that was parsed.
func Place(b []byte, base int64, epoch topic.Epoch, commitMS int64) {
	binary.BigEndian.PutUint64(b[atBase:], uint64(base))
	binary.BigEndian.PutUint32(b[atEpoch:], uint32(epoch))
	binary.BigEndian.PutUint64(b[atCommitMS:], uint64(commitMS))
	binary.BigEndian.PutUint32(b[atPlaceCRC:], crc32.Checksum(b[atCRC:atPlaceCRC], castagnoli))
}

// putHeader writes h over the first HeaderSize bytes of b, a batch whose body
// is in place, with both checksums.
func putHeader(b []byte, h *Header) {
	copy(b, Magic)
	b[atVersion] = batchVersion
	b[atCodec] = byte(h.Codec)
	b[atFlags] = 0
	if h.Control {
		b[atFlags] = flagControl
	}
	b[atKind] = byte(h.Stream.Kind)
	binary.BigEndian.PutUint32(b[atBodyLen:], uint32(len(b)-HeaderSize))
	binary.BigEndian.PutUint32(b[atRawLen:], uint32(h.RawLen))
	binary.BigEndian.PutUint32(b[atCount:], uint32(h.Count))
	binary.BigEndian.PutUint64(b[atStreamID:], uint64(h.Stream.ID))
	binary.BigEndian.PutUint32(b[atStreamA:], h.Stream.A)
	binary.BigEndian.PutUint32(b[atStreamB:], h.Stream.B)
	binary.BigEndian.PutUint32(b[atNumEpoch:], h.NumEpoch)
	binary.BigEndian.PutUint64(b[atFirst:], h.FirstSeq)
	binary.BigEndian.PutUint64(b[atLast:], h.LastSeq)
	binary.BigEndian.PutUint64(b[atOldestID:], uint64(h.Oldest.ID))
	binary.BigEndian.PutUint64(b[atOldestSeq:], h.Oldest.Seq)
	binary.BigEndian.PutUint32(b[atCRC:], bodySum(b))
	Place(b, Unplaced, 0, 0)
}

// VerifyPlacement checks the checksum of the placement alone, which needs only
// the first HeaderSize bytes of b: a cheap first judgement of bytes that may be
// a batch. Errors: ErrShort, ErrDamaged.
func VerifyPlacement(b []byte) error {
	if len(b) < HeaderSize {
		return fmt.Errorf("%w: %d bytes of a header", ErrShort, len(b))
	}
	if crc32.Checksum(b[atCRC:atPlaceCRC], castagnoli) != binary.BigEndian.Uint32(b[atPlaceCRC:]) {
		return fmt.Errorf("%w: checksum of the placement", ErrDamaged)
	}
	return nil
}
