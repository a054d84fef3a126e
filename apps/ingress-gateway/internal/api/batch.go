package api

import (
	"encoding/base64"
	"errors"
	"strconv"
	"strings"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// produceBatch stores up to MaxBatchMessages messages, all or none:
// POST /v1/topics/{topic}/produce/batch.
func (c *call) produceBatch() error {
	ack, err := c.wantedAck()
	if err != nil {
		return err
	}
	if _, n := c.req.Headers.Get("Narad-Producer"); n > 0 {
		return badParameter("Narad-Producer", "a batch has no producer number in this release")
	}
	contentType, n := c.req.Headers.Get("Content-Type")
	binary := n == 1 && equalFold(essence(contentType), batch.ContentType)
	if n > 1 || !binary && !jsonBody(contentType) {
		return problem.New(problem.UnsupportedMediaType, "send application/json or %s", batch.ContentType)
	}
	encoding, err := c.contentEncoding()
	if err != nil {
		return err
	}
	if err := c.refuseAttributeHeaders(); err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	if err := takesProduce(t); err != nil {
		return err
	}
	body, err := c.readDecoded(encoding, MaxBatchBytes, problem.BodyTooLarge)
	if err != nil {
		return err
	}
	c.msgs, c.attrs = c.msgs[:0], c.attrs[:0]
	if binary {
		err = c.readBinaryBatch(t, body)
	} else {
		err = c.readJSONBatch(t, body)
	}
	if err != nil {
		return err
	}
	if ack.committed {
		return c.commitAll(t, &ack)
	}
	if _, err := c.accept(t); err != nil {
		return err
	}
	c.json(202)
	c.out = append(c.out, `{"accepted":`...)
	c.out = strconv.AppendInt(c.out, int64(len(c.msgs)), 10)
	c.out = append(c.out, '}')
	return nil
}

// readBinaryBatch fills c.msgs with views of body.
func (c *call) readBinaryBatch(t *topic.Topic, body []byte) error {
	records, err := c.decoder.DecodeProduce(body)
	if err != nil {
		return batchProblem(err)
	}
	for i := range records {
		r := &records[i]
		first := len(c.attrs)
		for _, a := range r.Attrs {
			c.attrs = append(c.attrs, record.Attr{Name: lower(a.Name), Value: viewString(a.Value)})
		}
		m := Produced{Pin: AnyPartition, Message: record.Message{
			Key: r.Key, ContentType: viewString(r.ContentType), Attrs: c.attrs[first:], Payload: r.Payload,
		}}
		if r.Partition >= 0 {
			m.Pin, err = checkPartition(r.Partition, t)
		}
		if err == nil {
			err = c.checkMessage(&m, r.ContentType)
		}
		if err != nil {
			return withIndex(err, i)
		}
		c.msgs = append(c.msgs, m)
	}
	return nil
}

func batchProblem(err error) error {
	var e *batch.Error
	if !errors.As(err, &e) {
		return err
	}
	code := problem.InvalidBatch
	if errors.Is(e, batch.ErrTooMany) {
		code = problem.BatchTooLarge
	}
	p := problem.New(code, "%s", e.Reason)
	if e.Index >= 0 {
		p.With("index", e.Index)
	}
	return p
}

// checkMessage holds a message of a batch against what a single one must keep.
func (c *call) checkMessage(m *Produced, contentType []byte) error {
	if len(m.Message.Payload) == 0 {
		return problem.New(problem.EmptyMessage, "a message has at least one byte")
	}
	if len(m.Message.Payload) > c.api.cfg.MaxMessageBytes {
		return tooLarge(problem.MessageTooLarge, c.api.cfg.MaxMessageBytes)
	}
	if err := checkKey(m.Message.Key); err != nil {
		return err
	}
	if err := checkContentType(contentType, "content_type"); err != nil {
		return err
	}
	return checkAttributes(m.Message.Attrs)
}

// The fields of a message in a JSON batch.
const (
	fieldPayload = iota
	fieldPayloadText
	fieldPayloadBase64
	fieldKey
	fieldKeyBase64
	fieldAttributes
	fieldPartition
	fieldContentType
)

func messageFields() []string {
	return []string{"payload", "payload_text", "payload_base64", "key", "key_base64", "attributes", "partition", "content_type"}
}

// batchReader reads the messages of a JSON batch.
type batchReader struct {
	c      *call
	r      *jsonReader
	t      *topic.Topic
	names  []string
	m      Produced
	typ    []byte
	hasTyp bool
	seen   uint64
}

// readJSONBatch fills c.msgs. Payloads are views of body; strings are decoded
// into the arena, which cannot outgrow the body.
func (c *call) readJSONBatch(t *topic.Topic, body []byte) error {
	r, err := c.parse(body)
	if err != nil {
		return err
	}
	// When the arena already holds the inflated body it is not written over:
	// strings go behind what is there, or to new memory.
	if err := c.reserve(len(body)); err != nil {
		return err
	}
	if len(c.arena) > 0 {
		c.arena = make([]byte, 0, bodyStep)
	}
	b := &batchReader{c: c, r: r, t: t, names: messageFields()}
	if err := r.object("body", []string{"messages"}, 0, func(int) error { return r.array("messages", b.message) }); err != nil {
		return err
	}
	r.index = -1
	if err := r.end(); err != nil {
		return err
	}
	if len(c.msgs) == 0 {
		return problem.New(problem.InvalidBatch, "it has no messages")
	}
	return nil
}

func (b *batchReader) message(i int) error {
	if i == MaxBatchMessages {
		return problem.New(problem.BatchTooLarge, "at most %d messages are allowed", MaxBatchMessages)
	}
	b.r.index, b.seen, b.typ, b.hasTyp = i, 0, nil, false
	b.m = Produced{Pin: AnyPartition}
	// Null is a payload like any other JSON value.
	if err := b.r.object("messages", b.names, 1<<fieldPayload, b.field); err != nil {
		return err
	}
	if n := b.seen & (1<<fieldPayload | 1<<fieldPayloadText | 1<<fieldPayloadBase64); n == 0 || n&(n-1) != 0 {
		return b.r.problem(problem.InvalidBatch, "a message has exactly one of payload, payload_text and payload_base64")
	}
	if b.seen>>fieldKey&3 == 3 {
		return b.r.problem(problem.InvalidKey, "a message has one of key and key_base64")
	}
	b.m.Message.ContentType = b.contentType()
	if err := b.c.checkMessage(&b.m, b.typ); err != nil {
		return withIndex(err, i)
	}
	b.c.msgs = append(b.c.msgs, b.m)
	return nil
}

func (b *batchReader) contentType() string {
	switch {
	case b.hasTyp:
		return viewString(b.typ)
	case b.seen&(1<<fieldPayload) != 0:
		return typeJSON
	case b.seen&(1<<fieldPayloadText) != 0:
		return typeText
	}
	return ""
}

func (b *batchReader) field(i int) (err error) {
	b.seen |= 1 << i
	m := &b.m.Message
	switch i {
	case fieldPayload:
		m.Payload, err = b.r.value()
	case fieldPayloadText:
		m.Payload, err = b.text(i)
	case fieldPayloadBase64:
		m.Payload, err = b.bytes(i, problem.InvalidBatch)
	case fieldKey:
		m.Key, err = b.text(i)
		m.Key = none(m.Key)
	case fieldKeyBase64:
		m.Key, err = b.bytes(i, problem.InvalidKey)
		m.Key = none(m.Key)
	case fieldAttributes:
		m.Attrs, err = b.attributes()
	case fieldPartition:
		b.m.Pin, err = b.partition()
	case fieldContentType:
		b.typ, err = b.text(i)
		b.hasTyp = true
	}
	return err
}

// text decodes a string to the end of the arena.
func (b *batchReader) text(i int) ([]byte, error) { return b.decode(b.names[i]) }

func (b *batchReader) decode(what string) ([]byte, error) {
	at := len(b.c.arena)
	out, err := b.r.str(what, b.c.arena)
	if err != nil {
		return nil, err
	}
	b.c.arena = out
	return out[at:len(out):len(out)], nil
}

// bytes decodes standard, padded base64 in place.
func (b *batchReader) bytes(i int, code problem.Code) ([]byte, error) {
	s, err := b.text(i)
	if err != nil {
		return nil, err
	}
	// Go's decoder skips line ends; here they are not part of the alphabet.
	n, err := base64.StdEncoding.Strict().Decode(s, s)
	if err != nil || len(s) != base64.StdEncoding.EncodedLen(n) {
		return nil, b.r.problem(code, "%s is not standard padded base64", b.names[i])
	}
	return s[:n:n], nil
}

func (b *batchReader) partition() (int32, error) {
	p, err := b.r.integer("partition")
	if err != nil {
		return 0, err
	}
	if p < 0 {
		return 0, b.r.bad("partition", "partition must be a number from 0")
	}
	pin, err := checkPartition(p, b.t)
	if err != nil {
		return 0, withIndex(err, b.r.index)
	}
	return pin, nil
}

// attributes reads an object of strings whose names are the sender's.
func (b *batchReader) attributes() ([]record.Attr, error) {
	first := len(b.c.attrs)
	err := b.r.members("attributes", func(name []byte) error {
		if len(b.c.attrs)-first == MaxAttributes {
			return b.r.problem(problem.InvalidAttribute, "at most %d attributes are allowed", MaxAttributes)
		}
		value, err := b.decode("attributes")
		if err != nil {
			return err
		}
		b.c.attrs = append(b.c.attrs, record.Attr{Name: strings.ToLower(string(name)), Value: viewString(value)})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return b.c.attrs[first:len(b.c.attrs):len(b.c.attrs)], nil
}
