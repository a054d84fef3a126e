package client

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

func readCloser(s string) io.ReadCloser { return io.NopCloser(strings.NewReader(s)) }

func TestProduceOnTheWire(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"id":"a-1","partition":2,"offset":41}`)
	})
	r, err := connect(t, Config{UserAgent: "mine/1"}, g).Produce(t.Context(), "orders", Message{
		Payload: []byte("\x00\xffhi"), Key: []byte("k 1&\xff+"), ContentType: "text/plain", Partition: Pin(2),
		Attributes: map[string]string{"trace-id": "ünïcode"},
	}, ProduceOptions{Committed: true, Timeout: 1500 * time.Millisecond, Incarnation: "3f9a17c4e2b08d51"})
	if err != nil {
		t.Fatal(err)
	}
	if *r.Partition != 2 || *r.Offset != 41 || r.ID != "a-1" {
		t.Errorf("receipt %+v", r)
	}
	a := g.seen()[0]
	u, err := url.Parse(a.uri)
	if err != nil {
		t.Fatal(err)
	}
	want := url.Values{
		"key": {"k 1&\xff+"}, "partition": {"2"}, "ack": {"committed"}, "timeout": {"1500ms"},
		"incarnation": {"3f9a17c4e2b08d51"},
	}
	if a.method != "POST" || u.Path != "/v1/topics/orders/produce" || !reflect.DeepEqual(u.Query(), want) {
		t.Errorf("asked %s %s", a.method, a.uri)
	}
	if string(a.body) != "\x00\xffhi" || a.header.Get("Content-Type") != "text/plain" ||
		a.header.Get("Narad-Attr-Trace-Id") != "ünïcode" || a.header.Get("User-Agent") != "mine/1" {
		t.Errorf("body %q, headers %v", a.body, a.header)
	}
}

func TestAttributesThatTheWireWouldChange(t *testing.T) {
	c := connect(t, Config{URL: "http://127.0.0.1:1"})
	for _, attrs := range []map[string]string{{"a": " x"}, {"a": "x\t"}, {"a": "1", "A": "2"}, {"a": "x\ny"}} {
		if _, err := c.Produce(t.Context(), "orders", Message{Payload: []byte("x"), Attributes: attrs}, ProduceOptions{}); err == nil || strings.Contains(err.Error(), "refused") {
			t.Errorf("attributes %q: %v", attrs, err)
		}
	}
}

func TestProduceBatchOnTheWire(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"committed":1,"results":[{"status":200,"partition":2,"offset":7},{"status":503,"code":"partition_unavailable","applied":"no"}]}`)
	})
	r, err := connect(t, Config{}, g).ProduceBatch(t.Context(), "orders", []Message{
		{Payload: []byte("one"), Key: []byte("k"), ContentType: "text/plain", Attributes: map[string]string{"B": "2", "a": "1"}},
		{Payload: []byte("two"), Partition: Pin(0)},
	}, ProduceOptions{Committed: true})
	if err != nil || r.Committed != 1 || !r.Results[0].OK() || r.Results[1].OK() || r.Results[1].Code != CodePartitionUnavailable {
		t.Fatalf("receipt %+v, error %v", r, err)
	}
	a := g.seen()[0]
	var d batch.Decoder
	got, err := d.DecodeProduce(a.body)
	if err != nil {
		t.Fatal(err)
	}
	if a.header.Get("Content-Type") != batchType || len(got) != 2 || string(got[0].Key) != "k" || got[0].Partition != batch.NoPartition ||
		string(got[0].Attrs[0].Name) != "a" || string(got[0].Attrs[1].Name) != "b" || got[1].Partition != 0 || string(got[1].Payload) != "two" {
		t.Fatalf("sent %+v", got)
	}
}

func TestReceive(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Narad-Partitions-Unavailable", "1")
		if n > 1 {
			w.WriteHeader(204)
			return
		}
		r := delivered(41, 30000)
		r.Key, r.Attrs = []byte("k1"), []batch.Attr{{Name: []byte("trace"), Value: []byte("a1")}}
		_, _ = w.Write(deliveries(t, r))
	})
	c := connect(t, Config{}, g)
	got, err := c.Receive(t.Context(), "orders", ReceiveOptions{Max: 10, Wait: NoWait, Partition: Pin(2), VisibilityTimeout: time.Minute})
	if err != nil || len(got.Deliveries) != 1 || got.PartitionsUnavailable != 1 {
		t.Fatalf("got %+v, %v", got, err)
	}
	d := got.Deliveries[0]
	if d.Topic != "orders" || d.Incarnation != "3f9a17c4e2b08d51" || d.ReceiptHandle != "H41" || d.Lease != 30*time.Second ||
		d.Offset != 41 || d.ID != "id-41" || string(d.Key) != "k1" || d.Attributes["trace"] != "a1" || d.DeliveryCount != 1 {
		t.Errorf("delivery %+v", d)
	}
	if a := g.seen()[0]; a.method != "POST" || a.header.Get("Accept") != batchType ||
		a.uri != "/v1/topics/orders/consume?max=10&partition=2&visibility_timeout_ms=60000&wait=0ms" {
		t.Errorf("asked %s %s", a.method, a.uri)
	}
	if got, err := c.Receive(t.Context(), "orders", ReceiveOptions{}); err != nil || len(got.Deliveries) != 0 {
		t.Errorf("an empty answer gave %+v, %v", got, err)
	}
}

func TestDamagedDeliveryIsAnError(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		b := deliveries(t, delivered(41, 30000))
		b[len(b)-6] ^= 1
		_, _ = w.Write(b)
	})
	if got, err := connect(t, Config{}, g).Receive(t.Context(), "orders", ReceiveOptions{}); err == nil {
		t.Fatalf("got %+v", got)
	}
}

func TestCreateIfAbsent(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			hangUp(w)
		}
		refuse(w, 409, CodeTopicExists, AppliedNo, `,"topic":{"name":"orders","incarnation":"3f9a17c4e2b08d51","version":4}`)
	})
	top, created, err := connect(t, Config{}, g).CreateTopicIfAbsent(t.Context(), TopicSpec{Name: "orders", Partitions: 6})
	if err != nil || created || top.ETag() != `"3f9a17c4e2b08d51-4"` {
		t.Fatalf("got %+v, %v, %v", top, created, err)
	}
	if body := string(g.seen()[0].body); body != `{"name":"orders","partitions":6}` {
		t.Errorf("sent %s", body)
	}
}

func TestDeleteAfterALostAnswer(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n%2 == 1 {
			hangUp(w)
		}
		refuse(w, 404, CodeTopicNotFound, AppliedNo, "")
	})
	c := connect(t, Config{}, g)
	if err := c.DeleteTopic(t.Context(), "orders", `"3f9a17c4e2b08d51-4"`); err != nil {
		t.Errorf("with the version: %v", err)
	}
	if err := c.DeleteTopic(t.Context(), "orders", ""); err == nil || len(g.seen()) != 3 {
		t.Errorf("without the version: error %v after %d requests", err, len(g.seen()))
	}
	if a := g.seen()[0]; a.header.Get("If-Match") != `"3f9a17c4e2b08d51-4"` {
		t.Errorf("headers %v", a.header)
	}
}

func TestTopicsPages(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("page_token") == "" {
			fmt.Fprint(w, `{"topics":[{"name":"a"},{"name":"b"}],"next_page_token":"Yg"}`)
			return
		}
		fmt.Fprint(w, `{"topics":[{"name":"c"}],"next_page_token":null}`)
	})
	var names string
	for top, err := range connect(t, Config{}, g).Topics(t.Context(), "x") {
		if err != nil {
			t.Fatal(err)
		}
		names += top.Name
	}
	if names != "abc" || len(g.seen()) != 2 {
		t.Fatalf("names %q in %d pages", names, len(g.seen()))
	}
}

func TestReplayFollowsPagesOfOneLife(t *testing.T) {
	g := newGateway(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		from := int64(0)
		if q.Get("offset") == "2" && q.Get("incarnation") == "3f9a17c4e2b08d51" && q.Get("since") == "" {
			from = 2
		} else if q.Get("since") == "" {
			refuse(w, 400, CodeInvalidRequest, AppliedNo, "")
			return
		}
		b, err := batch.Encode(nil, &batch.Batch{
			Kind: batch.Replay, Meta: batch.Meta{Incarnation: 0x3f9a17c4e2b08d51, NextOffset: from + 2, HighWatermark: 4},
			Records: []batch.Record{delivered(from, 0), delivered(from+1, 0)},
		}, true)
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(b)
	})
	var offsets []uint64
	for r, err := range connect(t, Config{}, g).Replay(t.Context(), "orders", ReplayOptions{Since: time.Unix(1, 0)}) {
		if err != nil {
			t.Fatal(err)
		}
		offsets = append(offsets, r.Offset)
	}
	if !reflect.DeepEqual(offsets, []uint64{0, 1, 2, 3}) {
		t.Fatalf("offsets %v", offsets)
	}
}

func TestSettleMany(t *testing.T) {
	g := newGateway(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 4 {
			fmt.Fprint(w, `{"results":[]}`)
			return
		}
		fmt.Fprint(w, `{"results":[{"status":204},{"status":410,"code":"lease_lost"}]}`)
	})
	c := connect(t, Config{}, g)
	hs := []string{"H1", "H2"}
	r, err := c.AckMany(t.Context(), "orders", hs)
	if err != nil || !r[0].OK() || r[1].Code != CodeLeaseLost {
		t.Fatalf("got %+v, %v", r, err)
	}
	if _, err := c.ExtendMany(t.Context(), "orders", hs, time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := c.NackMany(t.Context(), "orders", hs, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AckMany(t.Context(), "orders", hs); err == nil {
		t.Error("an answer with too few results was taken")
	}
	for i, want := range []string{
		`/v1/topics/orders/ack {"receipt_handles":["H1","H2"]}`,
		`/v1/topics/orders/extend {"receipt_handles":["H1","H2"],"visibility_timeout_ms":60000}`,
		`/v1/topics/orders/nack {"receipt_handles":["H1","H2"],"delay_ms":0}`,
	} {
		if a := g.seen()[i]; a.uri+" "+string(a.body) != want {
			t.Errorf("asked %s %s, want %s", a.uri, a.body, want)
		}
	}
}

func TestReadsDecodeWhatTheReferenceShows(t *testing.T) {
	const quorum = `{"leader_id":"voter-2","leader_epoch":7,"leader_epoch_start":1041,"high_watermark":1088,"majority":2,"committed_by":["voter-1","voter-2"],"answered_by":"voter-2",
 "servers":[{"id":"voter-1","role":"metastore-voter","suffrage":"voter","reachable":true,"member":true,"release":"0.1.0","state":"follower",
   "leader_epoch":7,"leo":1088,"lag":0,"applied":1088,"last_contact_ms":41}]}`
	g := newGateway(t, func(_ int, w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, quorum) })
	q, err := connect(t, Config{}, g).Quorum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal([]byte(quorum), &a) != nil || json.Unmarshal(again, &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("fields were lost:\n%s\n%s", quorum, again)
	}
}
