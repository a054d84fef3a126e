package api

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/client/batch"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// consumeOptions are the parameters of a consume that shape the answer.
type consumeOptions struct {
	list     bool // max was given: a list, also of one
	inBase64 bool
	binary   bool
}

// consume leases messages: POST and GET /v1/topics/{topic}/consume.
func (c *call) consume() error {
	var req ConsumeRequest
	opts, err := c.consumeParameters(&req)
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	if req.Partition, err = c.partition(t); err != nil {
		return err
	}
	req.Topic = t
	if c.req.Client != nil {
		req.Gone = c.req.Client.Gone
	}
	ctx := c.api.parked
	if c.api.draining.Load() {
		// A draining gateway serves what is there, and parks nobody.
		ctx, req.Wait = context.Background(), 0
	}
	res, err := c.api.deps.Consumer.Consume(ctx, &req)
	if err != nil {
		if ctx.Err() == nil {
			return err
		}
		res = &ConsumeResult{} // the drain ended the wait: nothing for this caller
	}
	c.resp.Unavailable = res.Unavailable
	c.hold(t, res.Deliveries)
	if len(res.Deliveries) == 0 || req.Gone != nil && req.Gone() {
		// Nothing, or nobody to give it to: the leases go back now, not when they expire.
		c.dropLeases()
		c.resp.Status = 204
		return nil
	}
	return c.writeDeliveries(t, res.Deliveries, opts)
}

func (c *call) consumeParameters(req *ConsumeRequest) (o consumeOptions, err error) {
	if req.Wait, err = c.query.duration("wait", DefaultWait, 0, MaxWait); err != nil {
		return o, err
	}
	n, err := c.query.integer("max", 1, 1, MaxMessages)
	if err != nil {
		return o, err
	}
	req.Max = int(n)
	if n, err = c.query.integer("max_bytes", DefaultAnswerBytes, 1, MaxAnswerBytes); err != nil {
		return o, err
	}
	req.MaxBytes = int(n)
	req.VisibilityMS, err = c.query.integer("visibility_timeout_ms", 0, topic.MinVisibilityMS, topic.MaxVisibilityMS)
	if err != nil {
		return o, err
	}
	_, o.list = c.query.raw("max")
	o.inBase64, err = c.encodingParameter()
	o.binary = c.wantsBinary()
	return o, err
}

// encodingParameter tells whether payloads are asked for in base64.
func (c *call) encodingParameter() (bool, error) {
	v, ok := c.query.raw("encoding")
	if ok && string(v) != "base64" {
		return false, badParameter("encoding", "encoding is base64 or not given")
	}
	return ok, nil
}

func (c *call) wantsBinary() bool {
	v, n := c.req.Headers.Get("Accept")
	return n == 1 && acceptsBatch(v)
}

func (c *call) writeDeliveries(t *topic.Topic, ds []nodeapi.Delivery, o consumeOptions) error {
	if o.binary {
		return c.writeBinaryDeliveries(t, ds)
	}
	c.json(200)
	if o.list {
		c.out = append(c.out, `{"messages":[`...)
	}
	for i := range ds {
		m, err := delivered(&ds[i])
		if err != nil {
			return err
		}
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendMessage(c.out, t, &m, o.inBase64)
	}
	if o.list {
		c.out = append(c.out, `]}`...)
	}
	return nil
}

func (c *call) writeBinaryDeliveries(t *topic.Topic, ds []nodeapi.Delivery) error {
	c.resp.Status, c.resp.ContentType = 200, batch.ContentType
	w := batch.NewWriter(c.out[:0], batch.Delivery, batch.Meta{Incarnation: uint64(t.Incarnation)})
	var r batch.Record
	var attrs []batch.Attr
	var handle []byte
	for i := range ds {
		m, err := delivered(&ds[i])
		if err != nil {
			return err
		}
		attrs, handle = m.binary(&r, t, attrs, handle)
		if err := w.Add(&r); err != nil {
			return err
		}
	}
	c.out = w.Bytes(true)
	return nil
}

// replay reads without leasing: GET /v1/topics/{topic}/messages.
func (c *call) replay() error {
	req, inBase64, err := c.replayParameters()
	if err != nil {
		return err
	}
	t, err := c.resolve()
	if err != nil {
		return err
	}
	if err := c.checkIncarnation(t); err != nil {
		return err
	}
	partition, err := c.partition(t)
	if err != nil {
		return err
	}
	if partition == AnyPartition {
		return badParameter("partition", "a replay names its partition")
	}
	ctx, cancel := c.within(readBudget)
	defer cancel()
	res, err := c.api.deps.Consumer.Read(ctx, t, partition, req)
	if err != nil {
		return err
	}
	if c.wantsBinary() {
		return c.writeBinaryPage(t, partition, res)
	}
	return c.writePage(t, partition, res, inBase64)
}

func (c *call) replayParameters() (req nodeapi.ReadRequest, inBase64 bool, err error) {
	req.Offset = -1
	at, hasOffset := c.query.raw("offset")
	since, hasSince, err := c.query.text("since", nil)
	if err != nil {
		return req, false, err
	}
	if hasOffset && hasSince {
		return req, false, badParameter("since", "offset and since exclude each other")
	}
	if hasOffset {
		var ok bool
		if req.Offset, ok = offset(at); !ok {
			return req, false, badParameter("offset", "offset must be a number from 0")
		}
	}
	if hasSince {
		when, err := time.Parse(time.RFC3339, string(since))
		if err != nil {
			return req, false, badParameter("since", "since is a time like 2026-11-29T20:04:05Z")
		}
		req.SinceMS = max(1, ceilMS(when)) // 0 would mean that none was given
	}
	n, err := c.query.integer("limit", DefaultReplayLimit, 1, MaxMessages)
	if err != nil {
		return req, false, err
	}
	req.Limit = int(n)
	if n, err = c.query.integer("max_bytes", DefaultAnswerBytes, 1, MaxAnswerBytes); err != nil {
		return req, false, err
	}
	req.MaxBytes = int(n)
	if v, ok := c.query.raw("confirmed"); ok {
		req.Confirmed = string(v) == "true"
		if !req.Confirmed && string(v) != "false" {
			return req, false, badParameter("confirmed", "confirmed is true or false")
		}
	}
	inBase64, err = c.encodingParameter()
	return req, inBase64, err
}

// ceilMS is the first whole millisecond at or after when.
func ceilMS(when time.Time) int64 {
	ms := when.UnixMilli()
	if time.UnixMilli(ms).Before(when) {
		ms++
	}
	return ms
}

func (c *call) writePage(t *topic.Topic, partition int32, res *nodeapi.ReadResult, inBase64 bool) error {
	c.json(200)
	c.out = append(c.out, `{"incarnation":"`...)
	c.out = append(appendID(c.out, t.Incarnation), '"')
	c.out = appendNumber(c.out, "log_start", res.LogStart)
	c.out = appendNumber(c.out, "next_offset", res.NextOffset)
	c.out = appendNumber(c.out, "high_watermark", res.HighWatermark)
	c.out = append(c.out, `,"messages":[`...)
	for i := range res.Records {
		m, err := replayed(partition, &res.Records[i])
		if err != nil {
			return err
		}
		if i > 0 {
			c.out = append(c.out, ',')
		}
		c.out = appendMessage(c.out, t, &m, inBase64)
	}
	c.out = append(c.out, `]}`...)
	return nil
}

func (c *call) writeBinaryPage(t *topic.Topic, partition int32, res *nodeapi.ReadResult) error {
	c.resp.Status, c.resp.ContentType = 200, batch.ContentType
	w := batch.NewWriter(c.out[:0], batch.Replay, batch.Meta{
		Incarnation: uint64(t.Incarnation), NextOffset: res.NextOffset, HighWatermark: res.HighWatermark, LogStart: res.LogStart,
	})
	var r batch.Record
	var attrs []batch.Attr
	for i := range res.Records {
		m, err := replayed(partition, &res.Records[i])
		if err != nil {
			return err
		}
		attrs, _ = m.binary(&r, t, attrs, nil)
		if err := w.Add(&r); err != nil {
			return err
		}
	}
	c.out = w.Bytes(true)
	return nil
}
