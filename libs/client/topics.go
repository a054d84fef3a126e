package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// TopicSpec is what a topic is created with. Nil and empty mean the server's default.
type TopicSpec struct {
	Name                    string `json:"name"`
	Partitions              int    `json:"partitions,omitempty"`
	ReplicationFactor       int    `json:"replication_factor,omitempty"`
	RetentionMS             *int64 `json:"retention_ms,omitempty"`
	RetentionBytes          *int64 `json:"retention_bytes,omitempty"`
	VisibilityTimeoutMS     int64  `json:"visibility_timeout_ms,omitempty"`
	MaxInFlightPerPartition int    `json:"max_in_flight_per_partition,omitempty"`
	MaxAckedAhead           int    `json:"max_acked_ahead_per_partition,omitempty"`
	Reroute                 *bool  `json:"reroute,omitempty"`
	MaxDeliveries           int    `json:"max_deliveries,omitempty"`
	DeadLetterTopic         string `json:"dead_letter_topic,omitempty"`
	Parent                  string `json:"parent,omitempty"`
	DelayMS                 *int64 `json:"delay_ms,omitempty"`
}

// TopicChange is what UpdateTopic sets; nil fields stay. At least one is needed.
type TopicChange struct {
	Partitions              *int    `json:"partitions,omitempty"`
	RetentionMS             *int64  `json:"retention_ms,omitempty"`
	RetentionBytes          *int64  `json:"retention_bytes,omitempty"`
	VisibilityTimeoutMS     *int64  `json:"visibility_timeout_ms,omitempty"`
	MaxInFlightPerPartition *int    `json:"max_in_flight_per_partition,omitempty"`
	MaxAckedAhead           *int    `json:"max_acked_ahead_per_partition,omitempty"`
	Reroute                 *bool   `json:"reroute,omitempty"`
	MaxDeliveries           *int    `json:"max_deliveries,omitempty"`
	DeadLetterTopic         *string `json:"dead_letter_topic,omitempty"`
}

// Topic is one life of a named stream and its settings.
type Topic struct {
	Name                    string          `json:"name"`
	Incarnation             string          `json:"incarnation"` // 16 hex digits: this life of the name
	Version                 uint64          `json:"version"`     // grows by one per change
	CreatedAt               time.Time       `json:"created_at"`
	Role                    string          `json:"role"`
	Partitions              int             `json:"partitions"`
	ReplicationFactor       int             `json:"replication_factor"`
	RetentionMS             int64           `json:"retention_ms"`    // 0: for ever
	RetentionBytes          int64           `json:"retention_bytes"` // per partition; 0: no bound
	VisibilityTimeoutMS     int64           `json:"visibility_timeout_ms"`
	MaxInFlightPerPartition int             `json:"max_in_flight_per_partition"`
	MaxAckedAhead           int             `json:"max_acked_ahead_per_partition"`
	Reroute                 bool            `json:"reroute"`
	MaxDeliveries           int             `json:"max_deliveries"`
	DeadLetterTopic         *string         `json:"dead_letter_topic"`
	Parent                  *string         `json:"parent"`
	DelayMS                 *int64          `json:"delay_ms"`
	Children                json.RawMessage `json:"children"`
}

// ETag of exactly this version, for UpdateTopic and DeleteTopic.
func (t Topic) ETag() string {
	return fmt.Sprintf("%q", t.Incarnation+"-"+strconv.FormatUint(t.Version, 10))
}

// TopicDetails is a topic and what its partitions say. Numbers are nil when their
// leader could not be asked; Partial is true then.
type TopicDetails struct {
	Topic
	Backlog           *uint64            `json:"backlog"` // messages not settled yet
	InFlight          *uint64            `json:"in_flight"`
	OldestUnsettledMS *int64             `json:"oldest_unsettled_ms"`
	Bytes             *int64             `json:"bytes"`
	Partial           bool               `json:"partial"`
	PartitionDetails  []PartitionDetails `json:"partition_details"`
}

// PartitionDetails is one partition as its leader sees it.
type PartitionDetails struct {
	Index             uint32    `json:"index"`
	Status            string    `json:"status"` // ok, no_leader, unavailable, lost
	Leader            *string   `json:"leader"`
	LeaderEpoch       *uint64   `json:"leader_epoch"`
	Replicas          []Replica `json:"replicas"`
	LogStart          *uint64   `json:"log_start"`
	HighWatermark     *uint64   `json:"high_watermark"`
	LogEnd            *uint64   `json:"log_end"`
	Frontier          *uint64   `json:"frontier"`
	SettledAhead      *uint64   `json:"settled_ahead"`
	InFlight          *uint64   `json:"in_flight"`
	OldestUnsettledMS *int64    `json:"oldest_unsettled_ms"`
	DroppedUnsettled  *uint64   `json:"dropped_unsettled"`
	Bytes             *int64    `json:"bytes"`
}

// Replica is one copy of a partition.
type Replica struct {
	ID     string  `json:"id"`
	LogEnd *uint64 `json:"log_end"`
	Lag    *uint64 `json:"lag"`
	InSync *bool   `json:"in_sync"`
}

// errNoTopic is refused here because the path without a name is another route.
var errNoTopic = errors.New("no topic name given")

func topicPath(topic, rest string) string { return "/v1/topics/" + url.PathEscape(topic) + rest }

func topicCall(verb, method, topic, rest string) (Call, error) {
	if topic == "" {
		return Call{}, fmt.Errorf("%s: %w", verb, errNoTopic)
	}
	return Call{Op: fmt.Sprintf("%s %q", verb, topic), Method: method, Path: topicPath(topic, rest)}, nil
}

// CreateTopic creates a topic. An unknown outcome is not repeated: read it back.
func (c *Client) CreateTopic(ctx context.Context, spec TopicSpec) (Topic, error) {
	return c.createTopic(ctx, spec, RepeatIfNotApplied)
}

// CreateTopicIfAbsent creates the topic or returns the one that has the name (as it
// is: it may differ from spec). created tells which; after an answer that was lost it
// can be false for a topic that this very call created.
func (c *Client) CreateTopicIfAbsent(ctx context.Context, spec TopicSpec) (t Topic, created bool, err error) {
	t, err = c.createTopic(ctx, spec, RepeatFreely)
	var e *Error
	if errors.As(err, &e) && e.Code == CodeTopicExists {
		if !e.Member("topic", &t) {
			e.Detail = "the answer does not carry the existing topic"
			return Topic{}, false, e
		}
		return t, false, nil
	}
	return t, err == nil, err
}

func (c *Client) createTopic(ctx context.Context, spec TopicSpec, safety Safety) (Topic, error) {
	body, err := json.Marshal(spec)
	if err != nil {
		return Topic{}, fmt.Errorf("create topic %q: %w", spec.Name, err)
	}
	var t Topic
	_, err = c.doJSON(ctx, Call{
		Op: fmt.Sprintf("create topic %q", spec.Name), Method: http.MethodPost, Path: "/v1/topics",
		ContentType: jsonType, Body: body, Safety: safety,
	}, &t)
	return t, err
}

// Topic reads a topic and the state of its partitions.
func (c *Client) Topic(ctx context.Context, name string) (TopicDetails, error) {
	var t TopicDetails
	call, err := topicCall("read topic", http.MethodGet, name, "")
	if err != nil {
		return t, err
	}
	call.Safety = RepeatFreely
	_, err = c.doJSON(ctx, call, &t)
	return t, err
}

// Topics yields the topics whose name starts with prefix, by name, reading page
// after page. A failed page is yielded as an error and ends the sequence.
func (c *Client) Topics(ctx context.Context, prefix string) iter.Seq2[Topic, error] {
	return func(yield func(Topic, error) bool) {
		token := ""
		for {
			page, next, err := c.topicPage(ctx, prefix, token)
			if err != nil {
				yield(Topic{}, err)
				return
			}
			for _, t := range page {
				if !yield(t, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			token = next
		}
	}
}

func (c *Client) topicPage(ctx context.Context, prefix, token string) ([]Topic, string, error) {
	q := url.Values{"limit": {"1000"}}
	if prefix != "" {
		q.Set("prefix", prefix)
	}
	if token != "" {
		q.Set("page_token", token)
	}
	var page struct {
		Topics []Topic `json:"topics"`
		Next   *string `json:"next_page_token"`
	}
	call := Call{Op: "list topics", Method: http.MethodGet, Path: "/v1/topics", Query: q, Safety: RepeatFreely}
	if _, err := c.doJSON(ctx, call, &page); err != nil {
		return nil, "", err
	}
	if page.Next == nil || *page.Next == "" {
		return page.Topics, "", nil
	}
	if *page.Next == token {
		return nil, "", &Error{Op: call.Op, Detail: "the gateway gave the same page token twice", Status: http.StatusOK}
	}
	return page.Topics, *page.Next, nil
}

// UpdateTopic changes settings, all or none. etag (Topic.ETag) makes it conditional:
// 412 precondition_failed when somebody changed the topic in between; empty: whatever
// the topic is now. An unknown outcome is not repeated: read it back.
func (c *Client) UpdateTopic(ctx context.Context, name string, change TopicChange, etag string) (Topic, error) {
	var t Topic
	call, err := topicCall("change topic", http.MethodPatch, name, "")
	if err != nil {
		return t, err
	}
	if call.Body, err = json.Marshal(change); err != nil {
		return t, fmt.Errorf("%s: %w", call.Op, err)
	}
	call.ContentType = jsonType
	call.Header = ifMatch(etag)
	_, err = c.doJSON(ctx, call, &t)
	return t, err
}

// DeleteTopic ends a topic. With etag only that version is hit, so an unknown
// outcome is repeated, and a 404 after one counts as done. Without etag a repeat
// could hit a topic that was created anew: it is left to the caller.
func (c *Client) DeleteTopic(ctx context.Context, name, etag string) error {
	call, err := topicCall("delete topic", http.MethodDelete, name, "")
	if err != nil {
		return err
	}
	call.Header = ifMatch(etag)
	if etag != "" {
		call.Safety = RepeatFreely
	}
	_, err = c.Do(ctx, call)
	var e *Error
	if etag != "" && errors.As(err, &e) && e.Code == CodeTopicNotFound && e.Applied == AppliedUnknown {
		return nil
	}
	return err
}

func ifMatch(etag string) http.Header {
	if etag == "" {
		return nil
	}
	return http.Header{"If-Match": {etag}}
}
