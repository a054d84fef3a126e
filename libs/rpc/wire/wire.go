// Package wire has the primitives of the binary bodies of node RPC: appending
// is encoding/binary, reading is a Reader that checks every bound once.
//
// All fixed integers are big-endian; counts, lengths and small non-negative
// numbers are unsigned varints (LEB128, as encoding/binary), signed ones
// zigzag varints. Invariant: a Reader never returns a count that the remaining
// bytes could not hold, so that no allocation is larger than a small multiple
// of the body that asked for it. Fuzz tests of the codecs that use it explain it.
package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// ErrMalformed is below every refusal of a body.
var ErrMalformed = errors.New("malformed body")

// AppendString appends a length and the bytes of s.
func AppendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// AppendBytes appends a length and v.
func AppendBytes(b, v []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(v)))
	return append(b, v...)
}

// Reader takes a body apart. After the first failure it returns zeros; Done
// tells. The zero value reads an empty body.
type Reader struct {
	b   []byte
	bad bool
}

// NewReader reads b, which must not change while anything that Bytes returned is in use.
func NewReader(b []byte) Reader { return Reader{b: b} }

// Done returns nil when everything was read and nothing failed.
func (r *Reader) Done() error {
	if r.bad || len(r.b) > 0 {
		return ErrMalformed
	}
	return nil
}

// Bad tells whether something failed already: for loops that want to stop early.
func (r *Reader) Bad() bool { return r.bad }

// Fail makes the body malformed, for a bound that only the codec knows.
func (r *Reader) Fail() { r.bad, r.b = true, nil }

func (r *Reader) take(n int) []byte {
	if n > len(r.b) {
		r.Fail()
		return nil
	}
	out := r.b[:n:n]
	r.b = r.b[n:]
	return out
}

// U8 reads one byte.
func (r *Reader) U8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

// U32 reads four bytes.
func (r *Reader) U32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

// U64 reads eight bytes.
func (r *Reader) U64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Uvarint reads an unsigned varint of at most limit.
func (r *Reader) Uvarint(limit uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > limit {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Varint reads a zigzag varint.
func (r *Reader) Varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.Fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// Int reads an unsigned varint of at most 31 bits.
func (r *Reader) Int() int { return int(r.Uvarint(math.MaxInt32)) }

// Int64 reads an unsigned varint of at most 63 bits.
func (r *Reader) Int64() int64 { return int64(r.Uvarint(math.MaxInt64)) }

// Count reads how many things follow: at most limit, and at most as many as
// the rest can hold when each takes at least size bytes (size >= 1).
func (r *Reader) Count(limit, size int) int {
	n := r.Uvarint(uint64(limit))
	if n > uint64(len(r.b)/size) {
		r.Fail()
		return 0
	}
	return int(n)
}

// Bytes reads a length of at most limit and returns a view of so many bytes.
func (r *Reader) Bytes(limit int) []byte { return r.take(int(r.Uvarint(uint64(limit)))) }

// String reads what AppendString wrote, of at most limit bytes.
func (r *Reader) String(limit int) string { return string(r.Bytes(limit)) }

// Raw reads exactly n bytes as a view.
func (r *Reader) Raw(n int) []byte { return r.take(n) }

// Rest returns everything that is left as a view.
func (r *Reader) Rest() []byte {
	out := r.b
	r.b = nil
	return out
}
