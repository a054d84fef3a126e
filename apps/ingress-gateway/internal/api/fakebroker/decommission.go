package fakebroker

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/topic"
)

// Decommission implements api.Decommissions: what fails, fails; a dry run finds that a
// topic needs the node.
func (b *Broker) Decommission(_ context.Context, req *metaapi.DecommissionRequest) (*metaapi.DecommissionResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.fail["Decommission"]; err != nil {
		return nil, err
	}
	res := &metaapi.DecommissionResult{Would: true, PartitionsLed: 4, Replicas: 12}
	if req.DryRun && !req.AcceptDataLoss {
		res.Would = false
		res.Reasons = []metaapi.Reason{{Code: metaapi.BelowReplicationFactor, Message: "too few", Topics: []string{"pay"}, TopicCount: 1}}
	}
	return res, nil
}

// CancelDecommission implements api.Decommissions.
func (b *Broker) CancelDecommission(context.Context, *metaapi.CancelDecommissionRequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fail["CancelDecommission"]
}

// MemberDetail implements api.Decommissions.
func (b *Broker) MemberDetail(context.Context, *topic.Member) (*metaapi.MemberDetailResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &metaapi.MemberDetailResult{
		Draining: true, StartedMS: CommitMS, PartitionsLeft: 3, Blocked: []metaapi.Reason{{Code: metaapi.NoReceivers, Message: "nobody"}},
	}, b.fail["MemberDetail"]
}

// ResetPartition implements api.Decommissions.
func (b *Broker) ResetPartition(context.Context, *topic.Topic, int32, string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fail["ResetPartition"]
}
