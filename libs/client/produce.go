package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// MaxBatchMessages is what one ProduceBatch, Receive or settling call may carry.
const MaxBatchMessages = 1000

// Message is what a producer sends. Payload has 1 byte or more; the gateway's limit
// is 1 MiB unless its operator changed it.
type Message struct {
	Payload     []byte
	Key         []byte            // up to 1024 bytes; empty: none. Decides the partition
	ContentType string            // up to 256 printable ASCII; empty: none
	Attributes  map[string]string // up to 16; names of a-z 0-9 -
	Partition   *uint32           // pins the message (see Pin); nil: by key, else round-robin
}

// Pin is for Message.Partition and the options: a fixed partition.
func Pin(partition uint32) *uint32 { return &partition }

// ProduceOptions of Produce and ProduceBatch; the zero value asks for a 202.
type ProduceOptions struct {
	// Committed waits until a majority of the partition's replicas has synced the
	// message, at most Timeout (100 ms..30 s; 0: the server's 5 s).
	Committed bool
	Timeout   time.Duration
	// Incarnation refuses any other life of the topic (409 topic_changed). Single produce only.
	Incarnation string
	// Producer and Seq number a single Committed produce with Message.Partition (id of
	// 1..64 of A-Za-z0-9._-; from 0, each the last plus one, per partition). A repeat
	// gets the first answer, so that Produce repeats until it knows the outcome or gives
	// up; any other number is CodeOutOfSequence, whose member expected tells what to go
	// on with. A producer that was unused for a day is forgotten: take a new id then.
	Producer string
	Seq      uint64
	// AllowDuplicates repeats a produce whose outcome is unknown: rather twice than an error.
	AllowDuplicates bool
}

// Receipt is the answer to one produced message. Partition and Offset are set when
// it was Committed, Incarnation otherwise.
type Receipt struct {
	ID          string  `json:"id"` // the same in every delivery of the message
	Incarnation string  `json:"incarnation"`
	Partition   *uint32 `json:"partition"`
	Offset      *uint64 `json:"offset"`
	Raw         []byte  `json:"-"` // the answer as it came
}

// Produce stores one message. When the error's Applied is unknown the message may
// have been stored.
func (c *Client) Produce(ctx context.Context, topic string, m Message, o ProduceOptions) (Receipt, error) {
	var r Receipt
	call, err := topicCall("produce to", http.MethodPost, topic, "/produce")
	if err != nil {
		return r, err
	}
	o.apply(&call)
	if o.Incarnation != "" {
		call.Query.Set("incarnation", o.Incarnation)
	}
	if len(m.Key) > 0 {
		call.Query.Set("key", string(m.Key))
	}
	if m.Partition != nil {
		call.Query.Set("partition", strconv.FormatUint(uint64(*m.Partition), 10))
	}
	if call.Header, err = attributeHeaders(m.Attributes); err != nil {
		return r, fmt.Errorf("%s: %w", call.Op, err)
	}
	if o.Producer != "" {
		if !o.Committed || m.Partition == nil {
			return r, fmt.Errorf("%s: a producer's number needs Committed and a partition", call.Op)
		}
		if call.Header == nil {
			call.Header = http.Header{}
		}
		call.Header["Narad-Producer"] = []string{o.Producer + ":" + strconv.FormatUint(o.Seq, 10)}
		call.Safety = RepeatFreely
	}
	call.ContentType = m.ContentType
	call.Body = m.Payload
	ans, err := c.doJSON(ctx, call, &r)
	if err == nil {
		r.Raw = ans.Body
	}
	return r, err
}

// BatchReceipt is the answer to a batch: Accepted counts a 202; with Committed,
// Results has one entry per message, in order.
type BatchReceipt struct {
	Accepted  int          `json:"accepted"`
	Committed int          `json:"committed"`
	Results   []ItemResult `json:"results"`
	Raw       []byte       `json:"-"` // the answer as it came
}

// ItemResult is one message's or handle's outcome: what a single call would have got.
type ItemResult struct {
	Status    int     `json:"status"`
	Code      Code    `json:"code"`
	Applied   Applied `json:"applied"`
	Partition uint32  `json:"partition"` // of a committed message
	Offset    uint64  `json:"offset"`
	Detail    string  `json:"detail"`
}

// OK tells whether the item succeeded.
func (r ItemResult) OK() bool { return r.Status/100 == 2 }

// ProduceBatch stores up to MaxBatchMessages messages in one request, in the binary
// format. A bad message refuses the whole batch; with Committed single partitions may
// fail: look at Results. It is never split here.
func (c *Client) ProduceBatch(ctx context.Context, topic string, msgs []Message, o ProduceOptions) (BatchReceipt, error) {
	var r BatchReceipt
	call, err := topicCall("produce batch to", http.MethodPost, topic, "/produce/batch")
	if err != nil {
		return r, err
	}
	if o.Incarnation != "" || o.Producer != "" {
		return r, fmt.Errorf("%s: a batch takes no incarnation and no producer", call.Op)
	}
	if call.Body, err = encodeProduce(msgs); err != nil {
		return r, fmt.Errorf("%s: %w", call.Op, err)
	}
	o.apply(&call)
	call.ContentType = batchType
	ans, err := c.doJSON(ctx, call, &r)
	if err != nil {
		return r, err
	}
	r.Raw = ans.Body
	if o.Committed && len(r.Results) != len(msgs) {
		return r, c.unreadable(call, ans, fmt.Errorf("%d results for %d messages", len(r.Results), len(msgs)))
	}
	return r, nil
}

func (o ProduceOptions) apply(call *Call) {
	call.Query = url.Values{}
	if o.Committed {
		call.Query.Set("ack", "committed")
		if o.Timeout > 0 {
			call.Query.Set("timeout", millis(o.Timeout))
		}
		call.Wait = o.Timeout
	}
	if o.AllowDuplicates {
		call.Safety = RepeatFreely
	}
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// attributeHeaders refuses what net/http would change silently on its way: white
// space at the ends, and names that differ in case only. The rest is the gateway's to judge.
func attributeHeaders(attrs map[string]string) (http.Header, error) {
	if len(attrs) == 0 {
		return nil, nil
	}
	h := make(http.Header, len(attrs))
	for name, value := range attrs {
		k := http.CanonicalHeaderKey("Narad-Attr-" + name)
		if h[k] != nil {
			return nil, fmt.Errorf("attribute %q is given twice", strings.ToLower(name))
		}
		if name == "" || value != strings.Trim(value, " \t") {
			return nil, errors.New("an attribute needs a name, and a value without white space at its ends")
		}
		h[k] = []string{value}
	}
	return h, nil
}
