package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// ReplayOptions say where reading starts. The zero value reads partition 0 from the
// start of its log.
type ReplayOptions struct {
	Partition   uint32
	Offset      *uint64   // first offset; nil: Since, else the log's start
	Since       time.Time // first record committed at or after; not together with Offset
	Incarnation string    // refuses any other life of the topic; empty: pinned from the first page on
	PageSize    int       // records per request, 1..1000; 0: 1000
	MaxBytes    int64     // payload bytes per request; 0: the server's 8 MiB
	// Confirmed makes the leader sure, by a majority of the replicas, that it still
	// leads: then nothing that was committed before the call is missing.
	Confirmed bool
}

// ReplayPage is one answer: records without leases, and where the log stands.
type ReplayPage struct {
	Records       []Record
	Incarnation   string
	LogStart      uint64
	NextOffset    uint64
	HighWatermark uint64
}

// ReplayOnce reads one page.
func (c *Client) ReplayOnce(ctx context.Context, topic string, o ReplayOptions) (ReplayPage, error) {
	call, err := topicCall("replay", http.MethodGet, topic, "/messages")
	if err != nil {
		return ReplayPage{}, err
	}
	call.Query = o.query()
	call.Accept = batchType
	call.Safety = RepeatFreely
	ans, err := c.Do(ctx, call)
	if err != nil {
		return ReplayPage{}, err
	}
	page, err := decodeReplay(ans.Body)
	if err != nil {
		return ReplayPage{}, c.unreadable(call, ans, err)
	}
	return page, nil
}

// Replay yields the records of one partition up to the high watermark of the moment
// when it is reached. It leases nothing and settles nothing. An error ends it:
// topic_changed when the topic was created anew meanwhile, offset_gone when retention
// overtook the reader.
func (c *Client) Replay(ctx context.Context, topic string, o ReplayOptions) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			page, err := c.ReplayOnce(ctx, topic, o)
			if err != nil {
				yield(Record{}, err)
				return
			}
			for _, r := range page.Records {
				if !yield(r, nil) {
					return
				}
			}
			if page.NextOffset >= page.HighWatermark {
				return
			}
			if o.Offset != nil && page.NextOffset <= *o.Offset {
				yield(Record{}, fmt.Errorf("replay %q: the answer did not move on from offset %d", topic, *o.Offset))
				return
			}
			next := page.NextOffset
			o.Offset, o.Since, o.Incarnation = &next, time.Time{}, page.Incarnation
		}
	}
}

func (o ReplayOptions) query() url.Values {
	size := o.PageSize
	if size <= 0 {
		size = MaxBatchMessages
	}
	q := url.Values{
		"partition": {strconv.FormatUint(uint64(o.Partition), 10)},
		"limit":     {strconv.Itoa(size)},
	}
	if o.Offset != nil {
		q.Set("offset", strconv.FormatUint(*o.Offset, 10))
	}
	if !o.Since.IsZero() {
		q.Set("since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	if o.MaxBytes > 0 {
		q.Set("max_bytes", strconv.FormatInt(o.MaxBytes, 10))
	}
	if o.Incarnation != "" {
		q.Set("incarnation", o.Incarnation)
	}
	if o.Confirmed {
		q.Set("confirmed", "true")
	}
	return q
}
