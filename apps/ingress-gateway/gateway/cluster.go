package gateway

import (
	"context"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// clusterLeader is the part of metaapi.Voter that the cluster reads need.
type clusterLeader interface {
	Members(ctx context.Context) (*metaapi.MembersResult, error)
	Quorum(ctx context.Context) (*metaapi.QuorumResult, error)
}

// leaderFirst is how long a cluster read waits for the leader before it answers
// without it.
const leaderFirst = 1500 * time.Millisecond

// cluster implements api.Cluster.
type cluster struct {
	self   string
	view   metastate.View
	leader clusterLeader
	raft   *raftnode.Node
}

var _ api.Cluster = (*cluster)(nil)

// Members implements api.Cluster: it works without a leader.
func (c *cluster) Members(ctx context.Context) (*api.MembersView, error) {
	out := &api.MembersView{
		ClusterID: c.view.ClusterID(), AsOf: time.Now(), Stale: true,
		LedBy: map[string]int{}, ReplicasOn: map[string]int{},
	}
	for id, m := range c.view.Members().ByID {
		out.Members = append(out.Members, *m)
		if m.Role != topic.RoleStorage {
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

// Quorum implements api.Cluster.
func (c *cluster) Quorum(ctx context.Context) (*metaapi.QuorumResult, error) {
	ask, cancel := context.WithTimeout(ctx, leaderFirst)
	defer cancel()
	if res, err := c.leader.Quorum(ask); err == nil {
		return res, nil
	}
	return c.ownView(ctx), nil
}

// ownView is what this gateway knows without asking anybody: the servers, and of
// itself how far it is.
func (c *cluster) ownView(context.Context) *metaapi.QuorumResult {
	out := &metaapi.QuorumResult{AnsweredBy: c.self}
	if id, _ := c.raft.Leader(); id != "" {
		out.LeaderID = &id
	}
	members := c.view.Members().ByID
	voters := 0
	for _, srv := range c.raft.Configuration().Servers {
		row := metaapi.QuorumServer{ID: srv.ID, Suffrage: "non_voter", State: "unknown"}
		if srv.Voter {
			row.Suffrage = "voter"
			voters++
		}
		if m := members[srv.ID]; m != nil {
			row.Role, row.Member, row.Release = string(m.Role), true, m.Release
		}
		if srv.ID == c.self {
			applied := c.raft.Applied() + 1
			row.Reachable, row.State, row.Applied = true, "follower", &applied
			if age, ok := c.raft.LeaderContact(); ok {
				ms := age.Milliseconds()
				row.LastContactMS = &ms
			}
		}
		out.Servers = append(out.Servers, row)
	}
	out.Majority = voters/2 + 1
	return out
}
