package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"
)

func TestTableIsComplete(t *testing.T) {
	if len(byCode) != len(table) {
		t.Fatalf("%d rows but %d codes: a code stands twice", len(table), len(byCode))
	}
	for _, r := range Table() {
		if http.StatusText(r.Status) == "" || r.Caller == "" {
			t.Errorf("%s: status %d has no text or the caller has no advice", r.Code, r.Status)
		}
		if (r.Status == 429 || r.Status == 503) != (r.RetryAfterMS > 0) {
			t.Errorf("%s: exactly 429 and 503 carry a retry hint", r.Code)
		}
	}
}

func TestDocumentRoundTrip(t *testing.T) {
	p := New(PartitionUnavailable, "partition %d of %q has no leader", 2, "orders").With("partition", 2)
	p.RequestID = "r1"
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"about:blank","title":"Service Unavailable","status":503,"code":"partition_unavailable","applied":"no","retry_after_ms":300,"request_id":"r1","detail":"partition 2 of \"orders\" has no leader","partition":2}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	var back Problem
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(fmt.Errorf("x: %w", &back), p) || back.Members["partition"] != float64(2) || back.RetryAfterMS != 300 {
		t.Errorf("round trip lost something: %+v", back)
	}
}
