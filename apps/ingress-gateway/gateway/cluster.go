package gateway

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/topic"
)

// clusterLeader is the part of metaapi.Voter that the cluster routes need.
type clusterLeader interface {
	Members(ctx context.Context) (*metaapi.MembersResult, error)
	Quorum(ctx context.Context) (*metaapi.QuorumResult, error)
	Forget(ctx context.Context, req *metaapi.ForgetRequest) (*metaapi.ChangeResult, error)
	metaapi.Moves
	metaapi.Decommissions
	metaapi.Losses
}

const (
	// leaderFirst is how long a cluster read waits for the leader before it answers
	// without it.
	leaderFirst = 1500 * time.Millisecond
	// leaderAsks is the same for the quorum, where the leader itself may wait 2 s
	// for servers that do not answer.
	leaderAsks = 2500 * time.Millisecond
)

// cluster implements api.Cluster.
type cluster struct {
	view    metastate.View
	leader  clusterLeader
	records func() ([]topic.Member, error)                  // of the replica, with their last stamps
	moves   func() ([]topic.Move, error)                    // of the replica
	servers func(ctx context.Context) *metaapi.QuorumResult // asks every Raft server from here
	own     func() diagnosis.Own                            // this gateway
	graves  func() ([]metastate.Tombstone, error)           // of the replica; nil: none are shown
	applied func(ctx context.Context, index uint64) error   // here
	backup  func(ctx context.Context) (*api.BackupStream, error)
	found   diagnosis.Memory
}

var _ api.Cluster = (*cluster)(nil)

// Members implements api.Cluster: it works without a leader.
func (c *cluster) Members(ctx context.Context) (*api.MembersView, error) {
	out := &api.MembersView{
		ClusterID: c.view.ClusterID(), AsOf: time.Now(), Stale: true, Members: c.members(),
		LedBy: map[string]int{}, ReplicasOn: map[string]int{}, Tombstones: c.tombstones(c.graves),
	}
	for i := range out.Members {
		id := out.Members[i].ID
		if out.Members[i].Role != topic.RoleStorage {
			continue
		}
		list, err := c.view.AssignmentsOf(id)
		if err != nil {
			continue // not known yet: zeros
		}
		out.ReplicasOn[id] = len(list)
		for i := range list {
			if list[i].Leader == id {
				out.LedBy[id]++
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, leaderFirst)
	defer cancel()
	if res, err := c.leader.Members(ctx); err == nil {
		out.Stale, out.LeaderID, out.AgesMS = false, res.LeaderID, res.AgesMS
	}
	return out, nil
}

// members are the records with what the last heartbeats carried; the table in
// memory, which heartbeats do not change, is second best.
func (c *cluster) members() []topic.Member {
	list, err := c.records()
	if err == nil {
		return list
	}
	list = nil
	for _, m := range c.view.Members().ByID {
		list = append(list, *m)
	}
	return list
}

// Quorum implements api.Cluster: with no leader to ask, every server is.
func (c *cluster) Quorum(ctx context.Context) (*metaapi.QuorumResult, error) {
	ask, cancel := context.WithTimeout(ctx, leaderAsks)
	defer cancel()
	if res, err := c.leader.Quorum(ask); err == nil {
		return res, nil
	}
	return c.servers(ctx), nil
}

// Forget implements api.Cluster.
func (c *cluster) Forget(ctx context.Context, id string) error {
	res, err := c.leader.Forget(ctx, &metaapi.ForgetRequest{NodeID: id})
	if err != nil {
		return err
	}
	c.show(ctx, res.Index)
	return nil
}

// Status implements api.Cluster.
func (c *cluster) Status(ctx context.Context) (*diagnosis.Report, error) {
	refused := make(chan bool, 1)
	go func() {
		ask, cancel := context.WithTimeout(ctx, leaderFirst)
		defer cancel()
		res, err := c.leader.Members(ask)
		refused <- err == nil && res.DeadMarkingRefused
	}()
	missed := make(chan *metaapi.LostCopiesResult, 1)
	go func() {
		ask, cancel := context.WithTimeout(ctx, leaderFirst)
		defer cancel()
		res, err := c.leader.LostCopies(ask)
		if err != nil { // no leader, which is said, or one of a release that cannot tell
			res = &metaapi.LostCopiesResult{}
		}
		missed <- res
	}()
	s := &diagnosis.Scene{Own: c.own(), Members: c.members(), RemovedMS: map[string]int64{}}
	for _, t := range c.tombstones(c.graves) {
		s.RemovedMS[t.ID] = t.RemovedMS
	}
	s.Assignments, s.Known = c.assignments()
	var err error
	if s.Quorum, err = c.Quorum(ctx); err != nil {
		return nil, err
	}
	s.Refused, s.Missed = <-refused, <-missed
	s.Now = time.Now()
	r := diagnosis.Look(s)
	c.found.Complete(r)
	return r, nil
}

// assignments collects the partitions of all topics, those too whose copies were on
// nodes that are no members any more; false when this replica does not know them yet.
func (c *cluster) assignments() (all []topic.Assignment, known bool) {
	topics, err := c.view.Topics("", "", math.MaxInt)
	if err != nil {
		return nil, false
	}
	for _, t := range topics {
		p, err := c.view.Assignments(t.Name)
		switch {
		case errors.Is(err, metastate.ErrNoTopic): // deleted since it was listed
		case err != nil:
			return nil, false
		default:
			all = append(all, p.List...)
		}
	}
	return all, c.view.Latched()
}
