package gatewayapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Backlog is what a gateway tells of accepted records that it still has.
type Backlog interface {
	// Undispatched lists the lives of topics of which records are accepted here and
	// neither committed nor discarded, in order of ids, in pages. They are not judged:
	// what the metastore says of them is for the caller to ask.
	Undispatched(ctx context.Context, req *UndispatchedRequest) (*UndispatchedResult, error)
}

// MaxUndispatched bounds one page: what one confirm asks about (metaapi.MaxQuestions).
const MaxUndispatched = 1000

// UndispatchedRequest asks for the ids above After.
type UndispatchedRequest struct {
	After topic.Incarnation `json:"after"` // 0 from the start
	Limit int               `json:"limit"` // 1..MaxUndispatched; others mean that maximum
}

// UndispatchedResult is one page; More tells that others follow.
type UndispatchedResult struct {
	Lives []UndispatchedLife `json:"lives"`
	More  bool               `json:"more"`
	// Partial: records of an earlier start are still being read, and may be of lives
	// that are not listed. What is not listed is no proof then.
	Partial bool `json:"partial"`
}

// UndispatchedLife is one life of a topic.
type UndispatchedLife struct {
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Bytes       int64             `json:"bytes"` // of the records' bodies, in the log and in parked ones
}

// 1,000 rows with a topic name of 200 bytes take a tenth of it.
const maxUndispatchedReply = 2 << 20

var methodUndispatched = rpc.Method{Name: "undispatched", Class: rpc.ClassControl, MaxRequest: 1 << 10, MaxReply: maxUndispatchedReply}

// ServeBacklog registers the operation of b, strict JSON both ways. Call it before
// the server serves.
func ServeBacklog(s *rpc.Server, b Backlog) { rpc.HandleJSON(s, methodUndispatched, b.Undispatched) }

var _ Backlog = (*Client)(nil)

// Undispatched implements Backlog.
func (c *Client) Undispatched(ctx context.Context, req *UndispatchedRequest) (*UndispatchedResult, error) {
	return rpc.CallJSON[UndispatchedResult](ctx, c.peer, methodUndispatched, req)
}
