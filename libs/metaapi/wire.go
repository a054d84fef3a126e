package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
)

// Bounds of the bodies. A request is a handful of short fields; a topic's
// settings stay below 4 KiB; 1,000 questions take about 60 bytes each; members
// and quorum answers take about 300 bytes per server.
const (
	smallBody    = 16 << 10
	questionBody = 256 << 10
	tableBody    = 4 << 20
)

func control(name string, maxRequest, maxReply int) rpc.Method {
	return rpc.Method{Name: name, Class: rpc.ClassControl, MaxRequest: maxRequest, MaxReply: maxReply}
}

// The operations of a voter, all strict JSON.
var (
	methodJoin        = control("join", smallBody, smallBody)
	methodRegister    = control("register", smallBody, smallBody)
	methodHeartbeat   = control("heartbeat", smallBody, smallBody)
	methodCreateTopic = control("create_topic", smallBody, smallBody)
	methodUpdateTopic = control("update_topic", smallBody, smallBody)
	methodDeleteTopic = control("delete_topic", smallBody, smallBody)
	methodLookupTopic = control("lookup_topic", smallBody, smallBody)
	methodConfirm     = control("confirm", questionBody, questionBody)
	methodMembers     = control("members", smallBody, tableBody)
	methodQuorum      = control("quorum", smallBody, tableBody)
	methodForget      = control("forget", smallBody, smallBody)
)

// empty is the body of a call that asks or answers nothing.
type empty struct{}

// Serve registers the operations of v. Call it before the server serves.
func Serve(s *rpc.Server, v Voter) {
	rpc.HandleJSON(s, methodJoin, v.Join)
	rpc.HandleJSON(s, methodRegister, v.Register)
	rpc.HandleJSON(s, methodHeartbeat, func(ctx context.Context, req *HeartbeatRequest) (*empty, error) {
		return &empty{}, v.Heartbeat(ctx, req)
	})
	rpc.HandleJSON(s, methodCreateTopic, v.CreateTopic)
	rpc.HandleJSON(s, methodUpdateTopic, v.UpdateTopic)
	rpc.HandleJSON(s, methodDeleteTopic, v.DeleteTopic)
	rpc.HandleJSON(s, methodLookupTopic, v.LookupTopic)
	rpc.HandleJSON(s, methodConfirm, v.Confirm)
	rpc.HandleJSON(s, methodMembers, func(ctx context.Context, _ *empty) (*MembersResult, error) {
		return v.Members(ctx)
	})
	rpc.HandleJSON(s, methodQuorum, func(ctx context.Context, _ *empty) (*QuorumResult, error) {
		return v.Quorum(ctx)
	})
	rpc.HandleJSON(s, methodForget, v.Forget)
}

// Client is the Voter at one address. Besides refusals its methods return
// *rpc.TransportError.
type Client struct{ peer *rpc.Peer }

var _ Voter = (*Client)(nil)

// NewClient returns the voter that a peer reaches.
func NewClient(peer *rpc.Peer) *Client { return &Client{peer: peer} }

// Join implements Voter.
func (c *Client) Join(ctx context.Context, req *JoinRequest) (*JoinResult, error) {
	return rpc.CallJSON[JoinResult](ctx, c.peer, methodJoin, req)
}

// Register implements Voter.
func (c *Client) Register(ctx context.Context, req *RegisterRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodRegister, req)
}

// Heartbeat implements Voter.
func (c *Client) Heartbeat(ctx context.Context, req *HeartbeatRequest) error {
	_, err := rpc.CallJSON[empty](ctx, c.peer, methodHeartbeat, req)
	return err
}

// CreateTopic implements Voter.
func (c *Client) CreateTopic(ctx context.Context, req *CreateTopicRequest) (*TopicResult, error) {
	return rpc.CallJSON[TopicResult](ctx, c.peer, methodCreateTopic, req)
}

// UpdateTopic implements Voter.
func (c *Client) UpdateTopic(ctx context.Context, req *UpdateTopicRequest) (*TopicResult, error) {
	return rpc.CallJSON[TopicResult](ctx, c.peer, methodUpdateTopic, req)
}

// DeleteTopic implements Voter.
func (c *Client) DeleteTopic(ctx context.Context, req *DeleteTopicRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodDeleteTopic, req)
}

// LookupTopic implements Voter.
func (c *Client) LookupTopic(ctx context.Context, req *LookupTopicRequest) (*TopicResult, error) {
	return rpc.CallJSON[TopicResult](ctx, c.peer, methodLookupTopic, req)
}

// Confirm implements Voter.
func (c *Client) Confirm(ctx context.Context, req *ConfirmRequest) (*ConfirmResult, error) {
	return rpc.CallJSON[ConfirmResult](ctx, c.peer, methodConfirm, req)
}

// Members implements Voter.
func (c *Client) Members(ctx context.Context) (*MembersResult, error) {
	return rpc.CallJSON[MembersResult](ctx, c.peer, methodMembers, empty{})
}

// Quorum implements Voter.
func (c *Client) Quorum(ctx context.Context) (*QuorumResult, error) {
	return rpc.CallJSON[QuorumResult](ctx, c.peer, methodQuorum, empty{})
}

// Forget implements Voter.
func (c *Client) Forget(ctx context.Context, req *ForgetRequest) (*ChangeResult, error) {
	return rpc.CallJSON[ChangeResult](ctx, c.peer, methodForget, req)
}
