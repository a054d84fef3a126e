package api

import (
	"bytes"
	"encoding/base64"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
)

func TestReceiptGolden(t *testing.T) {
	r := receipt{partition: 2, offset: 41, epoch: 7, incarnation: 0x3f9a17c4e2b08d51, nonce: nodeapi.Nonce{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
	const want = "AQAAAAIAAAAAAAAAKQAAAAc_mhfE4rCNUQECAwQFBgcICQoLDA"
	if got := string(appendReceipt(nil, &r)); got != want {
		t.Fatalf("got %s", got)
	}
	var back receipt
	if !parseReceipt([]byte(want), &back) || back != r {
		t.Fatalf("read %+v", back)
	}
	for name, s := range map[string]string{
		"empty": "", "short": want[:49], "long": want + "A", "padded": want + "==",
		"other alphabet": strings.Replace(want, "_", "/", 1), "line end": want[:49] + "\n", "space": " " + want[1:],
		"version 2": "Ag" + want[2:], "bits beyond": want[:49] + "B", "partition below 0": "Af" + want[2:],
	} {
		if parseReceipt([]byte(s), &back) {
			t.Errorf("%s: %q was read", name, s)
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(want)
	if err != nil || len(raw) != receiptBytes {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	raw[5] |= 0x80
	if parseReceipt([]byte(base64.RawURLEncoding.EncodeToString(raw)), &back) {
		t.Error("an offset below 0 was read")
	}
}

// FuzzReceipt: what is read has exactly one spelling, and base64 agrees.
func FuzzReceipt(f *testing.F) {
	f.Add([]byte("AQAAAAIAAAAAAAAAKQAAAAc_mhfE4rCNUQECAwQFBgcICQoLDA"))
	f.Add([]byte("AQAAAAIAAAAAAAAAKQAAAAc_mhfE4rCNUQECAwQFBgcICQoLDB"))
	f.Fuzz(func(t *testing.T, s []byte) {
		var r receipt
		if !parseReceipt(s, &r) {
			return
		}
		if again := appendReceipt(nil, &r); !bytes.Equal(again, s) {
			t.Fatalf("%q reads as %+v, which is %q", s, r, again)
		}
		if _, err := base64.RawURLEncoding.Strict().DecodeString(string(s)); err != nil {
			t.Fatalf("%q is not base64url: %v", s, err)
		}
	})
}

// strictest is jsontext with its defaults: it refuses lone surrogates, too, but
// knows no depth of ours and no range of numbers.
func strictest(b []byte) bool {
	return jsontext.Value(b).IsValid(jsontext.AllowDuplicateNames(true))
}

// FuzzPresentableJSON: what is shown as JSON is JSON, and what is not is refused
// for the three reasons only.
func FuzzPresentableJSON(f *testing.F) {
	for _, s := range []string{`{"a":[1,-2.5e+3,"x\u00e9\ud83d\ude00",null,true]}`, `"\ud800"`, `1e999`, `[[]]`, ` 0 `, `01`, `{"a":1,}`, "\"\x01\"", `-`, `1.`, `"\x"`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.Valid(b) {
			return
		}
		got, want := presentableJSON(b), strictest(b)
		if got && !want {
			t.Fatalf("%q is no JSON", b)
		}
		if want && !got && !bytes.ContainsAny(b, "eE") && len(b) < plainDigits && bytes.Count(b, []byte("["))+bytes.Count(b, []byte("{")) <= MaxJSONDepth {
			t.Fatalf("%q is JSON", b)
		}
	})
}

func TestPresentableJSONAgainstJSONText(t *testing.T) {
	alphabet := []string{"{", "}", "[", "]", ",", ":", `"a"`, `"\u00e9"`, `"\ud800"`, `"\ud83d\ude00"`, "1", "-", "0", ".5", "e1", "true", "null", " ", "\n", `\`, `"`}
	r := rand.New(rand.NewPCG(3, 4))
	valid := 0
	for range 200_000 {
		var s strings.Builder
		for range 1 + r.IntN(8) {
			s.WriteString(alphabet[r.IntN(len(alphabet))])
		}
		b := []byte(s.String())
		got := presentableJSON(b)
		if got != strictest(b) {
			t.Fatalf("%q: %v", b, got)
		}
		if got {
			valid++
		}
	}
	if valid < 1000 {
		t.Errorf("only %d valid texts were made", valid)
	}
}

func TestQuery(t *testing.T) {
	names := []string{"key", "wait", "max"}
	var q query
	for raw, parameter := range map[string]string{
		"": "-", "key=": "-", "key": "-", "key=a;max=1": "-", "%6bey=a": "-", "key=a&": "", "&": "", "key=a&key=a": "key",
		"key=a&%6bey=a": "key", "nokey=1": "nokey", "KEY=1": "KEY", "k%00=1": "k?", "%zz=1": "%zz", "=a": "",
	} {
		err := q.parse([]byte(raw), names)
		var p *problem.Problem
		if got := errors.As(err, &p); got != (parameter != "-") || got && p.Members["parameter"] != parameter {
			t.Errorf("%q: %v", raw, err)
		}
	}
	if err := q.parse([]byte("key=a+b%2B%2f&wait=1500ms"), names); err != nil {
		t.Fatal(err)
	}
	if v, ok, err := q.text("key", nil); string(v) != "a b+/" || !ok || err != nil {
		t.Errorf("key %q, %v, %v", v, ok, err)
	}
	for raw, want := range map[string]time.Duration{"0s": 0, "1500ms": 1500 * time.Millisecond, "30s": 30 * time.Second, "": -1, "5": -1, "31s": -1, "1m": -1, "s": -1, "1.5s": -1, "+1s": -1, "1S": -1, "ms": -1} {
		if err := q.parse([]byte("wait="+raw), names); err != nil {
			t.Fatal(err)
		}
		if got, err := q.duration("wait", 0, 0, MaxWait); (err != nil) != (want < 0) || err == nil && got != want {
			t.Errorf("%q: %v, %v", raw, got, err)
		}
	}
}

// Every pattern routes to itself, and no route needs more than a call has room for.
func TestRoutesTable(t *testing.T) {
	root := newRouter(Routes())
	for _, r := range Routes() {
		var params [maxPathParams][]byte
		path := strings.NewReplacer("{", "", "}", "").Replace(r.Pattern)
		n := root.find([]byte(path), &params)
		if n == nil || n.methods[r.Method] == nil || n.methods[r.Method].Pattern != r.Pattern {
			t.Errorf("%s %s does not lead to itself", r.Method, r.Pattern)
		}
		if len(r.Query) > maxParameters {
			t.Errorf("%s has %d parameters", r.Pattern, len(r.Query))
		}
		if (r.handle == nil) != (r.Feature != "") {
			t.Errorf("%s %s needs a handler or a feature", r.Method, r.Pattern)
		}
		if r.Mutating && r.Method == "GET" {
			t.Errorf("%s %s changes something", r.Method, r.Pattern)
		}
	}
}

func TestRequestIDsDiffer(t *testing.T) {
	ids := newRequestIDs()
	seen := map[string]bool{}
	for range 100_000 {
		id := string(ids.appendNew(nil))
		if seen[id] || !validRequestID([]byte(id)) || len(id) != 16 {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}
