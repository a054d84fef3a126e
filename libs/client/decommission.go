package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Reason is one thing that keeps a member from being removed.
type Reason struct {
	Code       string   `json:"code"`
	Message    string   `json:"message"`
	Topics     []string `json:"topics"` // the first that it is about
	TopicCount int      `json:"topic_count"`
}

// Decommission is how far the removal of a member is.
type Decommission struct {
	StartedAt         time.Time `json:"started_at"`
	PartitionsLeft    int       `json:"partitions_left"`
	WALBacklogRecords uint64    `json:"wal_backlog_records"`
	Blocked           []Reason  `json:"blocked"` // what keeps it back; it passes, or somebody has to act
}

// DecommissionPlan is what a dry run found.
type DecommissionPlan struct {
	ID                string   `json:"id"`
	WouldDecommission bool     `json:"would_decommission"` // the request would be accepted
	Reasons           []Reason `json:"reasons"`
	PartitionsLed     int      `json:"partitions_led"`
	Replicas          int      `json:"replicas"`
	WALBacklogRecords uint64   `json:"wal_backlog_records"`
}

// Decommission begins to remove a member for good; it ends by itself, see
// Member.Decommission, and the member is in Members.Tombstones then. acceptDataLoss
// lets a member that is marked dead go with what only it has, until it comes back; for one
// that lives with the disk of its copies it is refused. It is repeated freely.
func (c *Client) Decommission(ctx context.Context, id string, acceptDataLoss bool) error {
	_, err := c.Do(ctx, Call{Op: "decommission", Method: http.MethodPost, Path: decommissionPath(id), Query: lossQuery(acceptDataLoss), Safety: RepeatFreely})
	return err
}

// PlanDecommission tells what would keep a member back, and changes nothing.
func (c *Client) PlanDecommission(ctx context.Context, id string, acceptDataLoss bool) (DecommissionPlan, error) {
	q := lossQuery(acceptDataLoss)
	q.Set("dry_run", "true")
	var out DecommissionPlan
	_, err := c.doJSON(ctx, Call{Op: "plan decommission", Method: http.MethodPost, Path: decommissionPath(id), Query: q, Safety: RepeatFreely}, &out)
	return out, err
}

// CancelDecommission keeps a member that drains. It is not repeated once it may have
// been done.
func (c *Client) CancelDecommission(ctx context.Context, id string) error {
	_, err := c.Do(ctx, Call{Op: "cancel decommission", Method: http.MethodDelete, Path: decommissionPath(id)})
	return err
}

// ResetPartition lets a lost partition go on without what is lost, which the caller
// accepts by calling it. It is not repeated once it may have been done.
func (c *Client) ResetPartition(ctx context.Context, topic string, partition int32) error {
	_, err := c.Do(ctx, Call{
		Op: "reset partition", Method: http.MethodPost, Path: fmt.Sprintf("/v1/topics/%s/partitions/%d/reset", url.PathEscape(topic), partition), Query: lossQuery(true),
	})
	return err
}

func decommissionPath(id string) string {
	return "/v1/cluster/members/" + url.PathEscape(id) + "/decommission"
}

func lossQuery(accept bool) url.Values {
	q := url.Values{}
	if accept {
		q.Set("accept_data_loss", "true")
	}
	return q
}
