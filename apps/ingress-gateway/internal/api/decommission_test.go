package api_test

import (
	"strings"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
	"github.com/narad-mq/narad/libs/problem"
)

// TestDecommission: the documents of api.md, section 9.
func TestDecommission(t *testing.T) {
	tt := newTester(t)
	tt.want(tt.do("POST /v1/cluster/members/storage-1/decommission", ""), 202, `{"id":"storage-1","draining":true}`)
	tt.want(tt.do("POST /v1/cluster/members/storage-1/decommission?dry_run=true", ""), 200,
		`{"id":"storage-1","would_decommission":false,"reasons":[{"code":"below_replication_factor","message":"too few","topics":["pay"],"topic_count":1}],`+
			`"partitions_led":4,"replicas":12,"wal_backlog_records":0}`)
	tt.want(tt.do("POST /v1/cluster/members/storage-1/decommission?dry_run=true&accept_data_loss=true", ""), 200,
		`{"id":"storage-1","would_decommission":true,"reasons":[],"partitions_led":4,"replicas":12,"wal_backlog_records":0}`)
	tt.want(tt.do("DELETE /v1/cluster/members/storage-1/decommission", ""), 204, "")
	tt.do("POST /v1/topics", `{"name":"resettable"}`)
	tt.want(tt.do("POST /v1/topics/resettable/partitions/0/reset?accept_data_loss=true", ""), 202, "")
}

// A gateway that is no member any more knows a cluster that stands still: it serves
// nothing by that, and sends its clients to another one.
func TestRemovedGatewayRefuses(t *testing.T) {
	b := fakebroker.New()
	deps := b.Deps()
	removed := false
	deps.Removed = func() bool { return removed }
	a, err := api.New(api.Config{NodeID: "gateway-1", Release: "0.1.0"}, deps)
	if err != nil {
		t.Fatal(err)
	}
	tt := &tester{TB: t, api: a, broker: b}
	tt.do("POST /v1/topics", `{"name":"orders"}`)
	lines := []string{
		"GET /v1/topics/orders/messages", "GET /v1/topics/orders", "GET /v1/topics", "GET /v1/cluster/members", "POST /v1/topics", "DELETE /v1/topics/orders",
	}
	for _, line := range lines[:4] {
		if got := tt.do(line, ""); got.Status == 503 {
			t.Fatalf("%s of a member: %d", line, got.Status)
		}
	}
	removed = true
	for _, line := range lines {
		got := tt.do(line, "")
		if got.Status != 503 || !got.Close || !strings.Contains(got.body, `"code":"draining"`) {
			t.Errorf("%s: %d, close %v, %s", line, got.Status, got.Close, got.body)
		}
	}
}

func decommissionRows() []codeRow {
	const one, reset = "POST /v1/cluster/members/storage-1/decommission", "POST /v1/topics/orders/partitions/0/reset"
	return []codeRow{
		{name: "decommission unsafe", line: one, fail: "Decommission", failWith: problem.New(problem.DecommissionUnsafe, "x"), status: 409, code: "decommission_unsafe"},
		{name: "decommission nobody", line: one, fail: "Decommission", failWith: problem.New(problem.MemberNotFound, "x"), status: 404, code: "member_not_found"},
		{name: "decommission perhaps", line: one + "?dry_run=maybe", status: 400, code: "invalid_request", parameter: "dry_run"},
		{name: "accept perhaps", line: one + "?accept_data_loss=1", status: 400, code: "invalid_request", parameter: "accept_data_loss"},
		{name: "decommission of no name", line: "POST /v1/cluster/members/%2/decommission", status: 404, code: "member_not_found"},
		{name: "cancel of nothing", line: "DELETE /v1/cluster/members/storage-1/decommission", fail: "CancelDecommission", failWith: problem.New(problem.DecommissionUnsafe, "x"), status: 409, code: "decommission_unsafe"},
		{name: "reset unsaid", line: reset, status: 400, code: "invalid_request", parameter: "accept_data_loss"},
		{name: "reset refused", line: reset + "?accept_data_loss=false", status: 400, code: "invalid_request", parameter: "accept_data_loss"},
		{name: "reset what is not lost", line: reset + "?accept_data_loss=true", fail: "ResetPartition", failWith: problem.New(problem.PreconditionFailed, "x"), status: 412, code: "precondition_failed"},
		{name: "reset no partition", line: "POST /v1/topics/orders/partitions/x/reset?accept_data_loss=true", status: 400, code: "invalid_request", parameter: "partition"},
		{name: "reset beyond", line: "POST /v1/topics/orders/partitions/900/reset?accept_data_loss=true", status: 400, code: "partition_out_of_range"},
	}
}
