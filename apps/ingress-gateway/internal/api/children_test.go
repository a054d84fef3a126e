package api_test

import (
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/problem"
)

// TestChildren: the documents of api.md, section 9, over the life of two children.
func TestChildren(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("events", 2)
	tt.broker.Put("c", 1)
	row := func(partial, cursors string) string {
		lag, due, dropped := "6", "5", "2"
		if partial == "true" {
			lag, due, dropped = "0", "0", "0"
		}
		return `{"child":"c","incarnation":"3f9a17c4e2b08d51","delay_ms":5000,"attach_epoch":"0000000000000001","attached_at":"2026-11-29T20:04:05.123Z",` +
			`"lag_messages":` + lag + `,"due_lag_ms":` + due + `,"dropped_messages":` + dropped + `,"partial":` + partial + `,"cursors":[` + cursors + `]}`
	}
	list := func(rows string) string {
		return `{"parent":"events","incarnation":"3f9a17c4e2b08d51","children":[` + rows + `]}`
	}
	tt.want(tt.do("GET /v1/topics/events/children", ""), 200, list(""))
	tt.want(tt.do("POST /v1/topics/events/children", `{"child":"c","delay_ms":5000}`), 201, row("true", ""))
	tt.want(tt.do("GET /v1/topics/events/children", ""), 200, list(row("false",
		`{"partition":0,"node":"storage-1","next_offset":7,"high_watermark":10,"due_lag_ms":5},`+
			`{"partition":1,"node":"storage-1","next_offset":7,"high_watermark":10,"due_lag_ms":5}`)))
	for name, want := range map[string][]string{
		"events": {`"role":"parent"`, `"children":["c"]`, `"parent":null`},
		"c":      {`"role":"delay_child"`, `"parent":"events","delay_ms":5000`, `"children":[]`},
	} {
		a := tt.do("GET /v1/topics/"+name, "")
		for _, w := range want {
			if !strings.Contains(a.body, w) {
				t.Errorf("%s lacks %s: %s", name, w, a.body)
			}
		}
	}
	for _, line := range []string{"POST /v1/topics/c/produce", "POST /v1/topics/c/produce?ack=committed"} {
		if a := tt.do(line, "x"); a.Status != 409 || a.code(t) != "role_conflict" || a.field(t, "parent") != "events" {
			t.Errorf("%s to a delay child: %d %s", line, a.Status, a.body)
		}
	}
	if a := tt.do("POST /v1/topics/c/produce/batch", `{"messages":[{"payload":1}]}`); a.code(t) != "role_conflict" {
		t.Errorf("a batch to a delay child: %d %s", a.Status, a.body)
	}
	tt.want(tt.do("DELETE /v1/topics/events/children/c", ""), 204, "")
	if a := tt.do("POST /v1/topics/c/produce", "x"); a.Status != 202 {
		t.Errorf("once detached: %d %s", a.Status, a.body)
	}
	a := tt.do("POST /v1/topics", `{"name":"new","parent":"events","delay_ms":0}`)
	if a.Status != 201 || a.field(t, "role") != "child" || a.field(t, "partitions") != float64(2) || a.field(t, "delay_ms") != float64(0) {
		t.Errorf("created with a parent: %d %s", a.Status, a.body)
	}
	if a := tt.do("POST /v1/topics/new/produce", "x"); a.Status != 202 {
		t.Errorf("a plain child takes produce: %d %s", a.Status, a.body)
	}
}

func childRows() []codeRow {
	attach := "POST /v1/topics/orders/children"
	return []codeRow{
		{name: "attach nothing", line: attach, body: `{}`, status: 400, code: "invalid_topic_name"},
		{name: "attach a name that is none", line: attach, body: `{"child":"a/b"}`, status: 400, code: "invalid_topic_name"},
		{name: "attach nobody", line: attach, body: `{"child":"nobody"}`, status: 404, code: "topic_not_found"},
		{name: "attach to nobody", line: "POST /v1/topics/nobody/children", body: `{"child":"orders"}`, status: 404, code: "topic_not_found"},
		{name: "attach negative", line: attach, body: `{"child":"orders","delay_ms":-1}`, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "attach for two years", line: attach, body: `{"child":"orders","delay_ms":63072000000}`, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "attach by half a ms", line: attach, body: `{"child":"orders","delay_ms":0.5}`, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "attach with more", line: attach, body: `{"child":"orders","delay":5}`, status: 400, code: "invalid_request", parameter: "delay"},
		{name: "attach without a leader", line: attach, body: `{"child":"orders"}`, fail: "Attach", failWith: problem.New(problem.NoMetastoreLeader, "x"), status: 503, code: "no_metastore_leader"},
		{name: "attach while a partition is down", line: attach, body: `{"child":"orders"}`, fail: "Attach", failWith: problem.New(problem.PartitionUnavailable, "x"), status: 503, code: "partition_unavailable"},
		{name: "attach to itself", line: attach, body: `{"child":"orders"}`, fail: "Attach", failWith: problem.New(problem.RoleConflict, "x"), status: 409, code: "role_conflict"},
		{name: "detach what is not attached", line: "DELETE /v1/topics/orders/children/c", status: 404, code: "child_not_found"},
		{name: "detach a name that is none", line: "DELETE /v1/topics/orders/children/%2", status: 400, code: "invalid_topic_name"},
		{name: "create under nobody", line: "POST /v1/topics", body: `{"name":"n","parent":"nobody"}`, status: 404, code: "topic_not_found"},
		{name: "create under a name that is none", line: "POST /v1/topics", body: `{"name":"n","parent":"a/b"}`, status: 400, code: "invalid_topic_name"},
		{name: "delay without a parent", line: "POST /v1/topics", body: `{"name":"n","delay_ms":5}`, status: 400, code: "invalid_request", parameter: "delay_ms"},
		{name: "child of another size", line: "POST /v1/topics", body: `{"name":"n","parent":"orders","partitions":1000}`, status: 400, code: "invalid_request", parameter: "partitions"},
	}
}
