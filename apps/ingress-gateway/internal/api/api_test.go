package api_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/topic"
)

var errSecret = errors.New("dial 10.0.0.7: secret")

const goldenTopic = `{"name":"orders","incarnation":"3f9a17c4e2b08d51","version":1,"created_at":"2026-11-29T20:04:05.123Z","role":"standalone",` +
	`"partitions":2,"replication_factor":1,"retention_ms":604800000,"retention_bytes":0,"visibility_timeout_ms":30000,` +
	`"max_in_flight_per_partition":1024,"max_acked_ahead_per_partition":100000,"reroute":true,"max_deliveries":0,` +
	`"dead_letter_topic":null,"parent":null,"delay_ms":null,"children":[],"schema_version":null`

func (t *tester) want(a *answer, status int, body string) {
	t.Helper()
	if a.Status != status || a.body != body {
		t.Fatalf("%d %s\nwant %d %s", a.Status, a.body, status, body)
	}
}

func TestGoldenAnswers(t *testing.T) {
	tt := newTester(t)
	a := tt.do("POST /v1/topics", `{"name":"orders","partitions":2,"delay_ms":0,"max_deliveries":0}`)
	tt.want(a, 201, goldenTopic+"}")
	if a.Location != "/v1/topics/orders" || a.ETag != `"3f9a17c4e2b08d51-1"` {
		t.Errorf("Location %q, ETag %q", a.Location, a.ETag)
	}
	a = tt.do("POST /v1/topics", `{"name":"orders"}`)
	var conflict struct{ Topic json.RawMessage }
	if err := json.Unmarshal([]byte(a.body), &conflict); err != nil || string(conflict.Topic) != goldenTopic+"}" {
		t.Errorf("the existing topic is not carried: %s", a.body)
	}
	tt.want(tt.do("GET /v1/topics/orders", ""), 200, goldenTopic+`,"backlog":0,"in_flight":2,"oldest_unsettled_ms":81234,"bytes":100,"partial":true,`+
		`"partition_details":[{"index":0,"status":"ok","leader":"storage-1","leader_epoch":7,"config_version":3,`+
		`"replicas":[{"id":"storage-1","log_end":0,"lag":0,"in_sync":true}],"log_start":0,"high_watermark":0,"log_end":0,"frontier":0,"settled_ahead":0,`+
		`"in_flight":2,"oldest_unsettled_ms":81234,"dropped_unsettled":0,"bytes":100},`+
		`{"index":1,"status":"no_leader","leader":null,"leader_epoch":7,"config_version":3,"replicas":[],"log_start":null,"high_watermark":null,`+
		`"log_end":null,"frontier":null,"settled_ahead":null,"in_flight":null,"oldest_unsettled_ms":null,"dropped_unsettled":null,"bytes":null}]}`)
	a = tt.do("POST /v1/topics/orders/produce?key=k1&partition=1", `{"a":1}`, "Content-Type", "application/json", "Narad-Attr-Trace-Id", "a1")
	tt.want(a, 202, `{"id":"9c0f3b7a11d2e4f5-2","incarnation":"3f9a17c4e2b08d51"}`)
	message := `{"id":"9c0f3b7a11d2e4f5-2","topic":"orders","partition":1,"offset":0,"key":"k1","payload":{"a":1},"content_type":"application/json",` +
		`"attributes":{"trace-id":"a1"},"committed_at":"2026-11-29T20:04:05.123Z"`
	a = tt.do("POST /v1/topics/orders/consume?wait=0s", "")
	handle := "AQAAAAEAAAAAAAAAAAAAAAc_mhfE4rCNUQAAAAAAAAAAAAAAAw"
	tt.want(a, 200, message+`,"delivery_count":1,"lease_ms":30000,"receipt_handle":"`+handle+`"}`)
	if !a.NoStore || !a.Leased {
		t.Errorf("no-store %v, leased %v", a.NoStore, a.Leased)
	}
	tt.want(tt.do("POST /v1/topics/orders/consume?wait=0s&max=1", ""), 204, "")
	tt.want(tt.do("GET /v1/topics/orders/messages?partition=1", ""), 200,
		`{"incarnation":"3f9a17c4e2b08d51","log_start":0,"next_offset":1,"high_watermark":1,"messages":[`+message+`}]}`)
	tt.want(tt.do("POST /v1/topics/orders/extend?visibility_timeout_ms=60000&receipt_handle="+handle, ""), 204, "")
	tt.want(tt.do("POST /v1/topics/orders/ack", `{"receipt_handles":["`+handle+`","x","`+handle+`"]}`), 200,
		`{"results":[{"status":204},{"status":400,"code":"invalid_receipt_handle"},{"status":410,"code":"lease_lost"}]}`)
	tt.want(tt.do("GET /v1/info", ""), 200, `{"api":"v1","release":"0.1.0","cluster_id":"5d1c9a70e2f84b36a1c0d4e8f7b6a592","node_id":"gateway-1",`+
		`"limits":{"max_message_bytes":1048576,"max_batch_messages":1000,"max_batch_bytes":16777216,"max_wait_ms":30000},"features":[]}`)
	tt.want(tt.do("GET /v1/cluster/quorum", ""), 200, `{"leader_id":null,"leader_epoch":0,"leader_epoch_start":0,"high_watermark":0,"majority":2,`+
		`"committed_by":[],"answered_by":"gateway-1","servers":[]}`)
	tt.want(tt.do("DELETE /v1/topics/orders", "", "If-Match", `"3f9a17c4e2b08d51-1"`), 204, "")
}

func TestMembers(t *testing.T) {
	tt := newTester(t)
	tt.broker.SetMembers(api.MembersView{
		ClusterID: "c1", LeaderID: "voter-1", AgesMS: map[string]int64{"storage-1": 1200},
		LedBy: map[string]int{"storage-1": 4}, ReplicasOn: map[string]int{"storage-1": 12},
		Members: []topic.Member{
			{ID: "voter-1", Role: topic.RoleVoter, Status: topic.StatusAlive, RPCAddr: "voter-1:7944", Release: "0.1.0"},
			{ID: "storage-1", Role: topic.RoleStorage, Status: topic.StatusAlive, RPCAddr: "storage-1:7944", Zone: "a", Release: "0.1.0", DiskUsedPercent: 41},
		},
	})
	storage := `{"id":"storage-1","role":"storage-node","status":"alive","draining":false,"voter":false,"leader":false,"address":"storage-1:7944","zone":"a",` +
		`"release":"0.1.0","heartbeat_age_ms":1200,"partitions_led":4,"replicas":12,"wal_backlog_records":null,"disk_used_percent":41,"blocked":[]`
	tt.want(tt.do("GET /v1/cluster/members", ""), 200, `{"cluster_id":"c1","answered_by":"gateway-1","leader_id":"voter-1","as_of":"2026-11-29T20:04:05.123Z","stale":false,`+
		`"members":[`+storage+`},{"id":"voter-1","role":"metastore-voter","status":"alive","draining":false,"voter":true,"leader":true,"address":"voter-1:7944",`+
		`"zone":null,"release":"0.1.0","heartbeat_age_ms":null,"partitions_led":0,"replicas":0,"wal_backlog_records":null,"disk_used_percent":0,"blocked":[]}],"tombstones":[]}`)
	tt.want(tt.do("GET /v1/cluster/members/storage%2D1", ""), 200, storage+`,"decommission":null}`)
}

func TestPaging(t *testing.T) {
	tt := newTester(t)
	for i := range 5 {
		tt.broker.Put(fmt.Sprintf("p%d", i), 1)
	}
	tt.broker.Put("other", 1)
	var names []string
	token := ""
	for pages := 0; ; pages++ {
		a := tt.do("GET /v1/topics?limit=2&prefix=p&page_token="+token, "")
		var page struct {
			Topics []struct{ Name string }
			Next   *string `json:"next_page_token"`
		}
		if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.Status != 200 {
			t.Fatalf("%d %s: %v", a.Status, a.body, err)
		}
		for _, x := range page.Topics {
			names = append(names, x.Name)
		}
		if page.Next == nil {
			if pages != 2 {
				t.Errorf("%d pages", pages+1)
			}
			break
		}
		token = *page.Next
	}
	if got := strings.Join(names, " "); got != "p0 p1 p2 p3 p4" {
		t.Errorf("got %s", got)
	}
}

func TestPatch(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 2)
	a := tt.do("PATCH /v1/topics/orders", `{"retention_ms":3600000,"reroute":false,"partitions":2,"schema":null,"dead_letter_topic":null}`,
		"Content-Type", "application/merge-patch+json", "If-Match", `"3f9a17c4e2b08d51-1"`)
	if a.Status != 200 || a.ETag != `"3f9a17c4e2b08d51-2"` || a.field(t, "retention_ms") != 3600000.0 || a.field(t, "reroute") != false {
		t.Fatalf("%d %s %s", a.Status, a.ETag, a.body)
	}
	if a = tt.do("PATCH /v1/topics/orders", `{"reroute":true,"retention_ms":1}`); a.Status != 400 {
		t.Fatalf("%d %s", a.Status, a.body)
	}
	if a = tt.do("GET /v1/topics/orders", ""); a.field(t, "reroute") != false || a.field(t, "version") != 2.0 {
		t.Errorf("a refused change left a trace: %s", a.body)
	}
}

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

func TestRequestID(t *testing.T) {
	tt := newTester(t)
	if a := tt.do("GET /v1/nothing", "", "X-Request-Id", "own-1.A_b"); a.RequestID != "own-1.A_b" || a.field(t, "request_id") != "own-1.A_b" {
		t.Errorf("%q in %s", a.RequestID, a.body)
	}
	seen := map[string]bool{}
	for _, own := range []string{"", "with space", strings.Repeat("x", 65), "a\r\nb"} {
		a := tt.do("GET /v1/info", "", "X-Request-Id", own)
		if len(a.RequestID) != 16 || seen[a.RequestID] {
			t.Errorf("id %q for %q", a.RequestID, own)
		}
		seen[a.RequestID] = true
	}
}

func TestLeasesGoBackWhenTheAnswerDoesNot(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	tt.do("POST /v1/topics/orders/produce", "x")
	req := api.Request{Method: []byte("POST"), Path: []byte("/v1/topics/orders/consume"), Query: []byte("wait=0s"), Headers: header{}}
	var resp api.Response
	tt.api.Serve(&req, &resp)
	if resp.Status != 200 || !resp.Leased {
		t.Fatalf("%d %s", resp.Status, resp.Body)
	}
	resp.Finish(false)
	if d := <-tt.broker.Released; d.Offset != 0 {
		t.Errorf("released %+v", d)
	}
	if a := tt.do("POST /v1/topics/orders/consume?wait=0s", ""); a.Status != 200 {
		t.Errorf("not to be had again: %d", a.Status)
	}
	if len(tt.broker.Released) != 0 {
		t.Error("a written answer's lease was released")
	}
}

func TestDrain(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	done := make(chan *answer)
	go func() { done <- tt.do("POST /v1/topics/orders/consume?wait=30s", "") }()
	<-tt.broker.Parked
	tt.api.BeginDrain()
	if a := <-done; a.Status != 204 || !a.Close {
		t.Errorf("parked: %d, close %v", a.Status, a.Close)
	}
	if a := tt.do("POST /v1/topics/orders/produce", "x"); a.Status != 202 || !a.Close {
		t.Errorf("produce: %d, close %v", a.Status, a.Close)
	}
	if a := tt.do("POST /v1/topics/orders/consume?wait=30s", ""); a.Status != 200 || !a.Close {
		t.Errorf("what is there is served: %d", a.Status)
	}
	if a := tt.do("POST /v1/topics/orders/consume?wait=30s", ""); a.Status != 204 {
		t.Errorf("nobody is parked: %d", a.Status)
	}
}

// A dry run has no effect on any route, and stops only where the body is wanted.
func TestDryRun(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	tt.do("POST /v1/topics/orders/produce", "x")
	dry := func(line string, length int64, h ...string) *answer { return tt.serve(line, nil, length, true, h) }
	for line, length := range map[string]int64{
		"POST /v1/topics/orders/produce": 5, "POST /v1/topics/orders/produce/batch": -1, "POST /v1/topics": 10,
		"POST /v1/topics/orders/consume?wait=0s": 0, "DELETE /v1/topics/orders": 0, "POST /v1/topics/orders/consume": -1,
		"POST /v1/topics/orders/ack": 10, "PATCH /v1/topics/orders": 10,
	} {
		if a := dry(line, length); !a.WantsBody || a.Status != 0 {
			t.Errorf("%s: %d %s", line, a.Status, a.body)
		}
	}
	for line, want := range map[string]int{
		"POST /v1/topics/nobody/produce": 404, "POST /v1/topics/a%2fb/produce": 400, "POST /v1/topics/orders/produce?x=": 400,
	} {
		if a := dry(line, 5); a.WantsBody || a.Status != want {
			t.Errorf("%s: %d %s", line, a.Status, a.body)
		}
	}
	if a := dry("POST /v1/topics/orders/produce", 1<<21); a.Status != 413 {
		t.Errorf("too long: %d", a.Status)
	}
	if a := tt.do("POST /v1/topics/orders/consume?wait=0s", ""); a.Status != 200 {
		t.Errorf("a dry run had an effect: %d", a.Status)
	}
}

func TestBodyMemoryBudget(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	stop := errors.New("stop")
	// Each holder has sent half of a batch of 16 MiB and waits.
	holders := make([]*blockedBody, 0, 8)
	results := make(chan *answer, 8)
	var overloaded *answer
	for range 8 {
		b := &blockedBody{left: 16 << 20, block: make(chan struct{}), blocked: make(chan struct{}), err: stop}
		holders = append(holders, b)
		go func() {
			req := api.Request{Method: []byte("POST"), Path: []byte("/v1/topics/orders/produce/batch"), Headers: header{}, ContentLength: 16 << 20, Body: b}
			var resp api.Response
			tt.api.Serve(&req, &resp)
			a := &answer{Response: resp, body: string(resp.Body)}
			resp.Finish(true)
			results <- a
		}()
		select {
		case <-b.blocked:
			continue
		case overloaded = <-results:
		}
		break
	}
	if overloaded == nil || overloaded.Status != 503 || overloaded.code(t) != "overloaded" || !overloaded.Close {
		t.Fatalf("128 MiB of bodies fitted into 64 MiB: %+v", overloaded)
	}
	for _, b := range holders {
		close(b.block)
	}
	for range len(holders) - 1 {
		if a := <-results; a.Status != 400 {
			t.Errorf("%d %s", a.Status, a.body)
		}
	}
	if a := tt.do("POST /v1/topics/orders/produce", strings.Repeat("x", 1<<20)); a.Status != 202 {
		t.Errorf("memory was not given back: %d %s", a.Status, a.body)
	}
}

// blockedBody gives left bytes but the last, then waits, then fails.
type blockedBody struct {
	left           int
	block, blocked chan struct{}
	err            error
}

func (b *blockedBody) Read(p []byte) (int, error) {
	if b.left == 1 {
		close(b.blocked)
		<-b.block
		return 0, b.err
	}
	n := min(len(p), b.left-1)
	b.left -= n
	return n, nil
}

func TestMetrics(t *testing.T) {
	b := fakebroker.New()
	deps := b.Deps()
	reg := prometheus.NewRegistry()
	deps.Registry = reg
	a, err := api.New(api.Config{}, deps)
	if err != nil {
		t.Fatal(err)
	}
	tt := &tester{TB: t, api: a, broker: b}
	b.Put("orders", 1)
	tt.do("POST /v1/topics/orders/produce", "x")
	tt.do("POST /v1/topics/orders/produce", "x")
	tt.do("POST /v1/topics/orders/produce", "")
	tt.do("BREW /v1/coffee/"+strings.Repeat("x", 100), "")
	want := `# HELP narad_http_requests_total Requests answered on the client port, by route pattern, method and status.
# TYPE narad_http_requests_total counter
narad_http_requests_total{code="202",method="POST",route="/v1/topics/{topic}/produce"} 2
narad_http_requests_total{code="400",method="POST",route="/v1/topics/{topic}/produce"} 1
narad_http_requests_total{code="404",method="other",route=""} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

func TestBinaryConsume(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	body, err := batch.Encode(nil, &batch.Batch{Kind: batch.Produce, Records: []batch.Record{
		{Key: []byte("k"), ContentType: []byte("text/plain"), Attrs: []batch.Attr{{Name: []byte("a"), Value: []byte("1")}}, Partition: batch.NoPartition, Payload: []byte("x")},
		{Partition: 0, Payload: []byte{0, 255}},
	}}, true)
	if err != nil {
		t.Fatal(err)
	}
	tt.want(tt.do(batches, string(body), "Content-Type", batch.ContentType), 202, `{"accepted":2}`)
	a := tt.do(replay+"?partition=0", "", "Accept", "text/html, "+batch.ContentType)
	got, err := batch.Decode([]byte(a.body))
	if err != nil || got.Kind != batch.Replay || len(got.Records) != 2 || got.Meta.HighWatermark != 2 || got.Meta.Incarnation != 0x3f9a17c4e2b08d51 {
		t.Fatalf("replay: %d %+v, %v", a.Status, got, err)
	}
	a = tt.do(consume+"?wait=0s&max=10", "", "Accept", batch.ContentType)
	got, err = batch.Decode([]byte(a.body))
	if err != nil || a.ContentType != batch.ContentType || len(got.Records) != 2 {
		t.Fatalf("consume: %d %+v, %v", a.Status, got, err)
	}
	r := got.Records[0]
	if string(r.Key) != "k" || string(r.ContentType) != "text/plain" || string(r.Attrs[0].Value) != "1" || string(r.Payload) != "x" || r.LeaseMS != 30000 {
		t.Errorf("got %+v", r)
	}
	if a := tt.do(ack+"?receipt_handle="+string(r.ReceiptHandle), ""); a.Status != 204 {
		t.Errorf("the handle does not settle: %d %s", a.Status, a.body)
	}
	for i, bad := range []struct {
		r    batch.Record
		code string
	}{
		{batch.Record{Partition: 1, Payload: []byte("x")}, "partition_out_of_range"},
		{batch.Record{Partition: 1 << 31, Payload: []byte("x")}, "partition_out_of_range"},
		{batch.Record{Partition: -1, Key: make([]byte, 1025), Payload: []byte("x")}, "invalid_key"},
		{batch.Record{Partition: -1, ContentType: []byte("a\x01"), Payload: []byte("x")}, "invalid_request"},
		{batch.Record{Partition: -1, Attrs: []batch.Attr{{Name: []byte("a_b")}}, Payload: []byte("x")}, "invalid_attribute"},
		{batch.Record{Partition: -1, Payload: make([]byte, 1<<20+1)}, "message_too_large"},
	} {
		body, err := batch.Encode(nil, &batch.Batch{Kind: batch.Produce, Records: []batch.Record{{Partition: -1, Payload: []byte("x")}, bad.r}}, false)
		if err != nil {
			t.Fatal(err)
		}
		if a := tt.do(batches, string(body), "Content-Type", batch.ContentType); a.code(t) != bad.code || a.field(t, "index") != 1.0 {
			t.Errorf("%d: %d %s", i, a.Status, a.body)
		}
	}
}

func TestJSONBatch(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 3)
	a := tt.do(batches, `{"messages":[
		{"payload": {"b":  1,"a":[1.0e1, "\ud800"],"a":2} ,"key":"k\u0031","attributes":{"Trace-Id":"a1"}},
		{"payload_text":"pl\tain","partition":2,"content_type":"text/x"},
		{"payload_text":"t"}, {"payload":null}, {"payload":"é"},
		{"payload_base64":"AP8=","key_base64":"AAE=","partition":1}]}`)
	tt.want(a, 202, `{"accepted":6}`)
	m := tt.broker.Messages("orders", 0)
	if string(m[0].Payload) != `{"b":  1,"a":[1.0e1, "\ud800"],"a":2}` || string(m[0].Key) != "k1" || m[0].ContentType != "application/json" || m[0].Attrs[0].Name != "trace-id" {
		t.Errorf("0: %q %+v", m[0].Payload, m[0])
	}
	if string(m[1].Payload) != "t" || m[1].ContentType != "text/plain; charset=utf-8" || m[1].Key != nil || string(m[2].Payload) != "null" || string(m[3].Payload) != `"é"` {
		t.Errorf("1..3: %+v %+v %+v", m[1], m[2], m[3])
	}
	if x := tt.broker.Messages("orders", 2)[0]; string(x.Payload) != "pl\tain" || x.ContentType != "text/x" {
		t.Errorf("partition 2: %+v", x)
	}
	if x := tt.broker.Messages("orders", 1)[0]; string(x.Payload) != "\x00\xff" || string(x.Key) != "\x00\x01" || x.ContentType != "" {
		t.Errorf("partition 1: %+v", x)
	}
	for _, bad := range []struct{ message, code, parameter string }{
		{`{}`, "invalid_batch", ""},
		{`{"payload":1,"payload_text":"x"}`, "invalid_batch", ""},
		{`{"payload":1,"key":"a","key_base64":"YQ=="}`, "invalid_key", ""},
		{`{"payload_text":""}`, "empty_message", ""},
		{`{"payload_base64":""}`, "empty_message", ""},
		{`{"payload_base64":"AP8"}`, "invalid_batch", ""},
		{`{"payload_base64":"AP8_"}`, "invalid_batch", ""},
		{`{"payload_base64":"AP\n8="}`, "invalid_batch", ""},
		{`{"payload_base64":"AP9="}`, "invalid_batch", ""},
		{`{"payload":1,"key_base64":"!"}`, "invalid_key", ""},
		{`{"payload":1,"partition":3}`, "partition_out_of_range", ""},
		{`{"payload":1,"partition":-1}`, "invalid_request", "partition"},
		{`{"payload":1,"key":null}`, "invalid_request", "key"},
		{`{"payload":1,"Key":"a"}`, "invalid_request", "Key"},
		{`{"payload":1,"payload":1}`, "invalid_request", "payload"},
		{`{"payload_text":"\ud800"}`, "invalid_request", "payload_text"},
		{`{"payload":1,"attributes":{"a":"1","A":"2"}}`, "invalid_attribute", ""},
		{`{"payload":1,"attributes":{"a":1}}`, "invalid_request", "attributes"},
		{`{"payload":1,"attributes":{"a":null}}`, "invalid_request", "attributes"},
		{`{"payload":1,"attributes":{"narad-x":"1"}}`, "invalid_attribute", ""},
		{`{"payload":1,"attributes":{"a":"x "}}`, "invalid_attribute", ""},
		{`{"payload":1,"content_type":"é"}`, "invalid_request", "content_type"},
		{`{"payload":"` + strings.Repeat("x", 1<<20) + `"}`, "message_too_large", ""},
		{`5`, "invalid_request", "messages"},
	} {
		a := tt.do(batches, `{"messages":[{"payload":1},`+bad.message+`]}`)
		if a.code(t) != bad.code || a.field(t, "index") != 1.0 || bad.parameter != "" && a.field(t, "parameter") != bad.parameter {
			t.Errorf("%.60s: %d %s", bad.message, a.Status, a.body)
		}
	}
	if n := len(tt.broker.Messages("orders", 0)); n != 4 {
		t.Errorf("a refused batch left %d messages", n-4)
	}
}
