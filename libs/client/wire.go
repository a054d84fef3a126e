package client

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
)

// encodeProduce writes messages in the binary format. What a key or an attribute may
// be is the gateway's to judge; here only what the format itself cannot carry fails.
func encodeProduce(msgs []Message) ([]byte, error) {
	size := batch.HeaderSize + batch.CRCSize
	for i := range msgs {
		size += messageSize(&msgs[i])
	}
	w := batch.NewWriter(make([]byte, 0, size), batch.Produce, batch.Meta{})
	var attrs []batch.Attr // reused: Add copies
	for i := range msgs {
		m := &msgs[i]
		r := batch.Record{Key: m.Key, Partition: batch.NoPartition, Payload: m.Payload}
		if m.ContentType != "" {
			r.ContentType = []byte(m.ContentType)
		}
		if m.Partition != nil {
			r.Partition = int64(*m.Partition)
		}
		attrs = appendAttrs(attrs[:0], m.Attributes)
		r.Attrs = attrs
		if err := w.Add(&r); err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
	}
	return w.Bytes(true), nil
}

// messageSize is an upper bound of a message's length in the format.
func messageSize(m *Message) int {
	const fixed = 32 // lengths of the record and of key, content type and partition
	n := fixed + len(m.Payload) + len(m.Key) + len(m.ContentType)
	for name, value := range m.Attributes {
		n += 4 + len(name) + len(value)
	}
	return n
}

// appendAttrs gives attributes as the format wants them: lower-case, ascending.
func appendAttrs(dst []batch.Attr, attrs map[string]string) []batch.Attr {
	for name, value := range attrs {
		dst = append(dst, batch.Attr{Name: []byte(strings.ToLower(name)), Value: []byte(value)})
	}
	slices.SortFunc(dst, func(a, b batch.Attr) int { return bytes.Compare(a.Name, b.Name) })
	return dst
}

func decodeDeliveries(topic string, body []byte) ([]Delivery, error) {
	b, err := batch.Decode(body)
	if err != nil {
		return nil, err
	}
	if b.Kind != batch.Delivery {
		return nil, fmt.Errorf("a batch of kind %d where a delivery was asked for", b.Kind)
	}
	incarnation := formatIncarnation(b.Meta.Incarnation)
	out := make([]Delivery, len(b.Records))
	for i := range b.Records {
		r := &b.Records[i]
		out[i] = Delivery{
			Record: record(r), Topic: topic, Incarnation: incarnation, DeliveryCount: r.DeliveryCount,
			Lease: time.Duration(r.LeaseMS) * time.Millisecond, ReceiptHandle: string(r.ReceiptHandle),
		}
	}
	return out, nil
}

func decodeReplay(body []byte) (ReplayPage, error) {
	b, err := batch.Decode(body)
	if err != nil {
		return ReplayPage{}, err
	}
	if b.Kind != batch.Replay {
		return ReplayPage{}, fmt.Errorf("a batch of kind %d where a replay was asked for", b.Kind)
	}
	page := ReplayPage{
		Records: make([]Record, len(b.Records)), Incarnation: formatIncarnation(b.Meta.Incarnation),
		LogStart: uint64(b.Meta.LogStart), NextOffset: uint64(b.Meta.NextOffset), HighWatermark: uint64(b.Meta.HighWatermark),
	}
	for i := range b.Records {
		page.Records[i] = record(&b.Records[i])
	}
	return page, nil
}

func record(r *batch.Record) Record {
	out := Record{
		ID: string(r.ID), Partition: uint32(r.Partition), Offset: uint64(r.Offset), Key: r.Key, Payload: r.Payload,
		ContentType: string(r.ContentType), CommittedAt: time.UnixMilli(r.CommittedMS).UTC(),
	}
	if len(r.Attrs) > 0 {
		out.Attributes = make(map[string]string, len(r.Attrs))
		for _, a := range r.Attrs {
			out.Attributes[string(a.Name)] = string(a.Value)
		}
	}
	return out
}

func formatIncarnation(v uint64) string { return fmt.Sprintf("%016x", v) }
