package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Children is what the Raft leader does about children of topics. Refusals are
// *problem.Problem; besides those named, no_metastore_leader, not_ready and
// outcome_unknown.
type Children interface {
	// AttachChild makes one life of a topic a child of one life of another. It asks
	// the leaders of the parent's partitions where the child begins. Refusals:
	// topic_not_found, topic_changed (incarnation), role_conflict, already_attached,
	// too_many_children, retention_too_short (minimum_ms), invalid_request,
	// partition_unavailable (a leader of the parent did not answer).
	AttachChild(ctx context.Context, req *AttachChildRequest) (*TopicResult, error)
	// DetachChild ends one attachment. Refusals: topic_not_found, topic_changed,
	// child_not_found.
	DetachChild(ctx context.Context, req *DetachChildRequest) (*ChangeResult, error)
	// CreateChild creates a topic and attaches it, both or neither. Refusals: those
	// of CreateTopic and of AttachChild.
	CreateChild(ctx context.Context, req *CreateChildRequest) (*TopicResult, error)
}

// AttachChildRequest names both lives.
type AttachChildRequest struct {
	Parent            string            `json:"parent"`
	ParentIncarnation topic.Incarnation `json:"parent_incarnation"`
	Child             string            `json:"child"`
	ChildIncarnation  topic.Incarnation `json:"child_incarnation"`
	DelayMS           int64             `json:"delay_ms"` // 0..topic.MaxDelayMS; 0: a plain child
}

// DetachChildRequest names one attachment.
type DetachChildRequest struct {
	Parent            string            `json:"parent"`
	ParentIncarnation topic.Incarnation `json:"parent_incarnation"`
	Child             string            `json:"child"`
	AttachEpoch       topic.ID64        `json:"attach_epoch"`
}

// CreateChildRequest is a CreateTopicRequest and an attachment. Partitions of 0 in
// Config are the parent's.
type CreateChildRequest struct {
	Name              string            `json:"name"`
	Config            topic.Config      `json:"config"`
	Parent            string            `json:"parent"`
	ParentIncarnation topic.Incarnation `json:"parent_incarnation"`
	DelayMS           int64             `json:"delay_ms"`
}

var (
	methodAttachChild = control("attach_child", smallBody, tableBody) // 108 children of 300 bytes and more
	methodDetachChild = control("detach_child", smallBody, smallBody)
	methodCreateChild = control("create_child", smallBody, tableBody)
)

// ServeChildren registers the operations of c. Call it before the server serves.
func ServeChildren(s *rpc.Server, c Children) {
	rpc.HandleJSON(s, methodAttachChild, c.AttachChild)
	rpc.HandleJSON(s, methodDetachChild, c.DetachChild)
	rpc.HandleJSON(s, methodCreateChild, c.CreateChild)
}

var (
	_ Children = (*Client)(nil)
	_ Children = (*Leader)(nil)
)

// AttachChild implements Children.
func (c *Client) AttachChild(ctx context.Context, req *AttachChildRequest) (*TopicResult, error) {
	return rpc.CallJSON[TopicResult](ctx, c.peer, methodAttachChild, req)
}

// DetachChild implements Children.
func (c *Client) DetachChild(ctx context.Context, req *DetachChildRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodDetachChild, req)
}

// CreateChild implements Children.
func (c *Client) CreateChild(ctx context.Context, req *CreateChildRequest) (*TopicResult, error) {
	return rpc.CallJSON[TopicResult](ctx, c.peer, methodCreateChild, req)
}

// AttachChild implements Children.
func (l *Leader) AttachChild(ctx context.Context, req *AttachChildRequest) (*TopicResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*TopicResult, error) { return c.AttachChild(ctx, req) })
}

// DetachChild implements Children.
func (l *Leader) DetachChild(ctx context.Context, req *DetachChildRequest) (*ChangeResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*ChangeResult, error) { return c.DetachChild(ctx, req) })
}

// CreateChild implements Children.
func (l *Leader) CreateChild(ctx context.Context, req *CreateChildRequest) (*TopicResult, error) {
	return change(ctx, l, func(ctx context.Context, c *Client) (*TopicResult, error) { return c.CreateChild(ctx, req) })
}
