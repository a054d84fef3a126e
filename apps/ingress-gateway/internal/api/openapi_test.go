package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
)

// spec is openapi.yaml, taken apart as far as the tests need it.
type spec struct {
	doc struct {
		Paths      map[string]map[string]any `yaml:"paths"`
		Components struct {
			Parameters map[string]struct{ Name, In string } `yaml:"parameters"`
		} `yaml:"components"`
	}
	compiler *jsonschema.Compiler

	mu       sync.Mutex // guards all below
	compiled map[string]*jsonschema.Schema
	seen     map[string]bool // "GET /v1/info 200"
}

var loadSpec = sync.OnceValues(func() (*spec, error) {
	raw, err := os.ReadFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	s := &spec{compiler: jsonschema.NewCompiler(), compiled: map[string]*jsonschema.Schema{}, seen: map[string]bool{}}
	if err := yaml.Unmarshal(raw, &s.doc); err != nil {
		return nil, err
	}
	var tree any
	if err := yaml.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	plain, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	s.compiler.DefaultDraft(jsonschema.Draft2020)
	s.compiler.AssertFormat()
	return s, s.compiler.AddResource("openapi.json", plain)
})

func (s *spec) operation(r api.Route) map[string]any {
	op, _ := s.doc.Paths[r.Pattern][strings.ToLower(r.Method)].(map[string]any)
	return op
}

// params lists the query parameters of an operation, by their references.
func (s *spec) params(op map[string]any) (names []string) {
	list, _ := op["parameters"].([]any)
	for _, p := range list {
		ref := p.(map[string]any)["$ref"].(string)
		if d := s.doc.Components.Parameters[strings.TrimPrefix(ref, "#/components/parameters/")]; d.In == "query" {
			names = append(names, d.Name)
		}
	}
	return names
}

// schema compiles the schema of a response, nil when it has none of that type.
func (s *spec) schema(response, mediaType string) (*jsonschema.Schema, error) {
	pointer := "openapi.json#/components/responses/" + response + "/content/" + strings.ReplaceAll(mediaType, "/", "~1") + "/schema"
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.compiled[pointer]; c != nil {
		return c, nil
	}
	c, err := s.compiler.Compile(pointer)
	if err == nil {
		s.compiled[pointer] = c
	}
	return c, err
}

// routeOf finds the built route of a request line; nil when there is none.
func routeOf(method, path string) *api.Route {
	segments := strings.Split(path, "/")
	for _, r := range api.Routes() {
		pattern := strings.Split(r.Pattern, "/")
		if r.Method != method || r.Feature != "" || len(pattern) != len(segments) {
			continue
		}
		match := true
		for i, p := range pattern {
			match = match && (p == segments[i] || strings.HasPrefix(p, "{") && segments[i] != "")
		}
		if match {
			return &r
		}
	}
	return nil
}

// check holds one answer against the document. Every request of this package's
// tests passes through it.
func (s *spec) check(t testing.TB, method, path string, a *answer) {
	t.Helper()
	r := routeOf(method, path)
	if r == nil || a.WantsBody {
		return
	}
	status := fmt.Sprint(a.Status)
	responses, _ := s.operation(*r)["responses"].(map[string]any)
	response, _ := responses[status].(map[string]any)
	if response == nil {
		t.Errorf("%s %s answered %s (%s), which openapi.yaml does not list", method, r.Pattern, status, a.body)
		return
	}
	s.mu.Lock()
	s.seen[method+" "+r.Pattern+" "+status] = true
	s.mu.Unlock()
	if a.body == "" || !strings.HasSuffix(a.ContentType, "json") {
		return
	}
	name := strings.TrimPrefix(response["$ref"].(string), "#/components/responses/")
	schema, err := s.schema(name, a.ContentType)
	if err != nil {
		t.Errorf("%s %s: schema of %s as %s: %v", method, r.Pattern, name, a.ContentType, err)
		return
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(a.body))
	if err == nil {
		err = schema.Validate(value)
	}
	if err != nil {
		t.Errorf("%s %s: the answer does not fit openapi.yaml: %v\n%s", method, r.Pattern, err, a.body)
	}
}

func theSpec(t testing.TB) *spec {
	t.Helper()
	s, err := loadSpec()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDocumentAndRoutesAgree(t *testing.T) {
	s := theSpec(t)
	built := map[string]bool{}
	for _, r := range api.Routes() {
		op := s.operation(r)
		if r.Feature != "" {
			if op != nil {
				t.Errorf("%s %s answers 501 and is documented as built", r.Method, r.Pattern)
			}
			continue
		}
		built[strings.ToLower(r.Method)+" "+r.Pattern] = true
		if op == nil {
			t.Errorf("%s %s is not documented", r.Method, r.Pattern)
			continue
		}
		want, got := slices.Sorted(slices.Values(r.Query)), slices.Sorted(slices.Values(s.params(op)))
		if !slices.Equal(want, got) {
			t.Errorf("%s %s takes %v and documents %v", r.Method, r.Pattern, want, got)
		}
		if _, documented := op["requestBody"]; documented != r.Body {
			t.Errorf("%s %s: takes a body: %v, documented: %v", r.Method, r.Pattern, r.Body, documented)
		}
	}
	for path, ops := range s.doc.Paths {
		for method := range ops {
			if method != "parameters" && !built[method+" "+path] {
				t.Errorf("%s %s is documented and not built", method, path)
			}
		}
	}
}

// TestEveryDocumentedSuccessIsAnswered: no documented answer that the API never gives.
func TestEveryDocumentedSuccessIsAnswered(t *testing.T) {
	tt := newTester(t)
	s := theSpec(t)
	tt.do("POST /v1/topics", `{"name":"t","partitions":1}`)
	tt.do("GET /v1/topics", "")
	tt.do("GET /v1/topics/t", "")
	tt.do("PATCH /v1/topics/t", `{"retention_ms":0}`)
	produce := func() { tt.do("POST /v1/topics/t/produce", "x") }
	take := func(line string) string {
		produce()
		handle, _ := tt.do(line, "").field(t, "receipt_handle").(string)
		return handle
	}
	tt.do("POST /v1/topics/t/consume?wait=0s", "")
	tt.do("GET /v1/topics/t/consume?wait=0s", "")
	tt.do("POST /v1/topics/t/produce/batch", `{"messages":[{"payload":1},{"payload_text":"x","key":"k"},{"payload_base64":"AP8=","attributes":{"a":"b"}}]}`)
	tt.do("POST /v1/topics/t/consume?max=10", "")
	for _, op := range []string{"ack", "extend", "nack"} {
		extra := map[string]string{"extend": "&visibility_timeout_ms=5000"}[op]
		tt.do("POST /v1/topics/t/"+op+"?receipt_handle="+take("GET /v1/topics/t/consume")+extra, "")
		body := map[string]string{"extend": `,"visibility_timeout_ms":5000`}[op]
		tt.do("POST /v1/topics/t/"+op, `{"receipt_handles":["`+take("POST /v1/topics/t/consume")+`"]`+body+`}`)
	}
	tt.do("GET /v1/topics/t/messages", "")
	TestMembers(t)
	TestStatusAndForget(t)
	TestMoves(t)
	TestChildren(t)
	tt.do("GET /v1/cluster/quorum", "")
	tt.do("GET /v1/info", "")
	if a := tt.do("GET /v1/openapi.yaml", ""); !strings.HasPrefix(a.body, "openapi: 3.1.0") {
		t.Errorf("the document is served as %.40q", a.body)
	}
	tt.do("DELETE /v1/topics/t", "")
	for _, r := range api.Routes() {
		responses, _ := s.operation(r)["responses"].(map[string]any)
		for status := range responses {
			key := r.Method + " " + r.Pattern + " " + status
			if strings.HasPrefix(status, "2") && !s.seen[key] {
				t.Errorf("no recorded answer for %s", key)
			}
		}
	}
}
