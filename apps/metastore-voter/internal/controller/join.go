package controller

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// Statuses of a join (control-plane.md).
const (
	statusStaged   = "staged"
	statusDeferred = "deferred"
	statusPromoted = "promoted"
	statusVoter    = "voter"
)

// joining is what a refused joiner is called in the log.
const joining = "joining node"

// Join implements metaapi.Voter. A node that is in the configuration already is
// changed in nothing but its address; a storage node or gateway never gets a vote.
func (c *Controller) Join(ctx context.Context, req *metaapi.JoinRequest) (*metaapi.JoinResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	if err := c.checkJoin(req); err != nil {
		return nil, c.complain(joining, req.NodeID, req.Role, req.RaftAddr, err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timing.Propose)
	defer cancel()
	c.members.Lock()
	defer c.members.Unlock()
	c.admission.Lock() // a newer entry is proposed before the look at the joiner, or after its admission
	defer c.admission.Unlock()
	a, err := c.admissible(ctx, req)
	if err == nil {
		a, err = c.unseat(ctx, req, a)
	}
	if err != nil {
		return nil, c.complain(joining, req.NodeID, req.Role, req.RaftAddr, err)
	}
	return c.admit(ctx, t, req, a)
}

// admit stages or promotes a node that nothing keeps out.
func (c *Controller) admit(ctx context.Context, t *term, req *metaapi.JoinRequest, a *applicant) (*metaapi.JoinResult, error) {
	id, server := a.seat.raftID, a.seat.server
	stage := func() (err error) {
		_, err = c.raft.AddNonvoter(ctx, id, req.RaftAddr, a.conf.Index)
		return err
	}
	switch {
	case server == nil:
		c.log.Info("admitting a node as raft non-voter", "node", req.NodeID, "server", id, "role", string(req.Role), "addr", req.RaftAddr)
		return c.joined(id, statusStaged, "", stage())
	case server.Addr != req.RaftAddr:
		c.log.Info("a node has another raft address", "node", req.NodeID, "was", server.Addr, "addr", req.RaftAddr)
		if err := stage(); err != nil {
			return c.joined(id, "", "", err)
		}
	}
	switch {
	case server.Voter:
		return c.joined(id, statusVoter, "", nil)
	case req.Role != topic.RoleVoter:
		return c.joined(id, statusStaged, "", nil)
	case server.Addr != req.RaftAddr:
		return c.joined(id, statusDeferred, "heartbeats_failing", nil) // none can have reached the new address yet
	}
	if reason := c.defers(t, a.owner(req), id); reason != "" {
		c.log.Debug("promotion deferred", "node", req.NodeID, "reason", reason)
		return c.joined(id, statusDeferred, reason, nil)
	}
	c.log.Info("promoting a node to raft voter", "node", req.NodeID, "server", id)
	_, err := c.raft.AddVoter(ctx, id, req.RaftAddr, a.conf.Index)
	return c.joined(id, statusPromoted, "", err)
}

func (c *Controller) joined(raftID, status, reason string, err error) (*metaapi.JoinResult, error) {
	if err != nil {
		return nil, c.refusal(err)
	}
	return &metaapi.JoinResult{RaftID: raftID, Status: status, Reason: reason}, nil
}

func find(conf raftnode.Configuration, id string) *raftnode.Server {
	for i := range conf.Servers {
		if conf.Servers[i].ID == id {
			return &conf.Servers[i]
		}
	}
	return nil
}

func (c *Controller) checkJoin(req *metaapi.JoinRequest) error {
	switch {
	case req.ClusterID != "" && req.ClusterID != c.raft.View().ClusterID():
		return problem.New(problem.WrongCluster, "node %q belongs to another cluster", req.NodeID)
	case !proc.ValidNodeID(req.NodeID):
		return invalid("node_id", "is no node id")
	case req.RaftID != "" && req.RaftID != req.NodeID && req.RaftID != raftnode.ServerID(req.NodeID, req.DiskID):
		return invalid("raft_id", "must be of the node and its disk")
	case req.DiskID == 0:
		return invalid("disk_id", "must not be zero")
	case !knownRole(req.Role):
		return invalid("role", "is unknown")
	case !metaapi.ValidHint(req.RaftAddr):
		return invalid("raft_addr", "must be host:port")
	case !metaapi.ValidHint(req.RPCAddr):
		return invalid("rpc_addr", "must be host:port")
	}
	return nil
}

func buried(t *metastate.Tombstone, disk topic.ID64) bool {
	for _, d := range t.DiskIDs {
		if d == disk {
			return true
		}
	}
	return false
}

// defers says why a member that asks for a vote does not get one now, or "".
// record is of the disk that asks; raftID its server.
func (c *Controller) defers(t *term, record *topic.Member, raftID string) string {
	switch {
	case c.mono()-t.elected < c.timing.PromoteAfter:
		return "leader_too_young"
	case record == nil:
		return "no_member_record"
	case c.raft.HeartbeatFailing(raftID):
		return "heartbeats_failing"
	case record.Status != topic.StatusAlive:
		return "member_dead"
	case record.Draining:
		return "member_draining"
	}
	return ""
}
