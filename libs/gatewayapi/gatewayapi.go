// Package gatewayapi is the contract of a gateway toward other nodes: wake-ups
// from storage nodes, and what the controller asks about its backlog.
package gatewayapi

import (
	"context"

	"github.com/narad-mq/narad/libs/topic"
)

// Gateway is what a gateway does for other nodes. Safe for concurrent use.
type Gateway interface {
	// Wake tells that partitions which this gateway armed have something to
	// give. It only makes the gateway claim: a lost, late, repeated or forged
	// wake-up costs a claim. It answers at once.
	Wake(ctx context.Context, req *WakeRequest) error
}

// WakeRequest carries every partition that became ready since the last call.
type WakeRequest struct {
	From  string  `json:"from"`
	Ready []Ready `json:"ready"`
}

// Ready is one partition with something to give.
type Ready struct {
	topic.Ref
	Epoch topic.Epoch `json:"epoch"`
}
