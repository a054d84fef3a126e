package api

import (
	"context"
	"errors"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// produce stores one message: POST /v1/topics/{topic}/produce.
func (c *call) produce() error {
	ack, err := c.wantedAck()
	if err != nil {
		return err
	}
	if err := c.numberOf(&ack); err != nil {
		return err
	}
	contentType, err := c.storedContentType()
	if err != nil {
		return err
	}
	encoding, err := c.contentEncoding()
	if err != nil {
		return err
	}
	key, _, err := c.query.text("key", c.key)
	if err != nil {
		return problem.New(problem.InvalidKey, "the key is not percent-encoded")
	}
	if err := checkKey(key); err != nil {
		return err
	}
	attrs, err := c.collectAttributes()
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	if err := takesProduce(t); err != nil {
		return err
	}
	pin, err := c.pinned(t)
	if err != nil {
		return err
	}
	payload, err := c.readDecoded(encoding, c.api.cfg.MaxMessageBytes, problem.MessageTooLarge)
	if err != nil {
		return err
	}
	if len(payload) == 0 {
		return problem.New(problem.EmptyMessage, "a message has at least one byte")
	}
	c.msgs = append(c.msgs[:0], Produced{Pin: pin, Message: record.Message{
		Key: none(key), ContentType: viewString(contentType), Attrs: attrs, Payload: payload,
	}})
	if ack.committed {
		return c.commitOne(t, &ack)
	}
	id, err := c.accept(t)
	if err != nil {
		return err
	}
	c.json(202)
	c.out = append(c.out, `{"id":`...)
	c.out = appendString(c.out, id)
	c.out = append(c.out, `,"incarnation":"`...)
	c.out = appendID(c.out, t.Incarnation)
	c.out = append(c.out, `"}`...)
	return nil
}

// accept hands c.msgs to the WAL. There is no deadline: what is staged is waited
// for, since giving up would not take it back.
func (c *call) accept(t *topic.Topic) (string, error) {
	return c.api.deps.Producer.Accept(context.Background(), t, c.msgs)
}

// none turns an empty key into no key.
func none(key []byte) []byte {
	if len(key) == 0 {
		return nil
	}
	return key
}

// storedContentType is the type kept with the message: none when the header says nothing.
func (c *call) storedContentType() ([]byte, error) {
	v, n := c.req.Headers.Get("Content-Type")
	if n == 0 || len(v) == 0 {
		return nil, nil
	}
	if n > 1 {
		return nil, badParameter("Content-Type", "Content-Type is given twice")
	}
	e := essence(v)
	if equalFold(e, typeForm) {
		return nil, nil
	}
	if equalFold(e, batch.ContentType) {
		return nil, problem.New(problem.UnsupportedMediaType, "send batches to produce/batch")
	}
	return v, checkContentType(v, "Content-Type")
}

// resolve looks the topic up: in memory nearly always, and bounded by the callee.
func (c *call) resolve() (*topic.Topic, error) {
	return c.api.deps.Topics.Resolve(context.Background(), c.topic)
}

// pinned checks the partition and incarnation that a produce names.
func (c *call) pinned(t *topic.Topic) (int32, error) {
	if err := c.checkIncarnation(t); err != nil {
		return 0, err
	}
	return c.partition(t)
}

// partition reads the partition parameter; AnyPartition without one.
func (c *call) partition(t *topic.Topic) (int32, error) {
	raw, ok := c.query.raw("partition")
	if !ok {
		return AnyPartition, nil
	}
	p, ok := digits(raw)
	if !ok {
		return 0, badParameter("partition", "partition must be a number")
	}
	return checkPartition(p, t)
}

func checkPartition(p int64, t *topic.Topic) (int32, error) {
	if p >= int64(t.Partitions) {
		return 0, problem.New(problem.PartitionOutOfRange, "%q has %d partitions, from 0", t.Name, t.Partitions).
			With("partitions", t.Partitions)
	}
	return int32(p), nil
}

// checkIncarnation refuses any life of the topic but the one that the caller names.
func (c *call) checkIncarnation(t *topic.Topic) error {
	raw, ok := c.query.raw("incarnation")
	if !ok {
		return nil
	}
	want, err := topic.ParseID64(string(raw))
	if err != nil {
		return badParameter("incarnation", "incarnation is 16 lower-case hex digits")
	}
	if want != t.Incarnation {
		return problem.New(problem.TopicChanged, "%q is another topic than the one that was named", t.Name).
			With("incarnation", t.Incarnation)
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// appendID appends the 16 hex digits of id.
func appendID(dst []byte, id topic.ID64) []byte {
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, hexDigits[uint64(id)>>shift&15])
	}
	return dst
}

// withIndex adds the place of a message to its refusal.
func withIndex(err error, i int) error {
	var p *problem.Problem
	if errors.As(err, &p) {
		return p.With("index", i)
	}
	return err
}
