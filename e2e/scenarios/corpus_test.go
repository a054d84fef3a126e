//go:build e2e

package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/narad-mq/narad/e2e/harness"
	"github.com/narad-mq/narad/libs/client"
)

// sample is one message of the corpus, before it is sent.
type sample struct {
	name string // unique; sent as the attribute "name"
	key  string
	ct   string
	body []byte
}

// goSource is the corpus that every machine with Go has.
func goSource(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src")
}

// bookLines makes a message of each line that has at least one byte.
func bookLines(t *testing.T, src string) []sample {
	raw, err := os.ReadFile(filepath.Join(src, "testdata", "Isaac.Newton-Opticks.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var out []sample
	for i, line := range bytes.Split(raw, []byte("\n")) {
		if len(line) > 0 {
			out = append(out, sample{fmt.Sprintf("book-%d", i), "line-" + strconv.Itoa(i%97), "text/plain; charset=utf-8", line})
		}
	}
	return out
}

// jsonElements makes a message of each element of each file's largest array, in
// the bytes of the file; a file without an array is one message.
func jsonElements(t *testing.T, src string) []sample {
	files, err := filepath.Glob(filepath.Join(src, "encoding/json/internal/jsontest/testdata/*.json.zst"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no JSON corpus: %v", err)
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	var out []sample
	for _, file := range files {
		packed, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := dec.DecodeAll(packed, nil)
		if err != nil {
			t.Fatal(err)
		}
		elements := largestArray(json.RawMessage(bytes.TrimSpace(doc)))
		if len(elements) == 0 {
			elements = []json.RawMessage{bytes.TrimSpace(doc)}
		}
		for i, e := range elements {
			out = append(out, sample{fmt.Sprintf("%s-%d", filepath.Base(file), i), "", "application/json", e})
		}
	}
	return out
}

// largestArray finds the array with the most elements anywhere in a document.
func largestArray(doc json.RawMessage) (best []json.RawMessage) {
	var array []json.RawMessage
	if json.Unmarshal(doc, &array) == nil {
		best = array
	}
	var object map[string]json.RawMessage
	children := array
	if array == nil && json.Unmarshal(doc, &object) == nil {
		for _, v := range object {
			children = append(children, v)
		}
	}
	for _, c := range children {
		if c[0] != '[' && c[0] != '{' {
			continue
		}
		if found := largestArray(c); len(found) > len(best) {
			best = found
		}
	}
	return best
}

// images makes a message of each file below src/image/testdata.
func images(t *testing.T, src string) []sample {
	var out []sample
	err := filepath.WalkDir(filepath.Join(src, "image", "testdata"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if err == nil && len(body) > 0 {
			ct := http.DetectContentType(body)
			out = append(out, sample{"image-" + d.Name(), d.Name(), ct, body})
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// edgeCases are payloads that text handling breaks.
func edgeCases() []sample {
	big := bytes.Repeat([]byte{0xa5, 0x00, 0x0d, 0x0a}, 1<<18) // exactly 1 MiB
	out := []sample{
		{"edge-1-byte", "", "", []byte{0}},
		{"edge-1-mib", "big", "", big},
		{"edge-invalid-utf8", "", "text/plain", []byte{0xff, 0xfe, 'x', 0xc0}},
		{"edge-nul", "", "text/plain", []byte("a\x00b\x00")},
		{"edge-crlf", "", "text/plain", []byte("a\r\nb\r\n")},
		{"edge-json-string", "", "application/json", []byte(`"same"`)},
		{"edge-plain-same", "", "text/plain", []byte(`same`)},
		{"edge-huge-number", "", "application/json", []byte(`{"n":1e400,"m":123456789012345678901234567890}`)},
		{"edge-lone-surrogate", "", "application/json", []byte(`"\ud800"`)},
		{"edge-looks-like-base64", "", "text/plain", []byte("AP8=")},
		{"edge-json-with-space", "", "application/json", []byte(" {\"a\" : 1 }\n")},
	}
	for b := range 256 {
		out = append(out, sample{fmt.Sprintf("edge-byte-%d", b), "", "", []byte{byte(b)}})
	}
	return out
}

func TestRealInputComesBackByteForByte(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 3, StorageNodes: 3, Gateways: 2})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	cl, err := client.New(client.Config{URLs: c.URLs()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	create(ctx, t, cl, client.TopicSpec{Name: "corpus", Partitions: 6, MaxInFlightPerPartition: 10_000})
	src := goSource(t)
	lines, elements, pictures, edges := bookLines(t, src), jsonElements(t, src), images(t, src), edgeCases()
	t.Logf("%d lines, %d JSON elements, %d images, %d edge cases", len(lines), len(elements), len(pictures), len(edges))

	sendBinaryBatches(ctx, t, cl, lines)
	sendJSONBatches(ctx, t, cl, elements)
	for _, s := range append(pictures, edges...) {
		if _, err := cl.Produce(ctx, "corpus", s.message(), client.ProduceOptions{}); err != nil {
			t.Fatalf("produce %s: %v", s.name, err)
		}
	}
	want := map[string]sample{}
	for _, list := range [][]sample{lines, elements, pictures, edges} {
		for _, s := range list {
			if _, twice := want[s.name]; twice {
				t.Fatalf("two samples are named %s", s.name)
			}
			want[s.name] = s
		}
	}
	collect(ctx, t, cl, want)
}

func (s sample) message() client.Message {
	return client.Message{
		Payload: s.body, Key: []byte(s.key), ContentType: s.ct,
		Attributes: map[string]string{"name": s.name, "trace-id": "ü-" + s.name},
	}
}

func sendBinaryBatches(ctx context.Context, t *testing.T, cl *client.Client, all []sample) {
	t.Helper()
	const batch = 500
	for start := 0; start < len(all); start += batch {
		var msgs []client.Message
		for _, s := range all[start:min(start+batch, len(all))] {
			msgs = append(msgs, s.message())
		}
		if r, err := cl.ProduceBatch(ctx, "corpus", msgs, client.ProduceOptions{}); err != nil || r.Accepted != len(msgs) {
			t.Fatalf("batch at %d: %+v, %v", start, r, err)
		}
	}
}

// sendJSONBatches uses the JSON form of a batch, where payload is any JSON value.
func sendJSONBatches(ctx context.Context, t *testing.T, cl *client.Client, all []sample) {
	t.Helper()
	const limit = 4 << 20
	for start := 0; start < len(all); {
		var body bytes.Buffer
		body.WriteString(`{"messages":[`)
		n := 0
		for ; start+n < len(all) && n < 500 && body.Len() < limit; n++ {
			s := all[start+n]
			if n > 0 {
				body.WriteByte(',')
			}
			fmt.Fprintf(&body, `{"payload": %s ,"attributes":{"name":%q,"trace-id":%q}}`, s.body, s.name, "ü-"+s.name)
		}
		body.WriteString(`]}`)
		_, err := cl.Do(ctx, client.Call{
			Op: "produce JSON batch", Method: http.MethodPost, Path: "/v1/topics/corpus/produce/batch",
			ContentType: "application/json", Body: body.Bytes(),
		})
		if err != nil {
			t.Fatalf("JSON batch at %d: %v", start, err)
		}
		start += n
	}
}

// collect consumes until everything wanted came once, compares, and acks.
func collect(ctx context.Context, t *testing.T, cl *client.Client, want map[string]sample) {
	t.Helper()
	seen := map[string]bool{}
	for len(seen) < len(want) {
		got, err := cl.Receive(ctx, "corpus", client.ReceiveOptions{Max: 500, Wait: 30 * time.Second})
		if err != nil {
			t.Fatalf("receive after %d of %d: %v", len(seen), len(want), err)
		}
		if len(got.Deliveries) == 0 {
			t.Fatalf("nothing more came after %d of %d", len(seen), len(want))
		}
		var handles []string
		for _, d := range got.Deliveries {
			name := d.Attributes["name"]
			s, known := want[name]
			switch {
			case !known:
				t.Fatalf("delivered %q, which was never sent", name)
			case seen[name]:
				t.Fatalf("%s was delivered twice", name)
			case !bytes.Equal(d.Payload, s.body):
				t.Fatalf("%s: the payload was altered (%d bytes, want %d)", name, len(d.Payload), len(s.body))
			case string(d.Key) != s.key || d.Attributes["trace-id"] != "ü-"+name || len(d.Attributes) != 2 || d.ContentType != s.ct:
				t.Fatalf("%s: key %q, attributes %v, content type %q", name, d.Key, d.Attributes, d.ContentType)
			}
			seen[name] = true
			handles = append(handles, d.ReceiptHandle)
		}
		results, err := cl.AckMany(ctx, "corpus", handles)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			if !r.OK() {
				t.Fatalf("ack %s: %+v", handles[i], r)
			}
		}
	}
	var d client.TopicDetails
	var err error
	if harness.Until(ctx, 20*time.Second, func() bool { // a leader that is busy leaves it partial
		d, err = cl.Topic(ctx, "corpus")
		return err == nil && !d.Partial && d.Backlog != nil && *d.Backlog == 0
	}) != nil {
		t.Errorf("after everything was acked the topic says %+v, %v", d, err)
	}
}
