package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// roundTrip produces one payload and returns the consumed message.
func (t *tester) roundTrip(payload []byte, query string, h ...string) map[string]any {
	t.Helper()
	if a := t.do("POST /v1/topics/orders/produce", string(payload), h...); a.Status != 202 {
		t.Fatalf("produce %q: %d %s", payload, a.Status, a.body)
	}
	a := t.do("POST /v1/topics/orders/consume?wait=0s"+query, "")
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(a.body))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil || a.Status != 200 {
		t.Fatalf("consume of %q: %d %s: %v", payload, a.Status, a.body, err)
	}
	return m
}

// check holds a consumed message against the bytes that were produced.
func (t *tester) check(m map[string]any, payload []byte) {
	t.Helper()
	n := 0
	if s, ok := m["payload_base64"].(string); ok {
		n++
		if b, err := base64.StdEncoding.DecodeString(s); err != nil || !bytes.Equal(b, payload) {
			t.Fatalf("%x came back as base64 of %x, %v", payload, b, err)
		}
	}
	if s, ok := m["payload_text"].(string); ok {
		n++
		if s != string(payload) {
			t.Fatalf("%q came back as text %q", payload, s)
		}
	}
	if v, ok := m["payload"]; ok {
		n++
		var want any
		dec := json.NewDecoder(bytes.NewReader(payload))
		dec.UseNumber()
		if err := dec.Decode(&want); err != nil || fmt.Sprint(v) != fmt.Sprint(want) {
			t.Fatalf("%q came back as JSON %v", payload, v)
		}
	}
	if n != 1 {
		t.Fatalf("%d forms of payload in %v", n, m)
	}
}

func TestRoundTripOfAllSmallBodies(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	types := [][]string{nil, {"Content-Type", "text/plain; charset=latin1"}, {"Content-Type", "application/json"}, {"Content-Type", "application/octet-stream"}}
	for i := range 256 {
		payload := []byte{byte(i)}
		for _, h := range types {
			tt.check(tt.roundTrip(payload, "", h...), payload)
		}
		tt.check(tt.roundTrip(payload, "&encoding=base64"), payload)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		payload := []byte{byte(r.Uint32()), byte(r.Uint32())}
		tt.check(tt.roundTrip(payload, "", types[r.IntN(len(types))]...), payload)
	}
}

func TestPayloadForms(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tt := range []struct{ name, payload, contentType, want string }{
		{"JSON text of a string", `"abc"`, "application/json", `"payload":"abc"`},
		{"plain text of the same characters", `"abc"`, "text/plain", `"payload_text":"\"abc\""`},
		{"no type, JSON", `{"a": 1}`, "", `"payload":{"a": 1}`},
		{"no type, text", `abc`, "", `"payload_text":"abc"`},
		{"vendor JSON", `[1]`, "application/vnd.x+json; v=1", `"payload":[1]`},
		{"spaces stay", " [1,\n2] ", "", "\"payload\": [1,\n2] "},
		{"duplicate names stay", `{"a":1,"a":2}`, "", `"payload":{"a":1,"a":2}`},
		{"escapes stay", `"\u00e9\/é"`, "", `"payload":"\u00e9\/é"`},
		{"long numbers stay", `12345678901234567890.1234567890`, "", `"payload":12345678901234567890.1234567890`},
		{"largest double", `1.7976931348623157e308`, "", `"payload":1.7976931348623157e308`},
		{"beyond a double", `1e309`, "application/json", `"payload_text":"1e309"`},
		{"beyond, without exponent", "1" + strings.Repeat("0", 309), "", `"payload_text":"1000`},
		{"below a double", `1e-999`, "", `"payload":1e-999`},
		{"lone surrogate", `"\ud800"`, "", `"payload_text":"\"\\ud800\""`},
		{"surrogate pair", `"\ud83d\ude00"`, "", `"payload":"\ud83d\ude00"`},
		{"low surrogate first", `"\ude00\ud83d"`, "", `"payload_text":`},
		{"depth 64", deep(64), "", `"payload":[[`},
		{"depth 65", deep(65), "", `"payload_text":"[[`},
		{"cut", `{"a":`, "application/json", `"payload_text":"{\"a\":"`},
		{"two values", `1 2`, "", `"payload_text":"1 2"`},
		{"leading zero", `01`, "", `"payload_text":"01"`},
		{"looks like base64", `AP8=`, "text/plain", `"payload_text":"AP8="`},
		{"NUL", "a\x00b", "", `"payload_text":"a\u0000b"`},
		{"not UTF-8", "\xff", "text/plain", `"payload_base64":"/w=="`},
		{"byte order mark", "\ufeff1", "application/json", "\"payload_text\":\"\ufeff1\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := newTester(t)
			x.broker.Put("orders", 1)
			var h []string
			if tt.contentType != "" {
				h = []string{"Content-Type", tt.contentType}
			}
			x.do("POST /v1/topics/orders/produce", tt.payload, h...)
			a := x.do("POST /v1/topics/orders/consume?wait=0s", "")
			if !strings.Contains(a.body, tt.want) || !json.Valid([]byte(a.body)) {
				t.Errorf("got %s, want %s", a.body, tt.want)
			}
		})
	}
}

func TestKeysAndAttributes(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	a := tt.do("POST /v1/topics/orders/produce?key=a+b%2B%00%ff", "x", "Narad-Attr-B", "é", "narad-attr-A", "", "Traceparent", "00-1")
	if a.Status != 202 {
		t.Fatal(a.body)
	}
	m := tt.broker.Messages("orders", 0)[0]
	if string(m.Key) != "a b+\x00\xff" || len(m.Attrs) != 3 || m.Attrs[0].Name != "a" || m.Attrs[1].Value != "é" || m.Attrs[2].Name != "traceparent" {
		t.Errorf("stored %q %v", m.Key, m.Attrs)
	}
	a = tt.do("POST /v1/topics/orders/consume?wait=0s", "")
	if !strings.Contains(a.body, `"key_base64":"YSBiKwD/"`) || !strings.Contains(a.body, `"attributes":{"a":"","b":"é","traceparent":"00-1"}`) {
		t.Errorf("shown %s", a.body)
	}
}

func TestContentEncoding(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	gz := func(b []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	var streamed bytes.Buffer // a frame that does not say how long it is
	w, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	full := bytes.Repeat([]byte("narad "), 1<<20/6)
	for range 2 {
		if _, err := w.Write(full[:len(full)/2]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	over := bytes.Repeat([]byte{0}, 1<<20+1)
	for i, c := range []struct {
		encoding string
		body     []byte
		status   int
		want     []byte
	}{
		{"zstd", enc.EncodeAll([]byte("hello"), nil), 202, []byte("hello")},
		{"gzip", gz([]byte("hello")), 202, []byte("hello")},
		{"zstd", streamed.Bytes(), 202, full[:len(full)/2*2]},
		{"gzip", gz(make([]byte, 1<<20)), 202, make([]byte, 1<<20)},
		{"zstd", enc.EncodeAll(over, nil), 413, nil},
		{"gzip", gz(over), 413, nil},
		{"gzip", gz(make([]byte, 64<<20)), 413, nil},
		{"zstd", enc.EncodeAll(make([]byte, 64<<20), nil), 413, nil},
		{"gzip", append(gz([]byte("hello")), "trailing"...), 400, nil},
		{"zstd", enc.EncodeAll([]byte("hello"), nil)[:10], 400, nil},
		{"gzip", gz([]byte("hello"))[:20], 400, nil},
		{"gzip", gz(nil), 400, nil},
	} {
		a := tt.do("POST /v1/topics/orders/produce", string(c.body), "Content-Encoding", c.encoding)
		if a.Status != c.status {
			t.Fatalf("%d: %s: %d %s", i, c.encoding, a.Status, a.body)
		}
		if all := tt.broker.Messages("orders", 0); c.want != nil && !bytes.Equal(all[len(all)-1].Payload, c.want) {
			t.Errorf("%d: %s: another payload came out", i, c.encoding)
		}
	}
}
