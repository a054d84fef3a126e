package controller

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/decommission"
	"github.com/narad-mq/narad/apps/metastore-voter/internal/election"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// standingTime bounds the question whether a copy is still there: an open of one log.
const standingTime = 5 * time.Second

// ResetPartition implements metaapi.Decommissions. A partition of which nothing is
// left begins anew, empty: on the node that had it first if that is there with its
// new disk, else on the least loaded one. Where copies are left, but no majority, the
// one that has most goes on alone.
func (c *Controller) ResetPartition(ctx context.Context, req *metaapi.ResetPartitionRequest) (*metaapi.ResetPartitionResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	a, loss, err := c.lostPartition(ctx, req.Ref)
	if err != nil {
		return nil, err
	}
	if a, err = c.deposed(ctx, a, loss); err != nil {
		return nil, err
	}
	next, err := c.resetTo(ctx, a, loss)
	if err != nil {
		return nil, err
	}
	c.log.Error("AUDIT data loss accepted: a partition goes on without the copies that are lost", "partition", a.Ref.String(), "by", operator(req.Operator),
		"leader_epoch", a.LeaderEpoch, "lost_copies", named(loss.Gone(a)), "goes_on_with", named([]topic.Replica{next}), "empty", next.CopyID == 0)
	index, _, err := c.propose(ctx, &metastate.ResetPartition{Ref: a.Ref, Epoch: a.LeaderEpoch, Replica: next, NowMS: c.wallMS(), Operator: operator(req.Operator)})
	if err != nil {
		return nil, err
	}
	c.moves.Placed()
	return &metaapi.ResetPartitionResult{Index: index, Node: next.Node}, nil
}

func named(list []topic.Replica) string {
	out := make([]string, len(list))
	for i, r := range list {
		out[i] = r.Node + " disk " + r.DiskID.String() + " copy " + r.CopyID.String()
	}
	return strings.Join(out, ", ")
}

// resetTo chooses what the partition goes on with.
func (c *Controller) resetTo(ctx context.Context, a *topic.Assignment, loss *decommission.Loss) (topic.Replica, error) {
	if len(loss.Left) > 0 {
		return c.largest(ctx, a, loss.Left)
	}
	return c.fresh(a)
}

// deposed ends the leadership of a copy that is lost, and gives the partition as it is
// then: no copy promises an epoch that somebody leads, so those that are left could
// not say what they have. A node that was buried does not end it by a registration.
func (c *Controller) deposed(ctx context.Context, a *topic.Assignment, loss *decommission.Loss) (*topic.Assignment, error) {
	leads := func(r topic.Replica) bool { return r.Node == a.Leader }
	if a.Leader == "" || len(a.Replicas) < 2 || slices.ContainsFunc(loss.Left, leads) {
		return a, nil
	}
	_, res, err := c.propose(ctx, &metastate.BeginElections{Items: []metastate.ElectionStart{{Ref: a.Ref, Epoch: a.LeaderEpoch, ConfigVersion: a.ConfigVersion}}})
	if err != nil {
		return nil, err
	}
	if !res.Done[0] {
		return nil, problem.New(problem.NotReady, "the partition was changed meanwhile")
	}
	next := *a
	next.Leader = ""
	next.LeaderEpoch++
	return &next, nil
}

// largest is the replica with the longest history of those that are left. One that
// leads has it; else all have to say what they have, and promise not to go on.
func (c *Controller) largest(ctx context.Context, a *topic.Assignment, left []topic.Replica) (topic.Replica, error) {
	var best topic.Replica
	var most election.Promise
	for _, r := range left {
		if r.Node == a.Leader {
			return r, nil
		}
		got, err := c.cfg.Nodes.Fence(ctx, r.Node, []election.Fence{{Ref: a.Ref, Replica: r, Epoch: a.LeaderEpoch}})
		if err != nil || len(got) != 1 || !got[0].OK {
			c.log.Debug("a copy that is left did not say what it has", "partition", a.Ref.String(), "node", r.Node, "err", err)
			return best, problem.New(problem.NotReady, "the copy on %q did not say what it has", r.Node)
		}
		if p := got[0]; best.Node == "" || p.LastEpoch > most.LastEpoch || p.LastEpoch == most.LastEpoch && p.LEO > most.LEO {
			best, most = r, p
		}
	}
	return best, nil
}

// vanished tells that the only copy of a partition was recorded and that its node, which
// still has that disk, says now that the copy is not there.
func (c *Controller) vanished(ctx context.Context, a *topic.Assignment, left []topic.Replica) bool {
	if len(a.Replicas) != 1 || len(left) != 1 || left[0].CopyID == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, standingTime)
	defer cancel()
	got, err := c.cfg.Nodes.Standing(ctx, left[0].Node, []topic.Ref{a.Ref})
	return err == nil && len(got) == 1 && got[0].Lost
}

// lostPartition is the partition if it is lost, else the refusal.
func (c *Controller) lostPartition(ctx context.Context, ref topic.Ref) (*topic.Assignment, *decommission.Loss, error) {
	view := c.raft.View()
	p, err := view.Assignments(ref.Topic)
	switch {
	case errors.Is(err, metastate.ErrUnavailable):
		return nil, nil, problem.New(problem.NotReady, "the leader does not know the partitions of %q yet", ref.Topic)
	case errors.Is(err, metastate.ErrNoTopic):
		return nil, nil, problem.New(problem.TopicNotFound, "there is no topic %q", ref.Topic)
	case err != nil:
		return nil, nil, err
	case p.Incarnation != ref.Incarnation:
		return nil, nil, problem.New(problem.TopicChanged, "%q is another topic by now", ref.Topic).With("incarnation", p.Incarnation.String())
	case ref.Partition < 0 || int(ref.Partition) >= len(p.List):
		return nil, nil, problem.New(problem.PartitionOutOfRange, "topic %q has %d partitions", ref.Topic, len(p.List)).With("partitions", len(p.List))
	}
	a := &p.List[ref.Partition]
	l := decommission.LossOf(a, view.Members().ByID)
	if !l.Lost && c.vanished(ctx, a, l.Left) {
		l.Lost, l.Left = true, nil
	}
	switch {
	case !l.Lost:
		return nil, nil, problem.New(problem.PreconditionFailed, "partition %d of %q is not lost: a majority of its copies is on disks of record; nodes that are only down have to come back, or be decommissioned with accept_data_loss", ref.Partition, ref.Topic)
	case len(l.Silent) > 0:
		return nil, nil, problem.New(problem.PreconditionFailed, "a copy of partition %d of %q may be on %s, which is down: bring it back, or decommission it with accept_data_loss", ref.Partition, ref.Topic, l.Silent[0].Node)
	}
	return a, &l, nil
}

// fresh chooses where a partition begins anew: where it was, but for a full disk, which
// would serve nothing, as long as another node has room.
func (c *Controller) fresh(a *topic.Assignment) (topic.Replica, error) {
	nodes, err := c.nodes(nil)
	if err != nil {
		return topic.Replica{}, err
	}
	if len(nodes) == 0 {
		return topic.Replica{}, problem.New(problem.NotEnoughStorage, "no live storage node takes the partition").With("live", 0).With("wanted", 1)
	}
	rank := map[bool]int{true: 1}
	best := slices.MinFunc(nodes, func(x, y placement.Node) int {
		was := a.Replicas[0].Node
		return cmp.Or(rank[x.Full]-rank[y.Full], rank[x.ID != was]-rank[y.ID != was], x.Replicas-y.Replicas)
	})
	return topic.Replica{Node: best.ID, DiskID: best.DiskID}, nil
}
