package api_test

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
)

// header is a list of header lines, name and value in turn.
type header []string

func (h header) Get(name string) (value []byte, n int) {
	for i := 0; i < len(h); i += 2 {
		if strings.EqualFold(h[i], name) {
			if n++; n == 1 {
				value = []byte(h[i+1])
			}
		}
	}
	return value, n
}

func (h header) Each(f func(name, value []byte) bool) {
	for i := 0; i < len(h); i += 2 {
		if !f([]byte(h[i]), []byte(h[i+1])) {
			return
		}
	}
}

// answer is a copy of a Response.
type answer struct {
	api.Response
	body string
}

// code is the problem's code, "" when it is none.
func (a *answer) code(t testing.TB) string {
	t.Helper()
	if a.ContentType != "application/problem+json" {
		return ""
	}
	return a.field(t, "code").(string)
}

// field is a top-level member of a JSON answer; nil when it is not there.
func (a *answer) field(t testing.TB, name string) any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil {
		t.Fatalf("answer %d %q is not JSON: %v", a.Status, a.body, err)
	}
	return doc[name]
}

type tester struct {
	testing.TB
	api    *api.API
	broker *fakebroker.Broker
}

func newTester(t testing.TB) *tester {
	t.Helper()
	b := fakebroker.New()
	a, err := api.New(api.Config{NodeID: "gateway-1", Release: "0.1.0"}, b.Deps())
	if err != nil {
		t.Fatal(err)
	}
	return &tester{TB: t, api: a, broker: b}
}

// do serves one request: "POST /path?query", body and header lines.
func (t *tester) do(line, body string, h ...string) *answer {
	t.Helper()
	return t.serve(line, []byte(body), int64(len(body)), false, h)
}

func (t *tester) serve(line string, body []byte, length int64, dry bool, h header) *answer {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	path, query, _ := strings.Cut(target, "?")
	req := api.Request{
		Method: []byte(method), Path: []byte(path), Query: []byte(query), Host: []byte("gateway:7942"),
		Headers: h, ContentLength: length, Body: io.Reader(bytes.NewReader(body)), Dry: dry,
	}
	var resp api.Response
	t.api.Serve(&req, &resp)
	out := &answer{Response: resp, body: string(resp.Body)}
	if resp.Stream != nil {
		raw, err := io.ReadAll(resp.Stream)
		if err != nil || int64(len(raw)) != resp.Length {
			t.Errorf("%s: a stream of %d bytes, %d announced: %v", line, len(raw), resp.Length, err)
		}
		out.body = string(raw)
	}
	out.RequestID = strings.Clone(resp.RequestID)
	resp.Finish(true)
	theSpec(t).check(t, method, path, out)
	return out
}
