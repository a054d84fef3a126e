package api_test

import (
	"strings"
	"testing"

	"github.com/narad-mq/narad/libs/client/batch"
)

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
