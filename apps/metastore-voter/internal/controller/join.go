package controller

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metaapi/lifecycle"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
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

// Join implements metaapi.Voter. A node that is in the configuration already is
// changed in nothing but its address; a storage node or gateway never gets a vote.
func (c *Controller) Join(ctx context.Context, req *metaapi.JoinRequest) (*metaapi.JoinResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	if err := checkJoin(req); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.timing.Propose)
	defer cancel()
	c.members.Lock()
	defer c.members.Unlock()
	c.admission.Lock() // a newer entry is proposed before the look at the joiner, or after its admission
	defer c.admission.Unlock()
	conf := c.raft.Configuration()
	server := find(conf, req.NodeID)
	record, err := c.checkJoiner(req, server)
	if err == nil {
		err = checkAddress(conf, req)
	}
	if err != nil {
		c.refuseJoin(req, err)
		return nil, err
	}
	switch {
	case server == nil:
		c.log.Info("admitting a node as raft non-voter", "node", req.NodeID, "role", string(req.Role), "addr", req.RaftAddr)
		_, err = c.raft.AddNonvoter(ctx, req.NodeID, req.RaftAddr, conf.Index)
		return c.joined(statusStaged, "", err)
	case server.Addr != req.RaftAddr:
		c.log.Info("a node has another raft address", "node", req.NodeID, "was", server.Addr, "addr", req.RaftAddr)
		if _, err := c.raft.AddNonvoter(ctx, req.NodeID, req.RaftAddr, conf.Index); err != nil {
			return c.joined("", "", err)
		}
	}
	switch {
	case server.Voter:
		return c.joined(statusVoter, "", nil)
	case req.Role != topic.RoleVoter:
		return c.joined(statusStaged, "", nil)
	case server.Addr != req.RaftAddr:
		return c.joined(statusDeferred, "heartbeats_failing", nil) // none can have reached the new address yet
	}
	if reason := c.defers(t, record); reason != "" {
		c.log.Debug("promotion deferred", "node", req.NodeID, "reason", reason)
		return c.joined(statusDeferred, reason, nil)
	}
	c.log.Info("promoting a node to raft voter", "node", req.NodeID)
	_, err = c.raft.AddVoter(ctx, req.NodeID, req.RaftAddr, conf.Index)
	return c.joined(statusPromoted, "", err)
}

const (
	// refusedAgainAfter is how long a joiner's refusals stay silent after one was
	// logged: it asks every 2 s for as long as it runs.
	refusedAgainAfter = lifecycle.OlderReleaseLogEvery
	// maxRefused bounds the joiners that are remembered for it.
	maxRefused = 256
)

// refusalLog remembers when a joiner's refusal was logged last. It is used under
// Controller.members.
type refusalLog map[string]time.Duration

// due tells whether to log now, and notes it.
func (l *refusalLog) due(node string, now time.Duration) bool {
	if at, ok := (*l)[node]; ok && now-at < refusedAgainAfter {
		return false
	}
	if *l == nil || len(*l) >= maxRefused {
		*l = refusalLog{}
	}
	(*l)[node] = now
	return true
}

func (c *Controller) refuseJoin(req *metaapi.JoinRequest, err error) {
	if c.joinLog.due(req.NodeID, c.mono()) {
		c.log.Error("refused a joining node", "node", req.NodeID, "role", string(req.Role), "addr", req.RaftAddr, "err", err)
	}
}

func (c *Controller) joined(status, reason string, err error) (*metaapi.JoinResult, error) {
	if err != nil {
		return nil, c.refusal(err)
	}
	return &metaapi.JoinResult{Status: status, Reason: reason}, nil
}

func find(conf raftnode.Configuration, id string) *raftnode.Server {
	for i := range conf.Servers {
		if conf.Servers[i].ID == id {
			return &conf.Servers[i]
		}
	}
	return nil
}

// checkAddress keeps two servers from sharing an address, which Raft would
// refuse in a way that looks like an unknown outcome.
func checkAddress(conf raftnode.Configuration, req *metaapi.JoinRequest) error {
	for _, s := range conf.Servers {
		if s.Addr == req.RaftAddr && s.ID != req.NodeID {
			return problem.New(problem.IDInUse, "the raft address %s belongs to %q", s.Addr, s.ID)
		}
	}
	return nil
}

// maxNodeID is the longest node id that a program accepts.
const maxNodeID = 63

func checkJoin(req *metaapi.JoinRequest) error {
	switch {
	case req.NodeID == "" || len(req.NodeID) > maxNodeID:
		return invalid("node_id", "must have 1 to 63 bytes")
	case req.DiskID == 0:
		return invalid("disk_id", "must not be zero")
	case req.Role != topic.RoleVoter && req.Role != topic.RoleStorage && req.Role != topic.RoleGateway:
		return invalid("role", "is unknown")
	case !metaapi.ValidHint(req.RaftAddr):
		return invalid("raft_addr", "must be host:port")
	case !metaapi.ValidHint(req.RPCAddr):
		return invalid("rpc_addr", "must be host:port")
	}
	return nil
}

// checkJoiner answers the member's record, or why the node stays out.
func (c *Controller) checkJoiner(req *metaapi.JoinRequest, server *raftnode.Server) (record *topic.Member, err error) {
	var grave *metastate.Tombstone
	var newest metastate.Type
	err = c.raft.Read(func(r metastate.Reader) (err error) {
		if record, err = metastate.MemberByID(r, req.NodeID); err != nil {
			return err
		}
		if grave, err = metastate.TombstoneByID(r, req.NodeID); err != nil {
			return err
		}
		newest, err = metastate.NewestApplied(r)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case grave != nil && (!req.Empty || buried(grave, req.DiskID)):
		return nil, problem.New(problem.Decommissioned, "node %q was decommissioned", req.NodeID)
	case record != nil && record.Role != req.Role:
		return nil, problem.New(problem.IDInUse, "%q is the id of a %s", req.NodeID, record.Role)
	case record != nil && record.Status == topic.StatusAlive && record.DiskID != req.DiskID:
		return nil, problem.New(problem.IDInUse, "a live member with another disk has the id %q", req.NodeID)
	case server != nil && server.Voter && record != nil && record.DiskID != req.DiskID:
		// What it stored and promised is gone: its vote, or its word for an entry, could
		// undo what was committed with the old disk.
		return nil, problem.New(problem.IDInUse, "voter %q had another disk: a voter that lost its disk joins under a new id", req.NodeID)
	case server == nil:
		return record, olderRelease(req, newest, c.raft.View().Members().ByID)
	}
	return record, nil
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
func (c *Controller) defers(t *term, record *topic.Member) string {
	switch {
	case c.mono()-t.elected < c.timing.PromoteAfter:
		return "leader_too_young"
	case record == nil:
		return "no_member_record"
	case c.raft.HeartbeatFailing(record.ID):
		return "heartbeats_failing"
	case record.Status != topic.StatusAlive:
		return "member_dead"
	case record.Draining:
		return "member_draining"
	}
	return ""
}
