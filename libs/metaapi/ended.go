package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Endings is what the purge sweeper asks the Raft leader about the ends of topics
// that the metastore remembers. Refusals are *problem.Problem. Both answer after
// a barrier.
type Endings interface {
	// Endings lists what is remembered, in order of ids, in pages.
	Endings(ctx context.Context, req *EndingsRequest) (*EndingsResult, error)
	// ForgetEnded forgets ends: from then on Confirm calls these ids unknown, and
	// what may still lie of them somewhere is kept for ever. So it is for who has
	// just seen all of every member of record, dead ones included, and found
	// nothing of them. What is not remembered is no error. Refusals: invalid_request
	// (none or too many ids), topic_changed (incarnation: it is the live one of a topic;
	// nothing is forgotten), outcome_unknown.
	ForgetEnded(ctx context.Context, req *ForgetEndedRequest) (*ChangeResult, error)
}

// MaxEndings bounds one page of Endings, and the ids of one ForgetEndedRequest,
// which goes into one entry.
const MaxEndings = 1000

// EndingsRequest asks for the ids above After.
type EndingsRequest struct {
	After topic.Incarnation `json:"after"` // 0 from the start
	Limit int               `json:"limit"` // 1..MaxEndings; others mean that maximum
}

// EndingsResult is one page; More tells that others follow.
type EndingsResult struct {
	Endings []Ending `json:"endings"`
	More    bool     `json:"more"`
}

// Ending is the end of one life of a name.
type Ending struct {
	Incarnation topic.Incarnation `json:"incarnation"`
	Topic       string            `json:"topic"`
	EndedMS     int64             `json:"ended_ms"` // Unix ms, the wall clock of the leader at the time
}

// ForgetEndedRequest names ids.
type ForgetEndedRequest struct {
	IDs []topic.Incarnation `json:"ids"`
}

var (
	methodEndings     = control("endings", smallBody, 512<<10)           // 1,000 rows with a topic name of 200
	methodForgetEnded = control("forget_ended", questionBody, smallBody) // 1,000 ids of 19 bytes
)

// ServeEndings registers the operations of e. Call it before the server serves.
func ServeEndings(s *rpc.Server, e Endings) {
	rpc.HandleJSON(s, methodEndings, e.Endings)
	rpc.HandleJSON(s, methodForgetEnded, e.ForgetEnded)
}

var (
	_ Endings = (*Client)(nil)
	_ Endings = (*Leader)(nil)
)

// Endings implements Endings.
func (c *Client) Endings(ctx context.Context, req *EndingsRequest) (*EndingsResult, error) {
	return rpc.CallJSON[EndingsResult](ctx, c.peer, methodEndings, req)
}

// ForgetEnded implements Endings.
func (c *Client) ForgetEnded(ctx context.Context, req *ForgetEndedRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodForgetEnded, req)
}

// Endings implements Endings.
func (l *Leader) Endings(ctx context.Context, req *EndingsRequest) (*EndingsResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*EndingsResult, error) { return c.Endings(ctx, req) })
}

// ForgetEnded implements Endings. Repeating it changes nothing.
func (l *Leader) ForgetEnded(ctx context.Context, req *ForgetEndedRequest) (*ChangeResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.ForgetEnded(ctx, req) })
}
