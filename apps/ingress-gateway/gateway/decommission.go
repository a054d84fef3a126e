package gateway

import (
	"context"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// show waits a little until this replica has a change that is made already.
func (c *cluster) show(ctx context.Context, index uint64) {
	ctx, cancel := context.WithTimeout(ctx, ownReplica)
	defer cancel()
	_ = c.applied(ctx, index) // it is done, whatever this replica shows
}

// Decommission implements api.Decommissions.
func (c *cluster) Decommission(ctx context.Context, req *metaapi.DecommissionRequest) (*metaapi.DecommissionResult, error) {
	res, err := c.leader.Decommission(ctx, req)
	if err == nil && res.Index > 0 {
		c.show(ctx, res.Index)
	}
	return res, err
}

// CancelDecommission implements api.Decommissions.
func (c *cluster) CancelDecommission(ctx context.Context, req *metaapi.CancelDecommissionRequest) error {
	res, err := c.leader.CancelDecommission(ctx, req)
	if err == nil {
		c.show(ctx, res.Index)
	}
	return err
}

// MemberDetail implements api.Decommissions.
func (c *cluster) MemberDetail(ctx context.Context, m *topic.Member) (*metaapi.MemberDetailResult, error) {
	ask, cancel := context.WithTimeout(ctx, leaderFirst)
	defer cancel()
	if res, err := c.leader.MemberDetail(ask, &metaapi.MemberDetailRequest{NodeID: m.ID}); err == nil {
		return res, nil
	}
	out := &metaapi.MemberDetailResult{Draining: m.Draining, StartedMS: m.DrainingMS, WALBacklogRecords: m.WALBacklog}
	if list, err := c.view.AssignmentsOf(m.ID); err == nil {
		out.PartitionsLeft = len(list)
	}
	return out, nil
}

// ResetPartition implements api.Decommissions.
func (c *cluster) ResetPartition(ctx context.Context, t *topic.Topic, partition int32, operator string) error {
	res, err := c.leader.ResetPartition(ctx, &metaapi.ResetPartitionRequest{
		Ref: topic.Ref{Topic: t.Name, Incarnation: t.Incarnation, Partition: partition}, Operator: operator,
	})
	if err == nil {
		c.show(ctx, res.Index)
	}
	return err
}

// tombstones are those of members that are none again.
func (c *cluster) tombstones(read func() ([]metastate.Tombstone, error)) []api.Tombstone {
	if read == nil {
		return nil
	}
	list, err := read()
	if err != nil {
		return nil // the members are shown all the same
	}
	var out []api.Tombstone
	members := c.view.Members().ByID
	for _, t := range list {
		if members[t.ID] == nil {
			out = append(out, api.Tombstone{ID: t.ID, RemovedMS: t.RemovedMS})
		}
	}
	return out
}
