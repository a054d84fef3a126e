package record

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"github.com/klauspost/compress/zstd"

	"github.com/narad-mq/narad/libs/topic"
)

const (
	// minCompress: less than a block of the disk costs a block all the same. And a
	// compressor whose tables have left the processor's caches, as they have when a
	// batch comes every millisecond, takes some 60 µs for 2 KiB (10 in a loop of its
	// own): a twentieth of all that a gateway does for ten messages.
	minCompress = 4 << 10
	// sampleAbove, sampleSize: a large body is judged by a piece first, so that
	// images and encrypted data do not cost a whole compression for nothing.
	sampleAbove = 64 << 10
	sampleSize  = 16 << 10
	// gainShift: compression must save at least 1/16, else readers would pay
	// for decompression that saved nothing.
	gainShift = 4
	// keepBuffer bounds what an idle Builder or Decoder holds on to.
	keepBuffer = 1 << 20
)

// Builder makes batches, one after another, in buffers that it reuses. The zero
// value is ready for Reset. Not safe for concurrent use; keep one per worker or
// in a pool (its compressor holds some megabytes once used).
type Builder struct {
	h     Header
	raw   []byte // header space, then the uncompressed body
	store []byte // header space, then the compressed body
	enc   *zstd.Encoder
}

// Reset begins an empty batch of one stream. Every record has numEpoch as
// Number.Epoch.
func (b *Builder) Reset(s Stream, numEpoch uint32, oldest Oldest) {
	b.h = Header{Stream: s, NumEpoch: numEpoch, Oldest: oldest}
	b.raw = emptied(b.raw)
	b.store = emptied(b.store)
}

// emptied is a buffer that holds nothing but room for a header.
func emptied(b []byte) []byte {
	if cap(b) < HeaderSize || cap(b) > keepBuffer {
		b = make([]byte, HeaderSize, 4<<10)
	}
	return b[:HeaderSize]
}

// Add appends one record: its sequence and its encoded message, which is
// copied. Errors, which leave the batch as it was: ErrFull when it must go into
// another batch, ErrOrder when seq is not above the last one, ErrBody for a
// length that no message has.
func (b *Builder) Add(seq uint64, body []byte) error {
	if len(body) < 2 || len(body) > MaxBody {
		return fmt.Errorf("%w: %d bytes", ErrBody, len(body))
	}
	delta := uint64(0)
	if b.h.Count > 0 {
		if seq <= b.h.LastSeq {
			return fmt.Errorf("%w: %d after %d", ErrOrder, seq, b.h.LastSeq)
		}
		delta = seq - b.h.LastSeq
	}
	if b.h.Count == MaxRecords || b.Size()+uvarintLen(delta)+uvarintLen(uint64(len(body)))+len(body) > MaxRaw {
		return ErrFull
	}
	if b.h.Count == 0 {
		b.h.FirstSeq = seq
	}
	b.h.LastSeq = seq
	b.h.Count++
	b.raw = binary.AppendUvarint(b.raw, delta)
	b.raw = binary.AppendUvarint(b.raw, uint64(len(body)))
	b.raw = append(b.raw, body...)
	return nil
}

func uvarintLen(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// Count is the number of records added.
func (b *Builder) Count() int { return b.h.Count }

// Size is the uncompressed length of the records added, in bytes.
func (b *Builder) Size() int { return len(b.raw) - HeaderSize }

// Finish returns the batch, unplaced, valid until the next Reset. With CodecZstd
// it compresses only when that pays. A batch without records is a caller's bug
// and returns nil.
func (b *Builder) Finish(c Codec) []byte {
	if b.h.Count == 0 {
		return nil
	}
	b.h.RawLen = b.Size()
	b.h.Codec = CodecNone
	out := b.raw
	if c == CodecZstd && b.compress() {
		b.h.Codec = CodecZstd
		out = b.store
	}
	putHeader(out, &b.h)
	return out
}

// compress fills b.store and tells whether that is worth storing.
func (b *Builder) compress() bool {
	body := b.raw[HeaderSize:]
	if len(body) < minCompress {
		return false
	}
	if b.enc == nil {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
			zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithWindowSize(encoderWindow))
		if err != nil {
			return false // the options are constants: TestCompression would not pass
		}
		b.enc = enc
	}
	if len(body) > sampleAbove {
		mid := len(body) / 2
		b.store = b.enc.EncodeAll(body[mid:mid+sampleSize], b.store[:HeaderSize])
		if !pays(len(b.store)-HeaderSize, sampleSize) {
			return false
		}
	}
	b.store = b.enc.EncodeAll(body, b.store[:HeaderSize])
	return pays(len(b.store)-HeaderSize, len(body))
}

// encoderWindow bounds the memory of one compressor; messages of one batch
// resemble their neighbours, not those megabytes away.
const encoderWindow = 1 << 20

func pays(stored, raw int) bool { return stored <= raw-raw>>gainShift }

// ControlLeaderChange is the kind of the control batch that begins an epoch.
const ControlLeaderChange = 1

// AppendLeaderChange appends the control batch with which a leader begins its
// epoch, unplaced. It takes one offset and is never delivered.
func AppendLeaderChange(dst []byte, epoch topic.Epoch) []byte {
	at := len(dst)
	var head [HeaderSize]byte
	dst = append(dst, head[:]...)
	dst = append(dst, ControlLeaderChange)
	dst = binary.BigEndian.AppendUint32(dst, uint32(epoch))
	b := dst[at:]
	putHeader(b, &Header{Control: true, RawLen: len(b) - HeaderSize, Count: 1})
	return dst
}
