package gatewayapi

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/rpc/wire"
	"github.com/narad-mq/narad/libs/topic"
)

// The body of a wake-up, version 1, in the words of package wire:
//
//	u8 1, str from, uv n, n times: str topic, u64 incarnation, uv partition, u32 epoch
//
// The reply is the one byte 1. TestGolden holds the bytes.
const version = 1

const (
	// MaxReady bounds the partitions of one call. A sender with more calls again.
	MaxReady = 4096

	maxWakeBody  = 1 << 20 // 4096 partitions with the longest names
	maxWakeReply = 16
	maxNodeID    = 253 // a DNS name
	minReady     = 14  // bytes of a Ready at least
)

var methodWake = rpc.Method{Name: "wake", Class: rpc.ClassControl, MaxRequest: maxWakeBody, MaxReply: maxWakeReply}

// Serve registers the operations of g. Call it before the server serves.
func Serve(s *rpc.Server, g Gateway) {
	s.Handle(methodWake, func(ctx context.Context, r *rpc.Request, reply []byte) ([]byte, error) {
		req, err := decodeWake(r.Body)
		if err != nil {
			return nil, rpc.Malformed(methodWake)
		}
		return append(reply, version), g.Wake(ctx, req)
	})
}

// Client is the Gateway at one address. Besides refusals its methods return
// *rpc.TransportError.
type Client struct{ peer *rpc.Peer }

var _ Gateway = (*Client)(nil)

// NewClient returns the gateway that a peer reaches.
func NewClient(peer *rpc.Peer) *Client { return &Client{peer: peer} }

// Wake implements Gateway; more than MaxReady partitions are refused unsent.
func (c *Client) Wake(ctx context.Context, req *WakeRequest) error {
	if len(req.Ready) > MaxReady {
		return &rpc.TransportError{Op: methodWake.Name, Node: c.peer.Addr(), Err: fmt.Errorf("%d partitions, the bound is %d", len(req.Ready), MaxReady)}
	}
	reply, err := c.peer.Call(ctx, methodWake, appendWake(nil, req))
	if err == nil {
		reply.Release()
	}
	return err
}

func appendWake(b []byte, req *WakeRequest) []byte {
	b = wire.AppendString(append(b, version), req.From)
	b = binary.AppendUvarint(b, uint64(len(req.Ready)))
	for i := range req.Ready {
		p := &req.Ready[i]
		b = wire.AppendString(b, p.Topic)
		b = binary.BigEndian.AppendUint64(b, uint64(p.Incarnation))
		b = binary.AppendUvarint(b, uint64(p.Partition))
		b = binary.BigEndian.AppendUint32(b, uint32(p.Epoch))
	}
	return b
}

func decodeWake(b []byte) (*WakeRequest, error) {
	r := wire.NewReader(b)
	if r.U8() != version {
		r.Fail()
	}
	req := &WakeRequest{From: r.String(maxNodeID)}
	if n := r.Count(MaxReady, minReady); n > 0 {
		req.Ready = make([]Ready, n)
	}
	for i := range req.Ready {
		p := &req.Ready[i]
		p.Topic, p.Incarnation = r.String(topic.MaxNameLength), topic.Incarnation(r.U64())
		p.Partition, p.Epoch = int32(r.Int()), topic.Epoch(r.U32())
	}
	return req, r.Done()
}
