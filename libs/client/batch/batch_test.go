package batch

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The golden bytes of api.md, section 8.
const (
	goldenProduce = `4e524231 01 00 0000 00000003
		00000021 001d 01 0002 6b31 02 000a 746578742f706c61696e 03 0008 05 7472616365 6131 6869
		0000000b 0007 04 0004 00000002 00ff
		00000003 0000 78`
	goldenSmallest = `4e52423101010000 00000001 00000003 0000 78 20d66177`
	goldenDelivery = `4e524231 02 01 000b 00000001 40 0008 3f9a17c4e2b08d51
		0000005b 0057 01 0002 6b31 04 0004 00000002 10 0008 0000000000000029 11 0008 000001a228e85783
		12 0015 396330663362376131316432653466352d31303432 18 0004 00000001 19 0004 00007530 1a 000c 415141414141494141414141 6869
		874f2abc`
)

func produceRecords() []Record {
	return []Record{
		{Key: []byte("k1"), ContentType: []byte("text/plain"), Attrs: []Attr{{[]byte("trace"), []byte("a1")}}, Partition: NoPartition, Payload: []byte("hi")},
		{Partition: 2, Payload: []byte{0, 0xff}},
		{Partition: NoPartition, Payload: []byte("x")},
	}
}

func deliveryBatch() *Batch {
	return &Batch{Kind: Delivery, Meta: Meta{Incarnation: 0x3f9a17c4e2b08d51}, Records: []Record{{
		Key: []byte("k1"), Partition: 2, Payload: []byte("hi"), Offset: 41, CommittedMS: 1796069045123,
		ID: []byte("9c0f3b7a11d2e4f5-1042"), DeliveryCount: 1, LeaseMS: 30000, ReceiptHandle: []byte("AQAAAAIAAAAA"),
	}}}
}

func TestGolden(t *testing.T) {
	var d Decoder
	for name, g := range map[string]struct {
		hex     string
		records []Record
		crc     bool
	}{
		"produce":  {goldenProduce, produceRecords(), false},
		"smallest": {goldenSmallest, []Record{{Partition: NoPartition, Payload: []byte("x")}}, true},
	} {
		want := unhex(t, g.hex)
		got, err := Encode(nil, &Batch{Kind: Produce, Records: g.records}, g.crc)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: encoded\n%x, %v, want\n%x", name, got, err, want)
		}
		back, err := d.DecodeProduce(want)
		if err != nil || !reflect.DeepEqual(back, g.records) {
			t.Errorf("%s: decoded %+v, %v", name, back, err)
		}
	}
	want := unhex(t, goldenDelivery)
	if len(want) != 122 {
		t.Fatalf("the golden delivery is %d bytes", len(want))
	}
	in := deliveryBatch()
	in.Records[0].CommittedMS = 0x1a228e85783
	got, err := Encode([]byte("prefix"), in, true)
	if err != nil || !bytes.Equal(got[len("prefix"):], want) {
		t.Errorf("delivery: encoded\n%x, %v, want\n%x", got, err, want)
	}
	back, err := Decode(want)
	if err != nil || !reflect.DeepEqual(back, in) {
		t.Errorf("delivery: decoded %+v, %v", back, err)
	}
}

func TestReplayRoundTrip(t *testing.T) {
	in := &Batch{Kind: Replay, Meta: Meta{Incarnation: 7, NextOffset: 43, HighWatermark: 912, LogStart: 3}}
	b, err := Encode(nil, in, true)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(b)
	if err != nil || back.Meta != in.Meta || len(back.Records) != 0 {
		t.Fatalf("empty replay: %+v, %v", back, err)
	}
	in.Records = []Record{{Partition: 0, Offset: 41, CommittedMS: 5, ID: []byte("a-1"), Payload: []byte("p")}}
	if b, err = Encode(nil, in, false); err != nil {
		t.Fatal(err)
	}
	if back, err = Decode(b); err != nil || !reflect.DeepEqual(back.Records, in.Records) {
		t.Fatalf("replay: %+v, %v", back, err)
	}
}

// record makes one record of raw fields and payload.
func record(fields, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(2+len(fields)+len(payload)))
	b = binary.BigEndian.AppendUint16(b, uint16(len(fields)))
	return string(b) + fields + payload
}

func head(kind, flags byte, meta int, count uint32) string {
	b := append([]byte("NRB1"), kind, flags, byte(meta>>8), byte(meta))
	return string(binary.BigEndian.AppendUint32(b, count))
}

func TestStrictProduce(t *testing.T) {
	good := record("", "x")
	many := head(1, 0, 0, 1001) + strings.Repeat(good, 1001)
	tests := map[string]struct {
		in    string
		index int
		err   error
	}{
		"empty":                    {"", -1, ErrMalformed},
		"short header":             {"NRB1\x01\x00\x00", -1, ErrMalformed},
		"other version":            {"NRB2" + head(1, 0, 0, 1)[4:] + good, -1, ErrMalformed},
		"kind 2":                   {head(2, 0, 0, 1) + good, -1, ErrMalformed},
		"kind 0":                   {head(0, 0, 0, 1) + good, -1, ErrMalformed},
		"unknown flag":             {head(1, 2, 0, 1) + good, -1, ErrMalformed},
		"crc flag, no crc":         {head(1, 1, 0, 1), -1, ErrMalformed},
		"crc wrong":                {head(1, 1, 0, 1) + good + "0000", -1, ErrMalformed},
		"meta":                     {head(1, 0, 11, 1) + "\x40\x00\x0812345678" + good, -1, ErrMalformed},
		"meta too long":            {head(1, 0, 99, 1) + good, -1, ErrMalformed},
		"no records":               {head(1, 0, 0, 0), -1, ErrMalformed},
		"too many":                 {many, -1, ErrTooMany},
		"count above bytes":        {head(1, 0, 0, 900) + good, -1, ErrMalformed},
		"trailing bytes":           {head(1, 0, 0, 1) + good + "y", -1, ErrMalformed},
		"second cut":               {head(1, 0, 0, 2) + record("", "xxxxxxxxxx") + "\x00\x00\x00", 1, ErrMalformed},
		"length below 3":           {head(1, 0, 0, 1) + "\x00\x00\x00\x02\x00\x00x", 0, ErrMalformed},
		"length beyond":            {head(1, 0, 0, 1) + "\x00\x00\x00\x09\x00\x00x", 0, ErrMalformed},
		"length huge":              {head(1, 0, 0, 1) + "\xff\xff\xff\xff\x00\x00x", 0, ErrMalformed},
		"fields leave no payload":  {head(1, 0, 0, 1) + record("\x01\x00\x01k", ""), 0, ErrMalformed},
		"field cut":                {head(1, 0, 0, 1) + record("\x01\x00\x05k", "x"), 0, ErrMalformed},
		"field header cut":         {head(1, 0, 0, 1) + record("\x01\x00", "x"), 0, ErrMalformed},
		"key twice":                {head(1, 0, 0, 1) + record("\x01\x00\x01k\x01\x00\x01k", "x"), 0, ErrMalformed},
		"descending":               {head(1, 0, 0, 1) + record("\x02\x00\x01a\x01\x00\x01k", "x"), 0, ErrMalformed},
		"attributes equal":         {head(1, 0, 0, 1) + record("\x03\x00\x02\x01a\x03\x00\x02\x01a", "x"), 0, ErrMalformed},
		"attributes descending":    {head(1, 0, 0, 1) + record("\x03\x00\x02\x01b\x03\x00\x02\x01a", "x"), 0, ErrMalformed},
		"attribute without name":   {head(1, 0, 0, 1) + record("\x03\x00\x02\x00a", "x"), 0, ErrMalformed},
		"attribute name too long":  {head(1, 0, 0, 1) + record("\x03\x00\x02\x02a", "x"), 0, ErrMalformed},
		"empty key":                {head(1, 0, 0, 1) + record("\x01\x00\x00", "x"), 0, ErrMalformed},
		"partition of 3 bytes":     {head(1, 0, 0, 1) + record("\x04\x00\x03abc", "x"), 0, ErrMalformed},
		"offset in a produce":      {head(1, 0, 0, 1) + record("\x10\x00\x0812345678", "x"), 0, ErrMalformed},
		"tag 0":                    {head(1, 0, 0, 1) + record("\x00\x00\x01a", "x"), 0, ErrMalformed},
		"unknown tag":              {head(1, 0, 0, 1) + record("\x30\x00\x01a", "x"), 0, ErrMalformed},
		"third of three is broken": {head(1, 0, 0, 3) + good + good + record("\x30\x00\x01a", "x"), 2, ErrMalformed},
	}
	var d Decoder
	for name, tt := range tests {
		_, err := d.DecodeProduce([]byte(tt.in))
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, tt.err) || e.Index != tt.index || e.Reason == "" {
			t.Errorf("%s: %v (%+v), want %v at %d", name, err, e, tt.err, tt.index)
		}
	}
	if rs, err := d.DecodeProduce([]byte(head(1, 0, 0, 1000) + strings.Repeat(good, 1000))); err != nil || len(rs) != 1000 {
		t.Errorf("1000 records: %d, %v", len(rs), err)
	}
}

func TestReaderSkipsUnknownTags(t *testing.T) {
	fields := "\x04\x00\x04\x00\x00\x00\x02" + "\x05\x00\x01?" + "\x10\x00\x08\x00\x00\x00\x00\x00\x00\x00\x29" +
		"\x12\x00\x01i" + "\x1a\x00\x01r" + "\x1b\x00\x02??" + "\x77\x00\x00"
	meta := "\x01\x00\x01?" + "\x40\x00\x08\x00\x00\x00\x00\x00\x00\x00\x07" + "\x50\x00\x03???"
	b := []byte(head(2, 1, len(meta), 1) + meta + record(fields, "x"))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	got, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if r := got.Records[0]; got.Meta.Incarnation != 7 || r.Partition != 2 || r.Offset != 41 || string(r.ReceiptHandle) != "r" {
		t.Errorf("got %+v", got)
	}
	for i := range b {
		flipped := bytes.Clone(b)
		flipped[i] ^= 0x10
		if _, err := Decode(flipped); !errors.Is(err, ErrMalformed) {
			t.Errorf("a flipped bit in byte %d: %v", i, err)
		}
	}
	without := record("\x04\x00\x04\x00\x00\x00\x02\x10\x00\x08\x00\x00\x00\x00\x00\x00\x00\x29\x12\x00\x01i", "x")
	if _, err := Decode([]byte(head(2, 0, 0, 1) + without)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a delivery without a receipt handle: %v", err)
	}
	if _, err := Decode([]byte(head(3, 0, 0, 1) + without)); err != nil {
		t.Errorf("a replay needs none: %v", err)
	}
	if _, err := Decode([]byte(head(1, 0, 0, 1) + record("", "x"))); !errors.Is(err, ErrMalformed) {
		t.Errorf("a produce is no answer: %v", err)
	}
}

func TestWriterRefusesAndStaysUsable(t *testing.T) {
	w := NewWriter(nil, Produce, Meta{})
	long := bytes.Repeat([]byte("k"), 70_000)
	for name, r := range map[string]Record{
		"empty payload":  {Partition: NoPartition},
		"long key":       {Partition: NoPartition, Key: long, Payload: []byte("x")},
		"long type":      {Partition: NoPartition, ContentType: long, Payload: []byte("x")},
		"long attribute": {Partition: NoPartition, Attrs: []Attr{{[]byte("a"), long}}, Payload: []byte("x")},
		"no name":        {Partition: NoPartition, Attrs: []Attr{{nil, []byte("v")}}, Payload: []byte("x")},
		"order":          {Partition: NoPartition, Attrs: []Attr{{[]byte("b"), nil}, {[]byte("a"), nil}}, Payload: []byte("x")},
	} {
		if err := w.Add(&r); !errors.Is(err, ErrUnencodable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := w.Add(&Record{Partition: NoPartition, Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if w.Count() != 1 || w.Len() != HeaderSize+7 {
		t.Errorf("count %d, length %d", w.Count(), w.Len())
	}
	if got := w.Bytes(true); !bytes.Equal(got, unhex(t, goldenSmallest)) {
		t.Errorf("got %x", got)
	}
}

func TestCodecDoesNotAllocatePerRecord(t *testing.T) {
	in := &Batch{Kind: Produce}
	for range 100 {
		in.Records = append(in.Records, produceRecords()...)
	}
	b, err := Encode(nil, in, true)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, len(b))
	var d Decoder
	if _, err := d.DecodeProduce(b); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(20, func() {
		if _, err := d.DecodeProduce(b); err != nil {
			t.Fatal(err)
		}
		if _, err := Encode(buf, in, true); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for 300 records", n)
	}
}

// FuzzDecodeProduce: no panic, and what is accepted has one encoding.
func FuzzDecodeProduce(f *testing.F) {
	f.Add(unhex(f, goldenProduce))
	f.Add(unhex(f, goldenSmallest))
	f.Add(unhex(f, goldenDelivery))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Decoder
		records, err := d.DecodeProduce(b)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("not an *Error: %v", err)
			}
			return
		}
		again, err := Encode(nil, &Batch{Kind: Produce, Records: records}, b[5]&flagCRC != 0)
		if err != nil || !bytes.Equal(again, b) {
			t.Fatalf("accepted %x, encodes as %x, %v", b, again, err)
		}
	})
}

// FuzzDecode: no panic, and every slice lies within the input's length.
func FuzzDecode(f *testing.F) {
	f.Add(unhex(f, goldenDelivery))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Decode(b)
		if err != nil {
			return
		}
		sum := 0
		for _, r := range got.Records {
			sum += len(r.Payload) + len(r.Key) + len(r.ID) + len(r.ReceiptHandle)
		}
		if sum > len(b) {
			t.Fatalf("%d bytes of values in %d bytes", sum, len(b))
		}
	})
}
