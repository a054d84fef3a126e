package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// defaultWait is the server's.
	defaultWait = 5 * time.Second
	// NoWait as a Wait answers at once, with a message or without.
	NoWait time.Duration = -1
)

// Record is a stored message as a reader gets it.
type Record struct {
	ID          string // dedupe by it: the same in every delivery
	Partition   uint32
	Offset      uint64
	Key         []byte // nil: none
	Payload     []byte // a view of the answer's buffer: copy a few bytes to keep if the rest should go
	ContentType string
	Attributes  map[string]string
	CommittedAt time.Time
}

// Delivery is a leased record. It must be acked before Lease runs out, counted from
// when it was handed out, or extended.
type Delivery struct {
	Record
	Topic         string
	Incarnation   string
	DeliveryCount uint32 // 1 for the first
	Lease         time.Duration
	ReceiptHandle string
}

// ReceiveOptions of one consume call; the zero value asks for one message and waits 5 s.
type ReceiveOptions struct {
	Wait              time.Duration // up to 30 s; 0: 5 s; NoWait: none
	Max               int           // 1..1000; 0: 1
	MaxBytes          int64         // payload bytes together; 0: 8 MiB
	Partition         *uint32       // only this one; nil: all
	VisibilityTimeout time.Duration // 1 s..12 h; 0: the topic's
}

// Received is the answer of one consume call; Deliveries is empty when the wait passed.
type Received struct {
	Deliveries []Delivery
	// PartitionsUnavailable is how many partitions could not be asked.
	PartitionsUnavailable int
}

// Receive leases up to Max messages. It is repeated freely: what an answer that was
// lost had leased comes again after its visibility timeout.
func (c *Client) Receive(ctx context.Context, topic string, o ReceiveOptions) (Received, error) {
	call, err := topicCall("consume from", http.MethodPost, topic, "/consume")
	if err != nil {
		return Received{}, err
	}
	call.Query, call.Wait = o.query()
	call.Accept = batchType
	call.Safety = RepeatFreely
	ans, err := c.Do(ctx, call)
	if err != nil {
		return Received{}, err
	}
	var r Received
	r.PartitionsUnavailable, _ = strconv.Atoi(ans.Header.Get("Narad-Partitions-Unavailable")) // absent: 0
	if ans.Status == http.StatusNoContent {
		return r, nil
	}
	if r.Deliveries, err = decodeDeliveries(topic, ans.Body); err != nil {
		return Received{}, c.unreadable(call, ans, err)
	}
	if n := len(r.Deliveries); n > max(o.Max, 1) {
		return Received{}, c.unreadable(call, ans, fmt.Errorf("%d messages where %d were asked for", n, max(o.Max, 1)))
	}
	return r, nil
}

func (o ReceiveOptions) query() (url.Values, time.Duration) {
	q := url.Values{"max": {strconv.Itoa(max(o.Max, 1))}}
	wait := o.Wait
	switch {
	case wait < 0:
		wait = 0
	case wait == 0:
		wait = defaultWait
	}
	q.Set("wait", millis(wait))
	if o.MaxBytes > 0 {
		q.Set("max_bytes", strconv.FormatInt(o.MaxBytes, 10))
	}
	if o.Partition != nil {
		q.Set("partition", strconv.FormatUint(uint64(*o.Partition), 10))
	}
	if o.VisibilityTimeout > 0 {
		q.Set("visibility_timeout_ms", strconv.FormatInt(o.VisibilityTimeout.Milliseconds(), 10))
	}
	return q, wait
}

// Ack settles a delivery for good. Repeating an ack is harmless, so it is repeated
// freely. 410 lease_lost: the message will be, or was, delivered again.
func (c *Client) Ack(ctx context.Context, topic, handle string) error {
	return c.settleOne(ctx, "ack in", topic, "/ack", handle, nil)
}

// Extend lets a lease end visibility (1 s..12 h) from now.
func (c *Client) Extend(ctx context.Context, topic, handle string, visibility time.Duration) error {
	return c.settleOne(ctx, "extend in", topic, "/extend", handle,
		url.Values{"visibility_timeout_ms": {strconv.FormatInt(visibility.Milliseconds(), 10)}})
}

// Nack gives a delivery back, to be delivered again after delay (0..12 h).
func (c *Client) Nack(ctx context.Context, topic, handle string, delay time.Duration) error {
	return c.settleOne(ctx, "nack in", topic, "/nack", handle,
		url.Values{"delay_ms": {strconv.FormatInt(delay.Milliseconds(), 10)}})
}

func (c *Client) settleOne(ctx context.Context, verb, topic, rest, handle string, q url.Values) error {
	call, err := topicCall(verb, http.MethodPost, topic, rest)
	if err != nil {
		return err
	}
	if q == nil {
		q = url.Values{}
	}
	q.Set("receipt_handle", handle)
	call.Query = q
	call.Safety = RepeatFreely
	_, err = c.Do(ctx, call)
	return err
}

// AckMany settles up to MaxBatchMessages deliveries in one request; results are in
// the order of handles, each what Ack would have got. The call is repeated as a
// whole, single results are not.
func (c *Client) AckMany(ctx context.Context, topic string, handles []string) ([]ItemResult, error) {
	return c.settleMany(ctx, "ack in", topic, "/ack", handles, nil, nil)
}

// ExtendMany is Extend for many.
func (c *Client) ExtendMany(ctx context.Context, topic string, handles []string, visibility time.Duration) ([]ItemResult, error) {
	ms := visibility.Milliseconds()
	return c.settleMany(ctx, "extend in", topic, "/extend", handles, &ms, nil)
}

// NackMany is Nack for many.
func (c *Client) NackMany(ctx context.Context, topic string, handles []string, delay time.Duration) ([]ItemResult, error) {
	ms := delay.Milliseconds()
	return c.settleMany(ctx, "nack in", topic, "/nack", handles, nil, &ms)
}

func (c *Client) settleMany(ctx context.Context, verb, topic, rest string, handles []string, visibilityMS, delayMS *int64) ([]ItemResult, error) {
	call, err := topicCall(verb, http.MethodPost, topic, rest)
	if err != nil || len(handles) == 0 {
		return nil, err
	}
	call.Body, err = json.Marshal(struct {
		Handles      []string `json:"receipt_handles"`
		VisibilityMS *int64   `json:"visibility_timeout_ms,omitempty"`
		DelayMS      *int64   `json:"delay_ms,omitempty"`
	}{handles, visibilityMS, delayMS})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call.Op, err)
	}
	call.ContentType = jsonType
	call.Safety = RepeatFreely
	var out struct {
		Results []ItemResult `json:"results"`
	}
	ans, err := c.doJSON(ctx, call, &out)
	if err != nil {
		return nil, err
	}
	if len(out.Results) != len(handles) {
		return nil, c.unreadable(call, ans, fmt.Errorf("%d results for %d handles", len(out.Results), len(handles)))
	}
	return out.Results, nil
}
