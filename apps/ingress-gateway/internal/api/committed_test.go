package api_test

import (
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/problem"
)

const committed = produce + "?ack=committed"

func committedRows() []codeRow {
	numbered := committed + "&partition=1"
	number := func(v string) header { return header{"Narad-Producer", v} }
	return []codeRow{
		{name: "timeout too short", line: committed + "&timeout=99ms", body: "x", status: 400, code: "invalid_request", parameter: "timeout"},
		{name: "timeout too long", line: committed + "&timeout=31s", body: "x", status: 400, code: "invalid_request", parameter: "timeout"},
		{name: "timeout without a unit", line: committed + "&timeout=5", body: "x", status: 400, code: "invalid_request", parameter: "timeout"},
		{name: "committed nothing", line: committed, status: 400, code: "empty_message"},
		{name: "committed out of range", line: committed + "&partition=3", body: "x", status: 400, code: "partition_out_of_range"},
		{name: "committed elsewhere", line: committed + "&incarnation=0000000000000001", body: "x", status: 409, code: "topic_changed"},
		{name: "number of a 202", line: produce + "?partition=1", body: "x", header: number("p:0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number without a partition", line: committed, body: "x", header: number("p:0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number without a number", line: numbered, body: "x", header: number("p"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number below zero", line: numbered, body: "x", header: number("p:-1"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number of nobody", line: numbered, body: "x", header: number(":0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number of a long id", line: numbered, body: "x", header: number(strings.Repeat("p", 65) + ":0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number of a bad id", line: numbered, body: "x", header: number("p/q:0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "two numbers", line: numbered, body: "x", header: header{"Narad-Producer", "p:0", "Narad-Producer", "p:1"}, status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "number after a gap", line: numbered, body: "x", header: number("p:1"), status: 409, code: "out_of_sequence"},
		{name: "committed by nobody", line: committed, body: "x", fail: "Commit 0", failWith: problem.New(problem.PartitionUnavailable, "x"), status: 503, code: "partition_unavailable"},
		{name: "committed perhaps", line: committed, body: "x", fail: "Commit 0", failWith: problem.New(problem.OutcomeUnknown, "x"), status: 504, code: "outcome_unknown"},
		{name: "committed too early", line: committed, body: "x", fail: "Commit", failWith: problem.New(problem.NotReady, "x"), status: 503, code: "not_ready"},
		{name: "no log for a 202", line: produce, body: "x", fail: "Accept", failWith: problem.New(problem.WALUnavailable, "x"), status: 503, code: "wal_unavailable"},
		{name: "committed batch with a number", line: batches + "?ack=committed", body: `{"messages":[{"payload":1,"partition":1}]}`, header: number("p:0"), status: 400, code: "invalid_request", parameter: "Narad-Producer"},
		{name: "committed batch of too much", line: batches + "?ack=committed", body: `{"messages":[{"payload":1}]}`, fail: "Commit", failWith: problem.New(problem.BatchTooLarge, "x"), status: 400, code: "batch_too_large"},
		{name: "committed batch of nothing", line: batches + "?ack=committed", body: `{"messages":[]}`, status: 400, code: "invalid_batch"},
	}
}

// TestCommittedAnswers holds the bodies of api.md, section 4.
func TestCommittedAnswers(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 3)
	tt.want(tt.do(committed+"&partition=2", "one"), 200, `{"id":"9c0f3b7a11d2e4f5.6-1","partition":2,"offset":0}`)
	if tt.broker.Timeout != 5*time.Second {
		t.Errorf("waits %s by default", tt.broker.Timeout)
	}
	tt.want(tt.do(committed+"&partition=2&timeout=100ms", "two"), 200, `{"id":"9c0f3b7a11d2e4f5.6-2","partition":2,"offset":1}`)
	if tt.broker.Timeout != 100*time.Millisecond {
		t.Errorf("waits %s for 100ms", tt.broker.Timeout)
	}
	first := `{"id":"9c0f3b7a11d2e4f5.6-3","partition":1,"offset":0}`
	tt.want(tt.do(committed+"&partition=1", "a", "Narad-Producer", "my.App_1-x:0"), 200, first)
	tt.want(tt.do(committed+"&partition=1", "a", "Narad-Producer", "my.App_1-x:0"), 200, first)
	tt.want(tt.do(committed+"&partition=1", "b", "Narad-Producer", "my.App_1-x:1"), 200, `{"id":"9c0f3b7a11d2e4f5.6-4","partition":1,"offset":1}`)
	if a := tt.do(committed+"&partition=1", "a", "Narad-Producer", "my.App_1-x:0"); a.Status != 409 || a.field(t, "expected") != 2.0 || a.field(t, "applied") != "no" {
		t.Errorf("an older number: %d %s", a.Status, a.body)
	}
	tt.broker.Fail("Commit 1", problem.New(problem.PartitionUnavailable, "x"))
	tt.broker.Fail("Commit 2", problem.New(problem.OutcomeUnknown, "x"))
	const want = `{"committed":1,"results":[{"status":200,"partition":0,"offset":0},{"status":503,"code":"partition_unavailable","applied":"no"},{"status":504,"code":"outcome_unknown","applied":"unknown"}]}`
	tt.want(tt.do(batches+"?ack=committed", `{"messages":[{"payload":1},{"payload":2,"partition":1},{"payload":3,"partition":2}]}`), 200, want)
	binary, err := batch.Encode(nil, &batch.Batch{Kind: batch.Produce, Records: []batch.Record{
		{Partition: 0, Payload: []byte("x")}, {Partition: 2, Payload: []byte("y")},
	}}, true)
	if err != nil {
		t.Fatal(err)
	}
	tt.want(tt.do(batches+"?ack=committed", string(binary), "Content-Type", batch.ContentType), 200,
		`{"committed":1,"results":[{"status":200,"partition":0,"offset":1},{"status":504,"code":"outcome_unknown","applied":"unknown"}]}`)
}

// A number that is too big is told the limit, not the form, which it has.
func TestProducerNumberTooBig(t *testing.T) {
	tt := newTester(t)
	tt.broker.Put("orders", 3)
	for number, text := range map[string]string{
		"p:1000000000000000000": "at most 999999999999999999", "p:99999999999999999999": "at most", "p:-1": "the id of 1 to 64", "p:": "the id of 1 to 64",
	} {
		if a := tt.do(committed+"&partition=1", "a", "Narad-Producer", number); a.Status != 400 || !strings.Contains(string(a.Body), text) {
			t.Errorf("%s: %d %s", number, a.Status, a.Body)
		}
	}
}
