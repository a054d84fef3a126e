package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
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

func TestStatusAndForget(t *testing.T) {
	tt := newTester(t)
	tt.want(tt.do("GET /v1/cluster/status", ""), 200, `{"status":"degraded","as_of":"2026-11-29T20:04:05.123Z","problems":[`+
		`{"code":"member_dead","severity":"page","subject":"storage-1","since":"2026-11-29T20:04:05.123Z","detail":"silent","do":"start it"},`+
		`{"code":"quorum_at_risk","severity":"page","subject":"metastore","since":null,"detail":"one more","do":"start one"}]}`)
	tt.want(tt.do("POST /v1/cluster/members/gh%6fst/forget", ""), 204, "")
	if a := tt.do("GET /v1/cluster/backup", ""); a.Status != 200 || a.body != "a backup" || a.ContentType != "application/vnd.narad.backup" || !a.NoStore {
		t.Errorf("backup: %d %q as %q", a.Status, a.body, a.ContentType)
	}
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
		b := &blockedBody{left: 16 << 20, block: make(chan struct{}), blocked: make(chan struct{}, 1), err: stop}
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

// Bodies that are announced and do not come must not use up the budget.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 1)
	const holders = 100 // 1.6 GB announced
	b := &blockedBody{left: 1, block: make(chan struct{}), blocked: make(chan struct{}, holders), err: errors.New("stop")}
	results := make(chan int)
	for range holders {
		go func() {
			req := api.Request{Method: []byte("POST"), Path: []byte("/v1/topics/orders/produce/batch"), Headers: header{}, ContentLength: 16 << 20, Body: b}
			var resp api.Response
			tt.api.Serve(&req, &resp)
			status := resp.Status
			resp.Finish(true)
			results <- status
		}()
	}
	for range holders {
		<-b.blocked
	}
	if a := tt.do("POST /v1/topics/orders/produce", strings.Repeat("x", 1<<20)); a.Status != 202 {
		t.Errorf("%d %s", a.Status, a.body)
	}
	close(b.block)
	for range holders {
		if status := <-results; status != 400 {
			t.Errorf("a broken body got %d", status)
		}
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
		b.blocked <- struct{}{}
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
