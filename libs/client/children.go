package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Child is one topic that every committed message of another is copied to.
type Child struct {
	Child           string    `json:"child"`
	Incarnation     string    `json:"incarnation"`
	DelayMS         int64     `json:"delay_ms"` // 0: a plain child
	AttachEpoch     string    `json:"attach_epoch"`
	AttachedAt      time.Time `json:"attached_at"`
	LagMessages     int64     `json:"lag_messages"`     // to be copied; those that are not due included
	DueLagMS        int64     `json:"due_lag_ms"`       // for how long the message most overdue has been due
	DroppedMessages int64     `json:"dropped_messages"` // removed by the parent's retention before they were copied; an estimate, never 0 when there were some
	Partial         bool      `json:"partial"`          // some partitions did not say
	Cursors         []Cursor  `json:"cursors"`
}

// Cursor is how far one partition of a parent was copied.
type Cursor struct {
	Partition     uint32 `json:"partition"`
	Node          string `json:"node"`
	NextOffset    int64  `json:"next_offset"`
	HighWatermark int64  `json:"high_watermark"`
	DueLagMS      int64  `json:"due_lag_ms"`
}

// AttachChild is not repeated once it may have been done: list the children then. It
// copies every message that is committed to parent from now on to child,
// each no earlier than delay after its commit. The delay counts in whole milliseconds.
func (c *Client) AttachChild(ctx context.Context, parent, child string, delay time.Duration) (Child, error) {
	call, err := topicCall("attach to", http.MethodPost, parent, "/children")
	if err != nil {
		return Child{}, err
	}
	call.Body, err = json.Marshal(struct {
		Child   string `json:"child"`
		DelayMS int64  `json:"delay_ms"`
	}{child, delay.Milliseconds()})
	if err != nil {
		return Child{}, fmt.Errorf("%s: %w", call.Op, err)
	}
	call.ContentType = jsonType
	var out Child
	_, err = c.doJSON(ctx, call, &out)
	return out, err
}

// Children lists the children of a topic by name.
func (c *Client) Children(ctx context.Context, parent string) ([]Child, error) {
	call, err := topicCall("list children of", http.MethodGet, parent, "/children")
	if err != nil {
		return nil, err
	}
	var out struct {
		Children []Child `json:"children"`
	}
	call.Safety = RepeatFreely
	_, err = c.doJSON(ctx, call, &out)
	return out.Children, err
}

// DetachChild ends the copying. Both topics stay, and what was copied stays.
func (c *Client) DetachChild(ctx context.Context, parent, child string) error {
	call, err := topicCall("detach from", http.MethodDelete, parent, "/children/"+url.PathEscape(child))
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, call)
	return err
}
