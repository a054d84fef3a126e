package api_test

import (
	"slices"
	"strings"
	"testing"
)

const (
	produce  = "POST /v1/topics/orders/produce"
	batches  = "POST /v1/topics/orders/produce/batch"
	consume  = "POST /v1/topics/orders/consume"
	ack      = "POST /v1/topics/orders/ack"
	replay   = "GET /v1/topics/orders/messages"
	noHandle = "AQAAAAIAAAAAAAAAKQAAAAc_mhfE4rCNUQECAwQFBgcICQoLDA" // of partition 2, offset 41
)

// codeRow is a request and the refusal that it must get.
type codeRow struct {
	name, line, body string
	header           header
	fail             string // method of the broker that fails with failWith
	failWith         error
	status           int
	code, parameter  string
}

// TestEveryCode has a row for every refusal of api.md's table per route that the
// API itself decides, and for how those of the broker are shown.
func TestEveryCode(t *testing.T) {
	groups := [][]codeRow{
		edgeRows(), nameRows(), createRows(), listRows(), patchRows(), produceRows(), committedRows(),
		batchRows(), consumeRows(), settleRows(), replayRows(), laterRows(), moveRows(), childRows(), decommissionRows(),
	}
	for _, r := range slices.Concat(groups...) {
		t.Run(r.name, func(t *testing.T) {
			tt := newTester(t)
			tt.broker.Put("orders", 3)
			if r.fail != "" {
				tt.broker.Fail(r.fail, r.failWith)
			}
			a := tt.do(r.line, r.body, r.header...)
			if a.Status != r.status || a.code(t) != r.code {
				t.Fatalf("%d %s, want %d %s: %s", a.Status, a.code(t), r.status, r.code, a.body)
			}
			if r.code != "" {
				checkProblem(t, a, r.line, r.parameter)
			}
		})
	}
}

// checkProblem holds what every problem must have against the answer.
func checkProblem(t *testing.T, a *answer, line, parameter string) {
	t.Helper()
	if a.field(t, "request_id") != a.RequestID || len(a.RequestID) != 16 {
		t.Errorf("request id %q, in the body %v", a.RequestID, a.field(t, "request_id"))
	}
	if got := a.field(t, "parameter"); parameter != "" && got != parameter {
		t.Errorf("parameter %v, want %s: %s", got, parameter, a.body)
	}
	read := strings.HasPrefix(line, "GET") || strings.Contains(line, "/consume")
	noRoute := a.Status == 404 && a.code(t) == "route_not_found" || a.Status == 405
	if applied := a.field(t, "applied"); (applied == nil) != (read || noRoute) {
		t.Errorf("applied %v on %s", applied, line)
	}
	if (a.RetryAfterS > 0) != (a.Status == 429 || a.Status == 503) {
		t.Errorf("Retry-After %d with %d", a.RetryAfterS, a.Status)
	}
	if (a.Allow != "") != (a.Status == 405) {
		t.Errorf("Allow %q with %d", a.Allow, a.Status)
	}
	if (a.field(t, "feature") != nil) != (a.Status == 501) || (a.field(t, "limit_bytes") != nil) != (a.Status == 413) {
		t.Errorf("members: %s", a.body)
	}
	if strings.Contains(a.body, "secret") {
		t.Errorf("the answer shows an inner error: %s", a.body)
	}
}

func attributes(n, size int) (h header) {
	for i := range n {
		h = append(h, "Narad-Attr-A"+string(rune('a'+i)), strings.Repeat("v", size))
	}
	return h
}
