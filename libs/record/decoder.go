package record

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Record is one record of a batch, as Decoder yields it.
type Record struct {
	Offset int64  // Unplaced plus index until the batch is placed
	Number Number // in the batch's stream
	Body   []byte // encoded message (ParseBody); aliases the batch or the decoder
}

// Decoder reads the records of batches, one batch after another, in a buffer
// that it reuses. The zero value is ready. Not safe for concurrent use.
type Decoder struct {
	h    Header
	rest []byte // records not yet read
	left int    // how many
	seq  uint64
	err  error
	dec  *zstd.Decoder
	raw  []byte
}

// Reset begins to read the batch at the start of b, which must hold all of it
// and should be verified. A control batch has no records to read. Errors:
// ErrShort, ErrNotBatch, ErrDamaged. What earlier records of this decoder
// aliased is overwritten.
func (d *Decoder) Reset(b []byte) error {
	d.rest, d.left, d.err = nil, 0, nil
	h, err := ParseHeader(b)
	if err != nil {
		return err
	}
	if len(b) < h.Size() {
		return fmt.Errorf("%w: %d bytes of %d", ErrShort, len(b), h.Size())
	}
	d.h, d.seq = h, h.FirstSeq
	if h.Control {
		return nil
	}
	body := b[HeaderSize:h.Size()]
	if h.Codec == CodecZstd {
		if body, err = d.expand(body); err != nil {
			return err
		}
	}
	d.rest, d.left = body, h.Count
	return nil
}

// expand decompresses into the decoder's own buffer, to exactly RawLen bytes.
func (d *Decoder) expand(body []byte) ([]byte, error) {
	if d.dec == nil {
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxMemory(MaxRaw), zstd.WithDecoderMaxWindow(MaxRaw))
		if err != nil {
			return nil, fmt.Errorf("make a zstd decoder: %w", err)
		}
		d.dec = dec
	}
	// A frame that claims another size than the header is refused before a
	// byte of it is expanded.
	var zh zstd.Header
	if err := zh.Decode(body); err != nil || !zh.HasFCS || zh.FrameContentSize != uint64(d.h.RawLen) {
		return nil, fmt.Errorf("%w: zstd frame of another size", ErrDamaged)
	}
	if cap(d.raw) > keepBuffer && d.h.RawLen <= keepBuffer {
		d.raw = nil
	}
	if cap(d.raw) < d.h.RawLen {
		d.raw = make([]byte, 0, d.h.RawLen)
	}
	out, err := d.dec.DecodeAll(body, d.raw[:0])
	if err != nil || len(out) != d.h.RawLen {
		return nil, fmt.Errorf("%w: zstd body of %d bytes, not %d: %v", ErrDamaged, len(out), d.h.RawLen, err)
	}
	d.raw = out[:0]
	return out, nil
}

// Header is the header of the batch being read.
func (d *Decoder) Header() *Header { return &d.h }

// Next returns the next record; false at the end or on damage, which Err tells
// apart.
func (d *Decoder) Next() (Record, bool) {
	if d.left == 0 {
		if d.err == nil && len(d.rest) > 0 {
			d.fail("bytes behind the last record")
		}
		return Record{}, false
	}
	index := d.h.Count - d.left
	delta, n := uvarint(d.rest)
	size, k := uvarint(d.rest[n:])
	if n == 0 || k == 0 || size < 2 || size > MaxBody || uint64(len(d.rest)-n-k) < size {
		return d.fail("record length")
	}
	if (delta == 0) != (index == 0) || d.seq+delta < d.seq {
		return d.fail("sequence")
	}
	d.seq += delta
	if d.left == 1 && d.seq != d.h.LastSeq || d.seq > d.h.LastSeq {
		return d.fail("sequence of the last record")
	}
	end := n + k + int(size)
	body := d.rest[n+k : end : end]
	d.rest = d.rest[end:]
	d.left--
	return Record{Offset: d.h.BaseOffset + int64(index), Number: Number{d.h.NumEpoch, d.seq}, Body: body}, true
}

func (d *Decoder) fail(what string) (Record, bool) {
	d.err = fmt.Errorf("%w: %s of record %d of %d", ErrDamaged, what, d.h.Count-d.left, d.h.Count)
	d.left, d.rest = 0, nil
	return Record{}, false
}

// Err is nil after the last record of a batch was read, and else the
// ErrDamaged that ended it.
func (d *Decoder) Err() error { return d.err }

// uvarint reads a minimal uvarint; n is 0 when there is none.
func uvarint(b []byte) (v uint64, n int) {
	v, n = binary.Uvarint(b)
	if n <= 0 || n > 1 && b[n-1] == 0 {
		return 0, 0
	}
	return v, n
}

// DropUntil returns what of batch comes after the number have: nil when nothing
// does, batch itself when all does, else a batch of the rest, made in bld and
// valid until its next Reset. The result is unplaced unless it is batch itself.
// dropped is how many records are left out. Errors as Decoder.
func DropUntil(batch []byte, have Number, d *Decoder, bld *Builder, c Codec) (rest []byte, dropped int, err error) {
	h, err := ParseHeader(batch)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case h.Control || have.Less(h.First()):
		return batch, 0, nil
	case !have.Less(h.Last()):
		return nil, h.Count, nil
	}
	if err := d.Reset(batch); err != nil {
		return nil, 0, err
	}
	bld.Reset(h.Stream, h.NumEpoch, h.Oldest)
	for r, ok := d.Next(); ok; r, ok = d.Next() {
		if !have.Less(r.Number) {
			dropped++
			continue
		}
		if err := bld.Add(r.Number.Seq, r.Body); err != nil {
			return nil, 0, fmt.Errorf("keep record %d: %w", r.Number.Seq, err)
		}
	}
	if err := d.Err(); err != nil {
		return nil, 0, err
	}
	return bld.Finish(c), dropped, nil
}
