package record

import (
	"bytes"
	"testing"
)

func FuzzParseBody(f *testing.F) {
	f.Add(AppendBody(nil, &sample))
	f.Add([]byte{0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseBody(b)
		if err != nil {
			return
		}
		m := v.Message()
		if err := CheckMessage(m); err != nil {
			t.Fatalf("parsed what must not be encoded: %v", err)
		}
		if got := AppendBody(nil, m); !bytes.Equal(got, b) {
			t.Fatalf("two encodings of one message: %x and %x", got, b)
		}
	})
}

// FuzzDecoder reads bytes whose checksums were not looked at: the worst that a
// caller can do.
func FuzzDecoder(f *testing.F) {
	f.Add(build(f, CodecNone, 3, []byte{0, 'a'}, []byte{0, 'b'}))
	f.Add(build(f, CodecZstd, 3, text(100)))
	f.Add(AppendLeaderChange(nil, 7))
	var d Decoder
	f.Fuzz(func(t *testing.T, b []byte) {
		if Verify(b) == nil && d.Reset(b) != nil && d.Header().Codec == CodecNone {
			t.Fatal("verified and refused")
		}
		if d.Reset(b) != nil {
			return
		}
		n, last := 0, Number{}
		for r, ok := d.Next(); ok; r, ok = d.Next() {
			if n > 0 && !last.Less(r.Number) {
				t.Fatal("numbers do not grow")
			}
			n, last = n+1, r.Number
		}
		if h := d.Header(); d.Err() == nil && !h.Control && (n != h.Count || last != h.Last()) {
			t.Fatalf("%d records to %+v, header says %+v", n, last, h)
		}
	})
}
