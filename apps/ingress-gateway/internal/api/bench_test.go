package api_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api/fakebroker"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// still is a broker that does nothing and allocates nothing.
type still struct {
	*fakebroker.Broker
	deliveries []nodeapi.Delivery
	result     api.ConsumeResult
	statuses   []nodeapi.SettleStatus
}

func (s *still) Accept(context.Context, *topic.Topic, []api.Produced) (string, error) {
	return "9c0f3b7a11d2e4f5-1042", nil
}

func (s *still) Consume(context.Context, *api.ConsumeRequest) (*api.ConsumeResult, error) {
	s.result.Deliveries = s.deliveries
	return &s.result, nil
}

func (s *still) Settle(_ context.Context, _ *topic.Topic, ops []nodeapi.SettleOp) ([]nodeapi.SettleStatus, error) {
	return s.statuses[:len(ops)], nil
}

func bench(b *testing.B, line string, body []byte, deliveries int, h ...string) {
	b.Helper()
	s := &still{Broker: fakebroker.New(), statuses: make([]nodeapi.SettleStatus, 1000)}
	s.Put("orders", 3)
	m := record.Message{Key: []byte("k1"), ContentType: "application/json", Payload: bytes.Repeat([]byte(`{"a":"0123456789abcdef"},`), 10)}
	m.Payload = append(append([]byte{'['}, m.Payload[:len(m.Payload)-1]...), ']')
	for i := range deliveries {
		s.deliveries = append(s.deliveries, nodeapi.Delivery{
			Offset: int64(i), Epoch: 7, CommitMS: fakebroker.CommitMS, DeliveryCount: 1, LeaseMS: 30000,
			ID: "9c0f3b7a11d2e4f5-1042", Body: record.AppendBody(nil, &m),
		})
	}
	deps := s.Broker.Deps()
	deps.Producer, deps.Consumer = s, s
	a, err := api.New(api.Config{NodeID: "gateway-1"}, deps)
	if err != nil {
		b.Fatal(err)
	}
	method, target, _ := bytes.Cut([]byte(line), []byte(" "))
	path, query, _ := bytes.Cut(target, []byte("?"))
	var headers api.Headers = header(h) // as cheap as a server's
	reader := bytes.NewReader(body)
	req := api.Request{Method: method, Path: path, Query: query, Host: []byte("g"), Headers: headers, ContentLength: int64(len(body)), Body: reader}
	var resp api.Response
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		reader.Reset(body)
		a.Serve(&req, &resp)
		if resp.Status >= 300 {
			b.Fatalf("%d %s", resp.Status, resp.Body)
		}
		resp.Finish(true)
	}
}

func BenchmarkProduce(b *testing.B) {
	bench(b, "POST /v1/topics/orders/produce?key=k1", bytes.Repeat([]byte("x"), 256), 0)
}

func BenchmarkConsume(b *testing.B) { bench(b, "POST /v1/topics/orders/consume?wait=0s", nil, 1) }

func BenchmarkConsume100(b *testing.B) {
	bench(b, "POST /v1/topics/orders/consume?wait=0s&max=100", nil, 100)
}

func BenchmarkConsume100Binary(b *testing.B) {
	bench(b, "POST /v1/topics/orders/consume?wait=0s&max=100", nil, 100, "Accept", "application/vnd.narad.batch")
}

func BenchmarkAck(b *testing.B) {
	bench(b, "POST /v1/topics/orders/ack?receipt_handle=AQAAAAIAAAAAAAAAKQAAAAc_mhfE4rCNUQECAwQFBgcICQoLDA", nil, 0)
}

func BenchmarkBatchJSON100(b *testing.B) {
	one := `{"payload":{"a":"` + string(bytes.Repeat([]byte("x"), 248)) + `"},"key":"k1"}`
	body := []byte(`{"messages":[` + string(bytes.Repeat([]byte(one+","), 99)) + one + `]}`)
	bench(b, "POST /v1/topics/orders/produce/batch", body, 0)
}
