package controller

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/proc"
	"github.com/narad-mq/narad/libs/topic"
)

// Register implements metaapi.Voter.
func (c *Controller) Register(ctx context.Context, req *metaapi.RegisterRequest) (*metaapi.ChangeResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	index, err := c.register(ctx, req)
	if err != nil {
		return nil, c.complain("registration", req.NodeID, req.Role, req.RaftAddr, err)
	}
	c.hear(t, metastate.Heartbeat{ID: req.NodeID, BootNonce: req.BootNonce}, false)
	return &metaapi.ChangeResult{Index: index}, nil
}

func (c *Controller) register(ctx context.Context, req *metaapi.RegisterRequest) (uint64, error) {
	switch {
	case !proc.ValidNodeID(req.NodeID):
		return 0, invalid("node_id", "is no node id")
	case !knownRole(req.Role):
		return 0, invalid("role", "is unknown")
	case !metaapi.ValidHint(req.RPCAddr):
		return 0, invalid("rpc_addr", "must be host:port")
	case !metaapi.ValidHint(req.RaftAddr):
		return 0, invalid("raft_addr", "must be host:port")
	case req.GossipAddr != "" && !metaapi.ValidHint(req.GossipAddr):
		return 0, invalid("gossip_addr", "must be host:port")
	}
	index, _, err := c.propose(ctx, &metastate.RegisterMember{NowMS: c.wallMS(), Member: topic.Member{
		ID: req.NodeID, Role: req.Role, DiskID: req.DiskID, BootNonce: req.BootNonce,
		RPCAddr: req.RPCAddr, RaftAddr: req.RaftAddr, GossipAddr: req.GossipAddr, Zone: req.Zone,
		Release: req.Release, NewestEntryType: req.NewestEntryType,
	}})
	return index, err
}

// Heartbeat implements metaapi.Voter. It answers before the stamp is in an
// entry: what counts for the verdict is that it was heard.
func (c *Controller) Heartbeat(_ context.Context, req *metaapi.HeartbeatRequest) error {
	t, err := c.leading()
	if err != nil {
		return err
	}
	m := c.raft.View().Members().ByID[req.NodeID]
	switch {
	case m == nil, m.BootNonce == 0: // 0: no start of it since the cluster was founded anew
		return problem.New(problem.MemberNotFound, "%q is not registered", req.NodeID)
	case m.DiskID != req.DiskID || m.BootNonce != req.BootNonce:
		return c.complain("heartbeat", req.NodeID, m.Role, m.RaftAddr, problem.New(problem.IDInUse, "another process registered as %q", req.NodeID))
	}
	c.hear(t, metastate.Heartbeat{
		ID: req.NodeID, BootNonce: req.BootNonce, WALBacklog: req.WALBacklog, DiskUsedPercent: req.DiskUsedPercent,
	}, true)
	t.miss(req.NodeID, missedBy(req))
	t.use(req.NodeID, diskUse{disk: req.DiskID, percent: req.DiskUsedPercent})
	if m.Status == topic.StatusDead {
		select { // it comes back to life now, not with the next batch
		case t.urgent <- struct{}{}:
		default:
		}
	}
	if misreported(m, req) {
		return problem.New(problem.MemberNotFound, "%q is registered, but not as what it is now: release %q, entry types up to %d", req.NodeID, req.Release, req.NewestEntryType)
	}
	return nil
}

// hear notes that a member was heard, and keeps its stamp for the next entry.
// Both maps hold registered members only.
func (c *Controller) hear(t *term, h metastate.Heartbeat, stamp bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heard[h.ID] = c.mono()
	if stamp {
		t.pending[h.ID] = h
	}
}

// stamp puts the collected stamps into one entry; false when that failed. Lost
// ones cost nothing but the age that people see.
func (c *Controller) stamp(ctx context.Context, t *term) bool {
	t.mu.Lock()
	items := make([]metastate.Heartbeat, 0, len(t.pending))
	for _, h := range t.pending {
		items = append(items, h)
	}
	clear(t.pending)
	t.mu.Unlock()
	if len(items) == 0 {
		return true
	}
	_, res, err := c.propose(ctx, &metastate.Heartbeats{NowMS: c.wallMS(), Items: items})
	if err != nil {
		c.log.Debug("heartbeats were not stamped", "members", len(items), "err", err)
		return false
	}
	for i, s := range res.Stamps {
		if s == metastate.Revived {
			c.log.Info("member alive again", "member", items[i].ID)
		}
	}
	return true
}

// Members implements metaapi.Voter: the records as applied here, and the age of
// everybody heard in this term. The view's table would not do: stamps do not
// refresh it, so that a disk that fills up would never be seen.
func (c *Controller) Members(context.Context) (*metaapi.MembersResult, error) {
	t, err := c.leading()
	if err != nil {
		return nil, err
	}
	now := c.mono()
	out := &metaapi.MembersResult{
		LeaderID: c.cfg.NodeID, ClusterID: c.raft.View().ClusterID(), AgesMS: map[string]int64{}, Members: []topic.Member{},
		DeadMarkingRefused: c.refused.Load(),
	}
	err = c.raft.Read(func(r metastate.Reader) error {
		list, err := metastate.AllMembers(r)
		out.Members = append(out.Members, list...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the members: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.heard {
		out.AgesMS[id] = (now - at).Milliseconds()
	}
	return out, nil
}
