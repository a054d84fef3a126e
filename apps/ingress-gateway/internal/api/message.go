package api

import (
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// shown is one message on its way into an answer. lease is nil in a replay.
type shown struct {
	id        string
	partition int32
	offset    int64
	commitMS  int64
	body      record.View
	lease     *nodeapi.Delivery
}

// delivered takes a delivery apart; the body was made by a gateway and checked
// by the log, so a failure is a fault of this cluster.
func delivered(d *nodeapi.Delivery) (shown, error) {
	v, err := record.ParseBody(d.Body)
	if err != nil {
		return shown{}, fmt.Errorf("delivery of partition %d offset %d: %w", d.Partition, d.Offset, err)
	}
	return shown{id: d.ID, partition: d.Partition, offset: d.Offset, commitMS: d.CommitMS, body: v, lease: d}, nil
}

// appendMessage appends the JSON object of api.md, section 5.
func appendMessage(dst []byte, t *topic.Topic, m *shown, inBase64 bool) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.id)
	dst = append(dst, `,"topic":"`...)
	dst = append(dst, t.Name...) // the alphabet of names needs no escapes
	dst = append(dst, `","partition":`...)
	dst = strconv.AppendInt(dst, int64(m.partition), 10)
	dst = append(dst, `,"offset":`...)
	dst = strconv.AppendInt(dst, m.offset, 10)
	if key := m.body.Key; len(key) > 0 {
		if utf8.Valid(key) {
			dst = append(dst, `,"key":`...)
			dst = appendString(dst, key)
		} else {
			dst = append(dst, `,"key_base64":`...)
			dst = appendBase64(dst, key)
		}
	}
	dst = appendPayload(dst, m.body.ContentType, m.body.Payload, inBase64)
	if len(m.body.ContentType) > 0 {
		dst = append(dst, `,"content_type":`...)
		dst = appendString(dst, m.body.ContentType)
	}
	dst = appendAttributes(dst, &m.body)
	dst = append(dst, `,"committed_at":`...)
	dst = appendTime(dst, m.commitMS)
	if m.lease != nil {
		dst = append(dst, `,"delivery_count":`...)
		dst = strconv.AppendInt(dst, int64(m.lease.DeliveryCount), 10)
		dst = append(dst, `,"lease_ms":`...)
		dst = strconv.AppendInt(dst, m.lease.LeaseMS, 10)
		dst = append(dst, `,"receipt_handle":"`...)
		dst = appendReceipt(dst, receiptOf(t, m.lease))
		dst = append(dst, '"')
	}
	return append(dst, '}')
}

// appendPayload appends exactly one of payload_base64, payload and payload_text.
func appendPayload(dst, contentType, payload []byte, inBase64 bool) []byte {
	switch {
	case inBase64 || !utf8.Valid(payload):
		dst = append(dst, `,"payload_base64":`...)
		return appendBase64(dst, payload)
	case (len(contentType) == 0 || isJSONType(contentType)) && presentableJSON(payload):
		dst = append(dst, `,"payload":`...)
		return append(dst, payload...)
	default:
		dst = append(dst, `,"payload_text":`...)
		return appendString(dst, payload)
	}
}

func appendAttributes(dst []byte, v *record.View) []byte {
	if v.AttrCount() == 0 {
		return dst
	}
	next := `,"attributes":{`
	for name, value := range v.Attrs() {
		dst = append(dst, next...)
		dst = appendString(dst, name)
		dst = append(dst, ':')
		dst = appendString(dst, value)
		next = ","
	}
	return append(dst, '}')
}

func receiptOf(t *topic.Topic, d *nodeapi.Delivery) *receipt {
	return &receipt{partition: d.Partition, offset: d.Offset, epoch: d.Epoch, incarnation: t.Incarnation, nonce: d.Nonce}
}

// binary fills r with the message for the batch format. attrs and handle are
// memory to use; they are returned grown.
func (m *shown) binary(r *batch.Record, t *topic.Topic, attrs []batch.Attr, handle []byte) ([]batch.Attr, []byte) {
	attrs = attrs[:0]
	for name, value := range m.body.Attrs() {
		attrs = append(attrs, batch.Attr{Name: name, Value: value})
	}
	*r = batch.Record{
		Key: m.body.Key, ContentType: m.body.ContentType, Attrs: attrs, Partition: int64(m.partition),
		Payload: m.body.Payload, Offset: m.offset, CommittedMS: m.commitMS, ID: viewBytes(m.id),
	}
	if m.lease != nil {
		handle = appendReceipt(handle[:0], receiptOf(t, m.lease))
		r.DeliveryCount, r.LeaseMS, r.ReceiptHandle = uint32(m.lease.DeliveryCount), uint32(m.lease.LeaseMS), handle
	}
	return attrs, handle
}

// replayed takes a record of a replay apart.
func replayed(partition int32, r *nodeapi.ReadRecord) (shown, error) {
	v, err := record.ParseBody(r.Body)
	if err != nil {
		return shown{}, fmt.Errorf("record of partition %d offset %d: %w", partition, r.Offset, err)
	}
	return shown{id: r.ID, partition: partition, offset: r.Offset, commitMS: r.CommitMS, body: v}, nil
}
