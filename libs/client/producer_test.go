package client

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
)

// TestNumberedProduceRepeatsUntilItKnows: a number makes a repeat safe, so an unknown
// outcome is one more try under the same number; what is out of sequence is final.
func TestNumberedProduceRepeatsUntilItKnows(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Narad-Producer") == "billing:9":
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(409)
			fmt.Fprint(w, `{"status":409,"code":"out_of_sequence","applied":"no","expected":8}`)
		case n < 3:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(504)
			fmt.Fprint(w, `{"status":504,"code":"outcome_unknown","applied":"unknown"}`)
		default:
			fmt.Fprint(w, `{"id":"a-1","partition":2,"offset":41}`)
		}
	})
	c := connect(t, Config{}, g)
	m := Message{Payload: []byte("x"), Partition: Pin(2)}
	r, err := c.Produce(t.Context(), "orders", m, ProduceOptions{Committed: true, Producer: "billing", Seq: 7})
	if err != nil || *r.Offset != 41 || len(g.seen()) < 3 {
		t.Fatalf("%+v, %v after %d tries", r, err, len(g.seen()))
	}
	for _, a := range g.seen() {
		if got := a.header.Get("Narad-Producer"); got != "billing:7" {
			t.Errorf("sent %q", got)
		}
	}
	before := len(g.seen())
	_, err = c.Produce(t.Context(), "orders", m, ProduceOptions{Committed: true, Producer: "billing", Seq: 9})
	var refusal *Error
	var expected uint64
	if !HasCode(err, CodeOutOfSequence) || !errors.As(err, &refusal) || !refusal.Member("expected", &expected) || expected != 8 || len(g.seen()) != before+1 {
		t.Errorf("%v, expected %d, %d tries", err, expected, len(g.seen())-before)
	}
	for _, o := range []ProduceOptions{{Producer: "p"}, {Committed: true, Producer: "p"}} {
		m.Partition = nil
		if _, err := c.Produce(t.Context(), "orders", m, o); err == nil {
			t.Errorf("%+v was sent", o)
		}
	}
	if _, err := c.ProduceBatch(t.Context(), "orders", []Message{m}, ProduceOptions{Committed: true, Producer: "p"}); err == nil {
		t.Error("a batch took a number")
	}
}
