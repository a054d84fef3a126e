package wire

import (
	"encoding/binary"
	"math"
	"testing"
)

func TestReaderKeepsItsBounds(t *testing.T) {
	three := binary.AppendUvarint(nil, 3)
	for name, read := range map[string]func() (bad bool){
		"a count that the rest cannot hold": func() bool {
			r := NewReader(append(three, 1, 2, 3, 4, 5))
			return r.Count(10, 2) == 0 && r.Bad()
		},
		"a count above its limit": func() bool {
			r := NewReader(append(three, 1, 2, 3))
			return r.Count(2, 1) == 0 && r.Bad()
		},
		"bytes above their limit": func() bool {
			r := NewReader(append(three, 1, 2, 3))
			return r.Bytes(2) == nil && r.Bad()
		},
		"bytes past the end": func() bool {
			r := NewReader(append(three, 1, 2))
			return r.Bytes(10) == nil && r.Bad()
		},
		"a number above 63 bits": func() bool {
			r := NewReader(binary.AppendUvarint(nil, math.MaxInt64+1))
			return r.Int64() == 0 && r.Bad()
		},
		"an endless varint": func() bool {
			r := NewReader([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1})
			return r.Varint() == 0 && r.Bad()
		},
		"something left": func() bool {
			r := NewReader([]byte{1, 2})
			return r.U8() == 1 && r.Done() != nil
		},
		"after a failure": func() bool {
			r := NewReader([]byte{1, 2, 3, 4, 5, 6, 7, 8})
			r.Raw(9)
			return r.U8() == 0 && r.U32() == 0 && r.U64() == 0 && r.Int() == 0 && len(r.Rest()) == 0 && r.Done() != nil
		},
	} {
		if !read() {
			t.Errorf("%s was read", name)
		}
	}
	r := NewReader(append(three, 1, 2, 3))
	if n := r.Count(3, 1); n != 3 || len(r.Raw(3)) != 3 || r.Done() != nil {
		t.Errorf("a body at its bounds was refused (count %d)", n)
	}
}
