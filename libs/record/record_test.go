package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/narad-mq/narad/libs/topic"
)

var sample = Message{
	Key: []byte("k1"), ContentType: "text/plain",
	Attrs: []Attr{{"trace", "a1"}, {"x", ""}}, Payload: []byte("hi"),
}

func TestBodyGolden(t *testing.T) {
	want := "07" + "0002" + hex.EncodeToString([]byte("k1")) + "000a" + hex.EncodeToString([]byte("text/plain")) +
		"02" + "05" + hex.EncodeToString([]byte("trace")) + "0002" + "6131" + "01" + "78" + "0000" + "6869"
	got := AppendBody(nil, &sample)
	if hex.EncodeToString(got) != want {
		t.Fatalf("body\n got %x\nwant %s", got, want)
	}
	if BodySize(&sample) != len(got) {
		t.Errorf("BodySize = %d, body has %d bytes", BodySize(&sample), len(got))
	}
	if got := AppendBody(nil, &Message{Payload: []byte{0xff}}); hex.EncodeToString(got) != "00ff" {
		t.Errorf("smallest body = %x", got)
	}
}

func TestBodyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := Message{Payload: rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "payload")}
		if k := rapid.SliceOfN(rapid.Byte(), 0, MaxKey).Draw(t, "key"); len(k) > 0 {
			m.Key = k
		}
		m.ContentType = rapid.StringN(0, 60, MaxContentType).Draw(t, "type")
		for i, v := range rapid.SliceOfN(rapid.StringN(0, 40, 200), 0, MaxAttrs).Draw(t, "attrs") {
			m.Attrs = append(m.Attrs, Attr{string(rune('a' + i)), v})
		}
		if err := CheckMessage(&m); err != nil {
			t.Fatal(err)
		}
		v, err := ParseBody(AppendBody([]byte("before"), &m)[6:])
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Message(); !reflect.DeepEqual(*got, m) {
			t.Fatalf("got %+v, want %+v", got, m)
		}
	})
}

func TestBodyRefusals(t *testing.T) {
	many := make([]Attr, MaxAttrs+1)
	for i := range many {
		many[i] = Attr{string(rune('a' + i)), ""}
	}
	p := []byte("p")
	for name, m := range map[string]Message{
		"empty payload":     {},
		"long payload":      {Payload: make([]byte, MaxPayload+1)},
		"long key":          {Key: make([]byte, MaxKey+1), Payload: p},
		"long content type": {ContentType: strings.Repeat("x", MaxContentType+1), Payload: p},
		"too many attrs":    {Attrs: many, Payload: p},
		"long name":         {Attrs: []Attr{{strings.Repeat("n", MaxAttrName+1), ""}}, Payload: p},
		"no name":           {Attrs: []Attr{{"", "v"}}, Payload: p},
		"long value":        {Attrs: []Attr{{"a", strings.Repeat("v", MaxAttrValue+1)}}, Payload: p},
		"same name":         {Attrs: []Attr{{"a", ""}, {"a", ""}}, Payload: p},
		"descending":        {Attrs: []Attr{{"b", ""}, {"a", ""}}, Payload: p},
		"attrs together": {Attrs: []Attr{
			{"a", strings.Repeat("v", 1024)},
			{"b", strings.Repeat("v", 1024)},
			{"c", strings.Repeat("v", 1024)},
			{"d", strings.Repeat("v", 1022)},
		}, Payload: p},
	} {
		if err := CheckMessage(&m); !errors.Is(err, ErrBody) {
			t.Errorf("%s: CheckMessage = %v", name, err)
		}
		if _, err := ParseBody(AppendBody(nil, &m)); !errors.Is(err, ErrBody) {
			t.Errorf("%s: ParseBody = %v", name, err)
		}
	}
	good := AppendBody(nil, &sample)
	for cut := range len(good) - 1 {
		if _, err := ParseBody(good[:cut]); !errors.Is(err, ErrBody) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

var stream = Stream{Kind: StreamWAL, ID: 0x3f9a17c4e2b08d51, A: 2, B: 7}

func build(t testing.TB, c Codec, first uint64, bodies ...[]byte) []byte {
	t.Helper()
	var b Builder
	b.Reset(stream, 0, Oldest{ID: 0x11, Seq: 0x22})
	for i, body := range bodies {
		if err := b.Add(first+uint64(i)*2, body); err != nil {
			t.Fatal(err)
		}
	}
	return b.Finish(c)
}

func text(n int) []byte {
	return AppendBody(nil, &Message{Payload: bytes.Repeat([]byte("the same words "), n)})
}

func TestBatchGolden(t *testing.T) {
	b := build(t, CodecNone, 1000, []byte{0, 'a'}, []byte{0, 'b', 'c'})
	const immutable = "4e524231" + "01" + "00" + "00" + "01" + "00000009" + "00000009" + "00000002" +
		"3f9a17c4e2b08d51" + "00000002" + "00000007" + "00000000" + "00000000000003e8" + "00000000000003ea" +
		"0000000000000011" + "0000000000000022" + "670b4bc2"
	const body = "00020061" + "0203006263"
	unplaced := immutable + "ffffffffffffffff" + "00000000" + "0000000000000000" + "fc1c8c67" + body
	if got := hex.EncodeToString(b); got != unplaced {
		t.Errorf("unplaced\n got %s\nwant %s", got, unplaced)
	}
	Place(b, 0x0102030405060708, 9, 0x19a0000000a)
	placed := immutable + "0102030405060708" + "00000009" + "0000019a0000000a" + "ffa9ee61" + body
	if got := hex.EncodeToString(b); got != placed {
		t.Errorf("placed\n got %s\nwant %s", got, placed)
	}
	change := "4e524231" + "01" + "00" + "01" + "00" + "00000005" + "00000005" + "00000001" + strings.Repeat("00", 52) +
		"fe2a30c1" + "ffffffffffffffff" + "00000000" + "0000000000000000" + "ef126e5d" + "01" + "00000007"
	if got := hex.EncodeToString(AppendLeaderChange(nil, 7)); got != change {
		t.Errorf("leader change\n got %s\nwant %s", got, change)
	}
}

func TestPlaceKeepsTheRest(t *testing.T) {
	b := build(t, CodecZstd, 5, text(100), text(200))
	before, err := ParseHeader(b)
	if err != nil || before.BaseOffset != Unplaced || before.Codec != CodecZstd {
		t.Fatalf("%+v, %v", before, err)
	}
	Place(b, 41, 3, 1234)
	if err := Verify(b); err != nil {
		t.Fatal(err)
	}
	after, err := ParseHeader(b)
	if err != nil || after.BaseOffset != 41 || after.LeaderEpoch != 3 || after.CommitMS != 1234 || after.EndOffset() != 43 {
		t.Fatalf("%+v, %v", after, err)
	}
	after.BaseOffset, after.LeaderEpoch, after.CommitMS = before.BaseOffset, before.LeaderEpoch, before.CommitMS
	if after != before {
		t.Fatalf("placing changed %+v to %+v", before, after)
	}
}

func TestEveryFlippedBitIsRefused(t *testing.T) {
	placed := build(t, CodecNone, 1000, []byte{0, 'a'}, []byte{0, 'b', 'c'})
	Place(placed, 41, 3, 1234)
	for name, b := range map[string][]byte{
		"unplaced": build(t, CodecNone, 3, []byte{0, 'a'}), "placed": placed,
		"zstd": build(t, CodecZstd, 3, text(100)), "control": AppendLeaderChange(nil, 7),
	} {
		if err := Verify(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for bit := range len(b) * 8 {
			c := bytes.Clone(b)
			c[bit/8] ^= 1 << (bit % 8)
			if Verify(c) == nil {
				t.Errorf("%s: bit %d flipped and not refused", name, bit)
			}
		}
		for cut := range len(b) {
			if err := Verify(b[:cut]); !errors.Is(err, ErrShort) {
				t.Errorf("%s: cut at %d: %v", name, cut, err)
			}
		}
		if err := Verify(append(bytes.Clone(b), 0)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: a byte behind it: %v", name, err)
		}
	}
}

func TestDecoderReadsWhatBuilderWrote(t *testing.T) {
	var d Decoder
	var bld Builder
	rapid.Check(t, func(t *rapid.T) {
		codec := Codec(rapid.IntRange(0, 1).Draw(t, "codec"))
		bodies := rapid.SliceOfN(rapid.SliceOfN(rapid.ByteRange(0, 3), 2, 400), 1, 40).Draw(t, "bodies")
		seq := rapid.Uint64Range(0, 1<<40).Draw(t, "first")
		epoch := rapid.Uint32().Draw(t, "epoch")
		bld.Reset(stream, epoch, Oldest{})
		var want []Record
		for i, body := range bodies {
			if err := bld.Add(seq, body); err != nil {
				t.Fatal(err)
			}
			want = append(want, Record{int64(100 + i), Number{epoch, seq}, body})
			seq += rapid.Uint64Range(1, 1000).Draw(t, "step")
		}
		b := bld.Finish(codec)
		Place(b, 100, 1, 1)
		if err := Verify(b); err != nil {
			t.Fatal(err)
		}
		if err := d.Reset(b); err != nil {
			t.Fatal(err)
		}
		var got []Record
		for r, ok := d.Next(); ok; r, ok = d.Next() {
			got = append(got, r)
		}
		if d.Err() != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%v: got %+v, want %+v", d.Err(), got, want)
		}
	})
}

func TestCompressionOnlyWhenItPays(t *testing.T) {
	noise := make([]byte, 200_000)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise)
	for name, c := range map[string]struct {
		body []byte
		want Codec
	}{
		"tiny": {text(3), CodecNone}, "less than a block": {text(100), CodecNone}, "text": {text(1000), CodecZstd}, "large text": {text(100_000), CodecZstd},
		"noise": {AppendBody(nil, &Message{Payload: noise}), CodecNone}, "small noise": {AppendBody(nil, &Message{Payload: noise[:5000]}), CodecNone},
	} {
		b := build(t, CodecZstd, 1, c.body)
		h, err := ParseHeader(b)
		if err != nil || h.Codec != c.want {
			t.Errorf("%s: codec %d, %v", name, h.Codec, err)
		}
		var d Decoder
		if err := d.Reset(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, ok := d.Next(); !ok || !bytes.Equal(got.Body, c.body) {
			t.Errorf("%s: other bytes came back (%v)", name, d.Err())
		}
	}
}

func TestBuilderLimits(t *testing.T) {
	var b Builder
	b.Reset(stream, 0, Oldest{})
	if b.Finish(CodecNone) != nil {
		t.Error("a batch without records was made")
	}
	if err := b.Add(5, []byte{0}); !errors.Is(err, ErrBody) {
		t.Errorf("one byte: %v", err)
	}
	big := make([]byte, MaxBody)
	for i := range uint64(3) {
		if err := b.Add(i, big); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(2, []byte{0, 1}); !errors.Is(err, ErrOrder) {
		t.Errorf("same sequence: %v", err)
	}
	if err := b.Add(3, big); !errors.Is(err, ErrFull) {
		t.Errorf("above MaxRaw: %v", err)
	}
	fill := MaxRaw - b.Size() - 1 - 4
	if err := b.Add(3, big[:fill]); err != nil {
		t.Errorf("filling to the byte: %v", err)
	}
	full := b.Finish(CodecZstd)
	if b.Size() != MaxRaw || Verify(full) != nil {
		t.Errorf("full batch: %d bytes raw, %v", b.Size(), Verify(full))
	}
	var d Decoder
	n := 0
	if err := d.Reset(full); err != nil {
		t.Fatal(err)
	}
	for _, ok := d.Next(); ok; _, ok = d.Next() {
		n++
	}
	if n != 4 || d.Err() != nil {
		t.Errorf("%d records of a full batch, %v", n, d.Err())
	}
	b.Reset(stream, 0, Oldest{})
	for i := range uint64(MaxRecords) {
		if err := b.Add(i, []byte{0, 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(MaxRecords, []byte{0, 1}); !errors.Is(err, ErrFull) {
		t.Errorf("above MaxRecords: %v", err)
	}
}

func TestDropUntil(t *testing.T) {
	var d Decoder
	var bld Builder
	b := build(t, CodecNone, 10, []byte{0, 'a'}, []byte{0, 'b'}, []byte{0, 'c'}) // 10, 12, 14
	for _, c := range []struct {
		have    Number
		keep    string
		dropped int
	}{
		{Number{0, 9}, "abc", 0},
		{Number{0, 10}, "bc", 1},
		{Number{0, 11}, "bc", 1},
		{Number{0, 13}, "c", 2},
		{Number{0, 14}, "", 3},
		{Number{1, 0}, "", 3},
	} {
		rest, dropped, err := DropUntil(b, c.have, &d, &bld, CodecZstd)
		if err != nil || dropped != c.dropped {
			t.Fatalf("%+v: %d, %v", c.have, dropped, err)
		}
		if rest == nil {
			if c.keep != "" {
				t.Errorf("%+v: nothing left", c.have)
			}
			continue
		}
		if err := Verify(rest); err != nil {
			t.Fatal(err)
		}
		var d2 Decoder
		if err := d2.Reset(rest); err != nil {
			t.Fatal(err)
		}
		got, last := "", uint64(0)
		for r, ok := d2.Next(); ok; r, ok = d2.Next() {
			got += string(r.Body[1:])
			last = r.Number.Seq
		}
		h := d2.Header()
		if got != c.keep || last != 14 || h.Stream != stream || h.Oldest != (Oldest{0x11, 0x22}) {
			t.Errorf("%+v: kept %q up to %d, header %+v", c.have, got, last, h)
		}
	}
	change := AppendLeaderChange(nil, 3)
	if rest, n, err := DropUntil(change, Number{9, 9}, &d, &bld, CodecNone); n != 0 || err != nil || !bytes.Equal(rest, change) {
		t.Errorf("a control batch was dropped: %d, %v", n, err)
	}
}

func TestBuilderAndDecoderDoNotAllocatePerRecord(t *testing.T) {
	var b Builder
	var d Decoder
	body := text(10)
	run := func() {
		b.Reset(stream, 0, Oldest{})
		for i := range uint64(500) {
			if err := b.Add(i, body); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Reset(b.Finish(CodecZstd)); err != nil {
			t.Fatal(err)
		}
		for r, ok := d.Next(); ok; r, ok = d.Next() {
			if _, err := ParseBody(r.Body); err != nil {
				t.Fatal(err)
			}
		}
	}
	run()
	if n := testing.AllocsPerRun(20, run); n > 10 {
		t.Errorf("%v allocations for a batch of 500", n)
	}
}

func TestMessageIDIsAFunctionOfStreamAndNumber(t *testing.T) {
	for _, c := range []struct {
		s    Stream
		n    Number
		want string
	}{
		{Stream{StreamWAL, 1, 2, 0}, Number{0, 7}, "0000000000000001-7"},
		{Stream{StreamFanout, 1, 2, 3}, Number{4, 7}, "0000000000000001-2.4-7"},
		{Stream{StreamDeadLetter, topic.ID64(1), 0, 0}, Number{0, 7}, "0000000000000001.4-7"},
		{Stream{StreamClient, topic.ID64(1), 2, 3}, Number{0, 0}, "0000000000000001.5-0"},
		{Stream{StreamOnce, topic.ID64(1), 0, 0}, Number{0, 7}, "0000000000000001.6-7"},
	} {
		if got := MessageID(c.s, c.n); got != c.want {
			t.Errorf("MessageID(%+v, %+v) = %q, want %q", c.s, c.n, got, c.want)
		}
	}
}
