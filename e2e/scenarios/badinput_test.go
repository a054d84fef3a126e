//go:build e2e

package scenarios

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/narad-mq/narad/e2e/harness"
)

// bad is a request, written to the socket as it stands here, and its answer.
type bad struct {
	line   string // method and request target
	head   string // further header lines, each with its line end
	body   string
	status int
	code   string // "": no refusal
}

// refusal is a problem document.
type refusal struct {
	Type      string  `json:"type"`
	Title     string  `json:"title"`
	Status    int     `json:"status"`
	Code      string  `json:"code"`
	Applied   *string `json:"applied"`
	RequestID string  `json:"request_id"`
	Detail    string  `json:"detail"`
}

const (
	chunked = "Transfer-Encoding: chunked\r\n"
	asGzip  = "Content-Encoding: gzip\r\n"
	asZstd  = "Content-Encoding: zstd\r\n"
)

// bytes writes the request with the right framing for its body.
func (b bad) bytes() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n%s", b.line, b.head)
	switch {
	case strings.Contains(b.head, chunked):
		out.WriteString("\r\n")
		for rest := b.body; rest != ""; {
			n := min(len(rest), 64<<10)
			fmt.Fprintf(&out, "%x\r\n%s\r\n", n, rest[:n])
			rest = rest[n:]
		}
		out.WriteString("0\r\n\r\n")
	case b.body != "":
		fmt.Fprintf(&out, "Content-Length: %d\r\n\r\n%s", len(b.body), b.body)
	default:
		out.WriteString("\r\n")
	}
	return out.Bytes()
}

// name shows a row in a failure without its megabytes.
func (b bad) name() string {
	return fmt.Sprintf("%.90q %.60q %.60q (%d bytes)", b.line, b.head, b.body, len(b.body))
}

// raw sends bytes on a connection of their own and returns the answer.
func raw(addr string, request []byte, method string) (*http.Response, []byte, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return nil, nil, err
	}
	go func() { _, _ = conn.Write(request) }() // an early answer may end it
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// check sends a row and holds the answer against it and against section 2 of the API.
func (b bad) check(t *testing.T, addr string) {
	t.Helper()
	method, target, _ := strings.Cut(b.line, " ")
	resp, body, err := raw(addr, b.bytes(), method)
	if err != nil {
		t.Errorf("%s: %v", b.name(), err)
		return
	}
	if resp.StatusCode != b.status {
		t.Errorf("%s: %d %.200s, want %d %s", b.name(), resp.StatusCode, body, b.status, b.code)
		return
	}
	if b.code == "" || method == http.MethodHead {
		return
	}
	var p refusal
	if err := json.Unmarshal(body, &p); err != nil || p.Code != b.code || p.Status != b.status {
		t.Errorf("%s: %.200s (%v), want %s", b.name(), body, err, b.code)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/problem+json" || p.Type != "about:blank" || p.Title == "" || p.Detail == "" {
		t.Errorf("%s: %q is no problem document: %s", b.name(), ct, body)
	}
	if id := resp.Header.Get("Narad-Request-Id"); id == "" || id != p.RequestID {
		t.Errorf("%s: request id %q in the header, %q in the body", b.name(), id, p.RequestID)
	}
	reads := method == "GET" || strings.Contains(target, "/consume") || b.code == "route_not_found" || b.status == 405 || b.status == 414 || b.status == 431
	if applied := p.Applied != nil; applied == reads || applied && *p.Applied != "no" {
		t.Errorf("%s: applied is wrong: %s", b.name(), body)
	}
	if (resp.Header.Get("Allow") != "") != (b.status == 405) {
		t.Errorf("%s: Allow %q", b.name(), resp.Header.Get("Allow"))
	}
}

// badNames are topic names, as they stand in a path, that are refused wherever they stand.
func badNames() []string {
	return []string{
		"..", ".", "%2e%2e", "..%2fx", "..%2Fx", "%2e%2e%2fx", "a%2fb", "a%5cb", "a%00", "a%00b", "%", "a%2", "a%zz", "%2541",
		strings.Repeat("x", 201), "%C3%A9", "é", "t%E2%80%8D", "t.stale-0123456789abcdef", "t.stale-0123456789ABCDEF",
		"t.stale-0123456789abcdef-1", "t.quarantine", "orders;x=1", "a%20", "a+b", "~", "a:b", "%C0%AE%C0%AE", "t%0d%0ax",
	}
}

var bodyless = []string{"GET", "DELETE"}

// everyRoute reads the methods and paths of the OpenAPI document that the gateway serves.
func everyRoute(t *testing.T, base string) []string {
	t.Helper()
	status, doc := call(t, "GET", base+"/v1/openapi.yaml", "")
	if status != 200 {
		t.Fatalf("openapi.yaml: %d", status)
	}
	path := regexp.MustCompile(`^  (/v1/\S*):`)
	method := regexp.MustCompile(`^    (get|post|put|patch|delete):`)
	var routes []string
	current := ""
	for _, line := range strings.Split(doc, "\n") {
		if m := path.FindStringSubmatch(line); m != nil {
			current = m[1]
		} else if m := method.FindStringSubmatch(line); m != nil && current != "" {
			routes = append(routes, strings.ToUpper(m[1])+" "+current)
		}
	}
	if len(routes) < 18 {
		t.Fatalf("the document has only %d routes: %v", len(routes), routes)
	}
	return routes
}

// routeRows are what every route answers to what no route takes.
func routeRows(routes []string) (rows []bad) {
	fill := strings.NewReplacer("{topic}", "orders", "{id}", "storage-1", "{partition}", "0", "{child}", "c")
	methods := map[string][]string{}
	for _, r := range routes {
		method, pattern, _ := strings.Cut(r, " ")
		path := fill.Replace(pattern)
		methods[path] = append(methods[path], method)
		rows = append(rows,
			bad{line: method + " " + path + "/", status: 404, code: "route_not_found"},
			bad{line: method + " /" + path, status: 404, code: "route_not_found"},
			bad{line: method + " http://gateway" + path, status: 404, code: "route_not_found"},
			bad{line: method + " " + strings.Replace(path, "/v1/", "/V1/", 1), status: 404, code: "route_not_found"},
			bad{line: method + " /v1/./" + path[4:], status: 404, code: "route_not_found"},
			bad{line: method + " /v1/x/.." + path[3:], status: 404, code: "route_not_found"},
			bad{line: method + " " + path, head: "Expect: a miracle\r\n", status: 417, code: "expectation_failed"},
			bad{line: method + " " + path + "?nope=1", status: 400, code: "invalid_request"},
			bad{line: method + " " + path + "?%zz=1", status: 400, code: "invalid_request"},
			bad{line: method + " " + path + "?" + strings.Repeat("x", 9<<10), status: 414, code: "uri_too_long"},
			bad{line: method + " " + path, head: "X-Long: " + strings.Repeat("x", 33<<10) + "\r\n", status: 431, code: "headers_too_large"},
		)
		if pattern != "/v1/info" {
			rows = append(rows, bad{line: method + " " + path, head: "Sec-Fetch-Site: cross-site\r\n", status: 403, code: "cross_origin"})
		}
		if slices.Contains(bodyless, method) {
			rows = append(rows,
				bad{line: method + " " + path, body: "x", status: 400, code: "invalid_request"},
				bad{line: method + " " + path, head: chunked, body: "x", status: 400, code: "invalid_request"})
		}
		if strings.Contains(pattern, "{topic}") {
			for _, name := range badNames() {
				rows = append(rows, bad{line: method + " " + strings.Replace(path, "orders", name, 1), status: 400, code: "invalid_topic_name"})
			}
			if pattern != "/v1/topics/{topic}" { // that is the list's path with a slash: not a route either
				rows = append(rows, bad{line: method + " " + strings.Replace(path, "orders", "", 1), status: 404, code: "route_not_found"})
			}
			rows = append(rows, bad{line: method + " " + strings.Replace(path, "orders", "../x", 1), status: 404, code: "route_not_found"})
		}
	}
	for path := range methods {
		for _, m := range []string{"HEAD", "OPTIONS", "TRACE", "PUT", "CONNECT", "post", "NOPE"} {
			rows = append(rows, bad{line: m + " " + path, status: 405, code: "method_not_allowed"})
		}
	}
	return rows
}

// later tells whether a route is one of a later release: it answers 501 before it
// looks at names, parameters or bodies.
func later(t *testing.T, addr, route string) bool {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	path = strings.NewReplacer("{topic}", "nobody", "{id}", "nobody", "{partition}", "0", "{child}", "c").Replace(path)
	resp, _, err := raw(addr, bad{line: method + " " + path}.bytes(), method)
	if err != nil {
		t.Fatalf("%s: %v", route, err)
	}
	return resp.StatusCode == 501
}

// jsonRows are bodies for the routes that take JSON.
func jsonRows(good map[string]string) (rows []bad) {
	for line, body := range good {
		for _, b := range []string{
			`{`, `{"`, `nul`, `[]`, `5`, `"x"`, `null`, body + `{}`, body + `x`, "\xff" + body, body[:len(body)-1], `{"nope":1}`, `{"Name":"x"}`,
			strings.Replace(body, ":", ":null,\"z\":", 1), strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 20_000), "\x00",
			body[:len(body)-1] + "," + body[1:],
		} {
			rows = append(rows, bad{line: line, body: b, status: 400, code: "invalid_request"})
		}
		rows = append(rows,
			bad{line: line, body: body, head: "Content-Type: text/plain\r\n", status: 415, code: "unsupported_media_type"},
			bad{line: line, body: body, head: "Content-Type: application/json\r\nContent-Type: application/json\r\n", status: 415, code: "unsupported_media_type"},
		)
		if !strings.Contains(line, "/produce") {
			large := strings.Repeat(" ", 2<<20) + body
			rows = append(rows,
				bad{line: line, body: large, status: 413, code: "body_too_large"},
				bad{line: line, body: large, head: chunked, status: 413, code: "body_too_large"},
				bad{line: line, body: body, head: asGzip, status: 415, code: "unsupported_encoding"},
				bad{line: line, body: body, head: asZstd, status: 415, code: "unsupported_encoding"})
		}
	}
	return rows
}

// bombs are small bodies that grow to far more than the limit.
func bombs(t *testing.T) (gz, zs, zsNoSize string) {
	t.Helper()
	zeros := make([]byte, 1<<20)
	const times = 200
	var g, z bytes.Buffer
	gw := gzip.NewWriter(&g)
	zw, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	for range times {
		if _, err := gw.Write(zeros); err != nil {
			t.Fatal(err)
		}
		if _, err := zw.Write(zeros); err != nil {
			t.Fatal(err)
		}
	}
	if gw.Close() != nil || zw.Close() != nil {
		t.Fatal("the bombs cannot be built")
	}
	sized, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return g.String(), string(sized.EncodeAll(make([]byte, times<<20), nil)), z.String()
}

func produceRows(t *testing.T) []bad {
	const one, many = "POST /v1/topics/orders/produce", "POST /v1/topics/orders/produce/batch"
	gz, zs, zsNoSize := bombs(t)
	mib := strings.Repeat("x", 2<<20)
	rows := []bad{
		{line: one, status: 400, code: "empty_message"},
		{line: one, head: chunked, status: 400, code: "empty_message"},
		{line: one, body: mib, status: 413, code: "message_too_large"},
		{line: one, body: mib, head: chunked, status: 413, code: "message_too_large"},
		{line: many, body: `{"messages":[{"payload":"` + mib + `"}]}`, status: 413, code: "message_too_large"},
		{line: one, body: "x", head: "Content-Type: application/vnd.narad.batch\r\n", status: 415, code: "unsupported_media_type"},
		{line: one, body: "x", head: "Content-Type: t/" + strings.Repeat("x", 300) + "\r\n", status: 400, code: "invalid_request"},
		{line: one, body: "x", head: "Narad-Attr-A: 1\r\nnarad-attr-a: 2\r\n", status: 400, code: "invalid_attribute"},
		{line: one, body: "x", head: "Narad-Attr-Narad-X: 1\r\n", status: 400, code: "invalid_attribute"},
		{line: one, body: "x", head: "Narad-Attr-A: \xff\r\n", status: 400, code: "invalid_attribute"},
		{line: one + "?partition=3", body: "x", status: 400, code: "partition_out_of_range"},
		{line: one + "?partition=18446744073709551616", body: "x", status: 400, code: "invalid_request"},
		{line: one + "?key=" + strings.Repeat("k", 1025), body: "x", status: 400, code: "invalid_key"},
		{line: one + "?key=a&key=b", body: "x", status: 400, code: "invalid_request"},
		{line: one + "?key=%zz", body: "x", status: 400, code: "invalid_key"},
		{line: one + "?incarnation=0123456789abcdef", body: "x", status: 409, code: "topic_changed"},
		{line: one + "?incarnation=0123456789ABCDEF", body: "x", status: 400, code: "invalid_request"},
		{line: "POST /v1/topics/nobody/produce", body: "x", status: 404, code: "topic_not_found"},
		{line: "POST /v1/topics/nobody/produce/batch", body: "{}", status: 404, code: "topic_not_found"},
		{line: many, body: `{"messages":[]}`, status: 400, code: "invalid_batch"},
		{line: many, body: `{"messages":[{"payload":1,"payload_text":"x"}]}`, status: 400, code: "invalid_batch"},
		{line: many, body: `{"messages":[{"payload_base64":"AP8"}]}`, status: 400, code: "invalid_batch"},
		{line: many, body: `{"messages":[` + strings.Repeat(`{"payload":1},`, 1000) + `{"payload":1}]}`, status: 400, code: "batch_too_large"},
		{line: many, body: "NRB1\x01\x00\x00\x00\xff\xff\xff\xff", head: "Content-Type: application/vnd.narad.batch\r\n", status: 400, code: "batch_too_large"},
		{line: many, body: "NRB1\x01\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff", head: "Content-Type: application/vnd.narad.batch\r\n", status: 400, code: "invalid_batch"},
		{line: one, body: gz, head: asGzip, status: 413, code: "message_too_large"},
		{line: one, body: zs, head: asZstd, status: 413, code: "message_too_large"},
		{line: one, body: zsNoSize, head: asZstd, status: 413, code: "message_too_large"},
		{line: many, body: gz, head: asGzip, status: 413, code: "body_too_large"},
		{line: many, body: zs, head: asZstd, status: 413, code: "body_too_large"},
		{line: many, body: zsNoSize, head: asZstd, status: 413, code: "body_too_large"},
	}
	for _, line := range []string{one, many} {
		for _, enc := range []string{"deflate", "br", "gzip, gzip", "gzip, zstd", "nope"} {
			rows = append(rows, bad{line: line, body: "x", head: "Content-Encoding: " + enc + "\r\n", status: 415, code: "unsupported_encoding"})
		}
		for _, b := range []string{"x", gz[:20], gz[:len(gz)-4], "\x1f\x8b"} {
			rows = append(rows, bad{line: line, body: b, head: asGzip, status: 400, code: "invalid_encoding"})
		}
		for _, b := range []string{"x", "\x28\xb5\x2f\xfd", "\x28\xb5\x2f\xfd\xff\xff\xff\xff\xff"} {
			rows = append(rows, bad{line: line, body: b, head: asZstd, status: 400, code: "invalid_encoding"})
		}
	}
	// The end of a bomb is not reached: the limit comes first.
	for i, r := range rows {
		if r.body == gz[:len(gz)-4] {
			rows[i].status, rows[i].code = 413, "message_too_large"
			if r.line == many {
				rows[i].code = "body_too_large"
			}
		}
	}
	return rows
}

// readRows are bad parameters, durations and preconditions.
func readRows() (rows []bad) {
	for _, method := range []string{"GET", "POST"} {
		for _, q := range []string{
			"wait=5", "wait=-1s", "wait=1h", "wait=31s", "wait=1e3s", "wait=", "wait=0.5s", "wait=99999999999999999999s", "wait=0s&wait=0s", "wait=0s;max=1",
			"max=0", "max=1001", "max=-1", "max=x", "max_bytes=0", "max_bytes=99999999", "visibility_timeout_ms=999", "visibility_timeout_ms=43200001",
			"encoding=hex", "partition=-1", "partition=x",
		} {
			rows = append(rows, bad{line: method + " /v1/topics/orders/consume?" + q, status: 400, code: "invalid_request"})
		}
		rows = append(rows,
			bad{line: method + " /v1/topics/orders/consume?wait=0s&partition=3", status: 400, code: "partition_out_of_range"},
			bad{line: method + " /v1/topics/nobody/consume?wait=0s", status: 404, code: "topic_not_found"})
	}
	for _, q := range []string{
		"", "?partition=0&offset=-1", "?partition=0&offset=9223372036854775808", "?partition=0&since=now", "?partition=0&offset=0&since=2026-11-29T20:04:05Z",
		"?partition=0&limit=0", "?partition=0&limit=1001", "?partition=0&partition=0", "?partition=0&confirmed=1",
	} {
		rows = append(rows, bad{line: "GET /v1/topics/orders/messages" + q, status: 400, code: "invalid_request"})
	}
	for _, q := range []string{"limit=0", "limit=1001", "limit=x", "page_token=%21", "page_token=Li4vLi4", "prefix=%zz"} {
		rows = append(rows, bad{line: "GET /v1/topics?" + q, status: 400, code: "invalid_request"})
	}
	for _, e := range []string{`*`, `W/"0123456789abcdef-1"`, `"0123456789abcdef-1", "0123456789abcdef-2"`, `"x"`, `0123456789abcdef-1`, `"0123456789abcdef-01"`, `""`} {
		head := "If-Match: " + e + "\r\n"
		rows = append(rows,
			bad{line: "DELETE /v1/topics/orders", head: head, status: 400, code: "invalid_request"},
			bad{line: "PATCH /v1/topics/orders", head: head, body: `{"reroute":false}`, status: 400, code: "invalid_request"})
	}
	const stale = "If-Match: \"0123456789abcdef-1\"\r\n"
	return append(rows,
		bad{line: "DELETE /v1/topics/orders", head: stale, status: 412, code: "precondition_failed"},
		bad{line: "PATCH /v1/topics/orders", head: stale, body: `{"reroute":false}`, status: 412, code: "precondition_failed"},
		bad{line: "GET /v1/topics/orders/messages?partition=0&offset=9223372036854775807", status: 400, code: "offset_out_of_range"},
		bad{line: "GET /v1/cluster/members/nobody", status: 404, code: "member_not_found"},
		bad{line: "GET /v1/cluster/members/..%2fx", status: 404, code: "member_not_found"},
		bad{line: "POST /v1/topics", body: `{"name":"orders"}`, status: 409, code: "topic_exists"},
		bad{line: "POST /v1/topics", body: `{"name":"ORDERS"}`, status: 409, code: "topic_exists"},
	)
}

// lease takes one message and returns its handle. On a busy machine the message comes late,
// and a topic that was just created is not served yet.
func lease(t *testing.T, base, topic string) string {
	t.Helper()
	if status, body := call(t, "POST", base+"/v1/topics/"+topic+"/produce", "leased"); status != 202 {
		t.Fatalf("produce: %d %s", status, body)
	}
	var status int
	var body string
	if err := harness.Until(t.Context(), 30*time.Second, func() bool {
		status, body = call(t, "POST", base+"/v1/topics/"+topic+"/consume?wait=5s", "")
		return status != 204 && status != 503
	}); err != nil {
		t.Fatalf("nothing can be leased: %d %s", status, body)
	}
	var m struct {
		Handle string `json:"receipt_handle"`
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil || status != 200 {
		t.Fatalf("consume: %d %s (%v)", status, body, err)
	}
	return m.Handle
}

// handleRows spoil a live handle in every field, and try another topic's.
func handleRows(t *testing.T, good, other string) (rows []bad) {
	t.Helper()
	bytes37, err := base64.RawURLEncoding.DecodeString(good)
	if err != nil || len(bytes37) != 37 {
		t.Fatalf("handle %q: %d bytes, %v", good, len(bytes37), err)
	}
	edited := func(at int, x byte) string {
		b := slices.Clone(bytes37)
		b[at] ^= x
		return base64.RawURLEncoding.EncodeToString(b)
	}
	wrong := []string{
		"", "x", good[:49], good[:25], good + "A", good + strings.Repeat("A", 78), strings.Repeat("A", 4000), good[:49] + "*", good[:49] + "%20", "%00" + good[1:],
		edited(0, 1), edited(0, 0xff), edited(1, 0x80), edited(5, 0x80), // version, signs of partition and offset
		good[:49] + string(rune(good[49]^1)), // a second spelling of the same bytes, or no base64url
	}
	lost := []string{other, edited(4, 1), edited(1, 0x40), edited(12, 1), edited(5, 0x40), edited(16, 1), edited(17, 1), edited(24, 1), edited(25, 1), edited(36, 1)}
	for _, op := range []string{"ack?", "nack?", "extend?visibility_timeout_ms=30000&"} {
		line := "POST /v1/topics/orders/" + op + "receipt_handle="
		for _, h := range wrong {
			rows = append(rows, bad{line: line + h, status: 400, code: "invalid_receipt_handle"})
		}
		for _, h := range lost {
			rows = append(rows, bad{line: line + h, status: 410, code: "lease_lost"})
		}
		rows = append(rows,
			// An epoch that the node has not heard of may be one that it will: it cannot judge.
			bad{line: line + edited(13, 0x80), status: 503, code: "partition_unavailable"},
			bad{line: line + good, body: `{"receipt_handles":["x"]}`, status: 400, code: "invalid_request"},
			bad{line: line + good + "&receipt_handle=" + good, status: 400, code: "invalid_request"})
	}
	return append(rows,
		bad{line: "POST /v1/topics/orders/extend?receipt_handle=" + good, status: 400, code: "invalid_request"},
		bad{line: "POST /v1/topics/orders/extend?visibility_timeout_ms=999&receipt_handle=" + good, status: 400, code: "invalid_request"},
		bad{line: "POST /v1/topics/orders/nack?delay_ms=43200001&receipt_handle=" + good, status: 400, code: "invalid_request"},
		bad{line: "POST /v1/topics/orders/ack?delay_ms=1&receipt_handle=" + good, status: 400, code: "invalid_request"},
		bad{line: "POST /v1/topics/orders/ack", body: `{"receipt_handles":[` + strings.Repeat(`"x",`, 1000) + `"x"]}`, status: 400, code: "invalid_request"},
		bad{line: "POST /v1/topics/other/ack?receipt_handle=" + good, status: 410, code: "lease_lost"})
}

// TestBadInput: every route refuses what is wrong with the right problem, and
// everything works afterwards in the same processes.
func TestBadInput(t *testing.T) {
	c := harness.Start(t, harness.Options{Voters: 1, StorageNodes: 1, Gateways: 1})
	base := c.URLs()[0]
	addr := strings.TrimPrefix(base, "http://")
	for _, name := range []string{"orders", "other"} {
		// The leases have to outlive all that is tried with them.
		if status, body := call(t, "POST", base+"/v1/topics", `{"name":"`+name+`","visibility_timeout_ms":600000}`); status != 201 {
			t.Fatalf("create: %d %s", status, body)
		}
	}
	before := now(t, c)
	good, other := lease(t, base, "orders"), lease(t, base, "other")
	routes := slices.DeleteFunc(everyRoute(t, base), func(r string) bool { return later(t, addr, r) })
	if len(routes) < 18 {
		t.Fatalf("only %d routes are built: %v", len(routes), routes)
	}
	rows := slices.Concat(routeRows(routes), jsonRows(map[string]string{
		"POST /v1/topics":                      `{"name":"fresh"}`,
		"PATCH /v1/topics/orders":              `{"reroute":false}`,
		"POST /v1/topics/orders/produce/batch": `{"messages":[{"payload":1}]}`,
		"POST /v1/topics/orders/ack":           `{"receipt_handles":["x"]}`,
		"POST /v1/topics/orders/nack":          `{"receipt_handles":["x"],"delay_ms":0}`,
		"POST /v1/topics/orders/extend":        `{"receipt_handles":["x"],"visibility_timeout_ms":30000}`,
	}), produceRows(t), readRows(), handleRows(t, good, other))
	for _, name := range append([]string{"", "../x", "a/b", "é", strings.Repeat("x", 201), "t.stale-0123456789abcdef"}, "a\\u0000b") {
		rows = append(rows, bad{line: "POST /v1/topics", body: `{"name":"` + name + `"}`, status: 400, code: "invalid_topic_name"})
	}
	for _, r := range rows {
		r.check(t, addr)
	}
	t.Logf("%d bad requests to %d routes", len(rows), len(routes))
	if status, body := call(t, "POST", base+"/v1/topics/orders/ack?receipt_handle="+good, ""); status != 204 {
		t.Errorf("the untouched handle after all its forgeries: %d %s", status, body)
	}
	stillServes(t, c, before)
}
