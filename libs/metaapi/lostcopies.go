package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// MaxLostNamed bounds the lone copies that one heartbeat names: of names of 200 bytes
// they take 10 KiB. How many there are is told besides.
const MaxLostNamed = 32

// LostCopies is what a storage node says of lone copies that are recorded to be on its
// disk and are not there.
type LostCopies struct {
	Count int        `json:"count"`
	Named []LostCopy `json:"named,omitempty"` // the first MaxLostNamed, by name
}

// LostCopy is one of them.
type LostCopy struct {
	topic.Ref
	SinceMS int64 `json:"since_ms"` // Unix ms at which the node noticed, by its clock; a restart notices anew
}

// LostOnNode is what one node has said, as far as it is still so by the records: one that
// was reset or deleted meanwhile is not in it.
type LostOnNode struct {
	Node string `json:"node"`
	LostCopies
}

// LostCopiesResult is what the leader has heard in its term.
type LostCopiesResult struct {
	Nodes []LostOnNode `json:"nodes"` // with at least one, by id
	// Unknown are live nodes that are to have lone copies and were not heard in this term.
	// One of a release that does not tell is not in it.
	Unknown []string `json:"unknown"`
}

// Losses is what the metastore leader has heard of lone copies that are not where they
// are recorded to be. Only the Raft leader answers.
type Losses interface {
	// LostCopies answers from the leader's memory. A leader of the first release does
	// not know the operation (404 route_not_found): then nothing is known.
	LostCopies(ctx context.Context) (*LostCopiesResult, error)
}

// 1,000 nodes that have lost what they can name take less.
var methodLostCopies = control("lost_copies", smallBody, tableBody)

// ServeLosses registers the operation of l. Call it before the server serves.
func ServeLosses(s *rpc.Server, l Losses) {
	rpc.HandleJSON(s, methodLostCopies, func(ctx context.Context, _ *empty) (*LostCopiesResult, error) {
		return l.LostCopies(ctx)
	})
}

var (
	_ Losses = (*Client)(nil)
	_ Losses = (*Leader)(nil)
)

// LostCopies implements Losses.
func (c *Client) LostCopies(ctx context.Context) (*LostCopiesResult, error) {
	return rpc.CallJSON[LostCopiesResult](ctx, c.peer, methodLostCopies, empty{})
}

// LostCopies implements Losses.
func (l *Leader) LostCopies(ctx context.Context) (*LostCopiesResult, error) {
	return ask(ctx, l, func(ctx context.Context, c *Client) (*LostCopiesResult, error) { return c.LostCopies(ctx) })
}
