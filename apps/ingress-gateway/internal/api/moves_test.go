package api_test

import (
	"testing"

	"github.com/narad-mq/narad/libs/problem"
)

const moveBody = `{"topic":"orders","partition":3,"from":"storage-1","to":"storage-4"}`

// TestMoves: the documents of api.md, section 9.
func TestMoves(t *testing.T) {
	tt := newTester(t)
	row := func(phase, blocked string) string {
		return `{"topic":"orders","incarnation":"3f9a17c4e2b08d51","partition":3,"from":"storage-1","to":"storage-4","phase":"` + phase + `",` +
			`"copied_bytes":1048576,"total_bytes":73400320,"bytes_per_second":52428800,"started_at":"2026-11-29T20:04:05.123Z","blocked":` + blocked + `,"last_error":null}`
	}
	tt.want(tt.do("GET /v1/cluster/moves", ""), 200, `{"moves":[],"running":0,"limit":8,"waiting":3}`)
	tt.want(tt.do("POST /v1/cluster/moves", moveBody), 202, row("copying", "null"))
	tt.want(tt.do("GET /v1/cluster/moves", ""), 200, `{"moves":[`+row("copying", "null")+`],"running":1,"limit":8,"waiting":3}`)
	tt.want(tt.do("DELETE /v1/cluster/moves/orders/3?started_at=2026-11-29T20:04:05.123Z", ""), 202, row("joined", `"source_dead"`))
	tt.want(tt.do("DELETE /v1/cluster/moves/orders/3", ""), 202, row("joined", `"source_dead"`))
	if got := tt.do("DELETE /v1/cluster/moves/orders/3?started_at=2026-11-29T20:04:05.122Z", ""); got.Status != 409 {
		t.Errorf("a move that has ended: %d", got.Status)
	}
}

func moveRows() []codeRow {
	return []codeRow{
		{name: "move without a body", line: "POST /v1/cluster/moves", status: 400, code: "invalid_request", parameter: "body"},
		{name: "move without a way", line: "POST /v1/cluster/moves", body: `{"topic":"orders","partition":3,"from":"storage-1"}`, status: 400, code: "invalid_request", parameter: "to"},
		{name: "move with more", line: "POST /v1/cluster/moves", body: `{"topic":"orders","partition":3,"from":"a","to":"b","force":true}`, status: 400, code: "invalid_request", parameter: "force"},
		{name: "move of a name that is none", line: "POST /v1/cluster/moves", body: `{"topic":"a/b","partition":3,"from":"a","to":"b"}`, status: 400, code: "invalid_topic_name"},
		{name: "move of no partition", line: "POST /v1/cluster/moves", body: `{"topic":"orders","partition":-1,"from":"a","to":"b"}`, status: 400, code: "invalid_request", parameter: "partition"},
		{name: "move to nobody", line: "POST /v1/cluster/moves", body: moveBody, fail: "StartMove", failWith: problem.New(problem.MemberNotFound, "x"), status: 404, code: "member_not_found"},
		{name: "move twice", line: "POST /v1/cluster/moves", body: moveBody, fail: "StartMove", failWith: problem.New(problem.MoveInProgress, "x"), status: 409, code: "move_in_progress"},
		{name: "move too many", line: "POST /v1/cluster/moves", body: moveBody, fail: "StartMove", failWith: problem.New(problem.TooManyRequests, "x"), status: 429, code: "too_many_requests"},
		{name: "move without a leader", line: "POST /v1/cluster/moves", body: moveBody, fail: "StartMove", failWith: problem.New(problem.NoMetastoreLeader, "x"), status: 503, code: "no_metastore_leader"},
		{name: "abort of nothing", line: "DELETE /v1/cluster/moves/orders/0", fail: "AbortMove", failWith: problem.New(problem.MoveNotInFlight, "x"), status: 409, code: "move_not_in_flight"},
		{name: "abort of no time", line: "DELETE /v1/cluster/moves/orders/0?started_at=noon", status: 400, code: "invalid_request", parameter: "started_at"},
		{name: "abort of the epoch", line: "DELETE /v1/cluster/moves/orders/0?started_at=1970-01-01T00:00:00Z", status: 400, code: "invalid_request", parameter: "started_at"},
		{name: "abort of no partition", line: "DELETE /v1/cluster/moves/orders/x", status: 400, code: "invalid_request", parameter: "partition"},
		{name: "abort of no name", line: "DELETE /v1/cluster/moves/../0", status: 400, code: "invalid_topic_name"},
	}
}
