package controller

import (
	"context"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// seat is where a joiner belongs in the Raft configuration.
type seat struct {
	raftID string           // the server id of its disk
	server *raftnode.Server // of that id; nil: not there (yet)
	former *raftnode.Server // of the same node with another disk; nil: none
}

// seatOf finds the seat. A node whose disk took part in nothing is given the
// server id of node and disk; one that takes part says as which.
func seatOf(conf raftnode.Configuration, req *metaapi.JoinRequest) seat {
	s := seat{raftID: req.RaftID}
	if s.raftID == "" {
		s.raftID = raftnode.ServerID(req.NodeID, req.DiskID)
	}
	for i := range conf.Servers {
		switch srv := &conf.Servers[i]; {
		case srv.RaftID == s.raftID:
			s.server = srv
		case srv.ID == req.NodeID:
			s.former = srv
		}
	}
	return s
}

// applicant is all that decides about a join request.
type applicant struct {
	conf   raftnode.Configuration
	seat   seat
	record *topic.Member        // of the node id; nil: none
	grave  *metastate.Tombstone // nil: none
	newest metastate.Type       // the newest type that was applied

	members map[string]*topic.Member // everybody of record
	stats   []raftnode.ServerStats   // of conf's servers, as this leader hears them
	self    string                   // this leader's own Raft server id
}

// check says why the node stays out, or nil.
func (a *applicant) check(req *metaapi.JoinRequest) error {
	record, s := a.record, a.seat
	switch {
	case a.decommissioned(req):
		return problem.New(problem.Decommissioned, "node %q was decommissioned", req.NodeID)
	case record != nil && record.Role != req.Role:
		return problem.New(problem.IDInUse, "%q is the id of a %s", req.NodeID, record.Role)
	case record != nil && record.Status == topic.StatusAlive && record.DiskID != req.DiskID:
		return problem.New(problem.IDInUse, "a live member with another disk has the id %q", req.NodeID)
	case record != nil && record.DiskID != req.DiskID && s.server != nil && s.server.RaftID == req.NodeID:
		// The server of a first configuration does not name its disk, but its record does.
		return problem.New(problem.IDInUse, "voter %q had another disk, and this one took part in Raft under the same server id: give it an empty directory", req.NodeID)
	case s.former != nil && a.reaches(s.former.RaftID):
		return problem.New(problem.IDInUse, "a server of %q answers, and has another disk", req.NodeID)
	}
	if s.server == nil {
		if err := olderRelease(req, a.newest, a.members); err != nil {
			return err
		}
	}
	return a.checkAddress(req)
}

// decommissioned tells whether the joiner is what was removed, or is about to be: a
// buried disk; under a buried name one that was not made in this start, unless it was
// admitted since; or the disk of a draining member that left the configuration.
func (a *applicant) decommissioned(req *metaapi.JoinRequest) bool {
	ofRecord := a.record != nil && a.record.DiskID == req.DiskID
	switch {
	case a.grave != nil && buried(a.grave, req.DiskID):
		return true
	case a.grave != nil && !req.Empty && !ofRecord && a.seat.server == nil:
		return true
	}
	return ofRecord && a.record.Draining && a.seat.server == nil
}

// checkAddress keeps the servers of two nodes from sharing an address, which Raft
// would refuse in a way that looks like an unknown outcome.
func (a *applicant) checkAddress(req *metaapi.JoinRequest) error {
	for _, s := range a.conf.Servers {
		if s.Addr == req.RaftAddr && s.ID != req.NodeID {
			return problem.New(problem.IDInUse, "the raft address %s belongs to %q", s.Addr, s.ID)
		}
	}
	return nil
}

func (a *applicant) reaches(raftID string) bool {
	for i := range a.stats {
		if a.stats[i].RaftID == raftID {
			return raftID == a.self || a.stats[i].Reachable()
		}
	}
	return false
}

// checkRemoval is nil when the former server may go: the voters that this leader
// reaches are a majority of those that stay. There is no floor of how many stay:
// what goes is no voter any more, whatever the configuration says.
func (a *applicant) checkRemoval() error {
	voters, reached := 0, 0
	for _, s := range a.conf.Servers {
		if !s.Voter || s.RaftID == a.seat.former.RaftID {
			continue
		}
		voters++
		if a.reaches(s.RaftID) {
			reached++
		}
	}
	if a.seat.former.Voter && reached < voters/2+1 {
		return problem.New(problem.NotReady, "%q had another disk; its server is removed once a majority of the other voters answers: %d of %d do",
			a.seat.former.ID, reached, voters)
	}
	return nil
}

// owner is the record of the joiner's own disk, or nil.
func (a *applicant) owner(req *metaapi.JoinRequest) *topic.Member {
	if a.record == nil || a.record.DiskID != req.DiskID {
		return nil
	}
	return a.record
}

// look gathers what decides about a request, and the refusal if there is one.
func (c *Controller) look(req *metaapi.JoinRequest) (*applicant, error) {
	a := &applicant{
		conf: c.raft.Configuration(), self: c.raft.ServerID(), stats: c.raft.Stats().Servers, members: c.raft.View().Members().ByID,
	}
	a.seat = seatOf(a.conf, req)
	err := c.raft.Read(func(r metastate.Reader) (err error) {
		if a.record, err = metastate.MemberByID(r, req.NodeID); err != nil {
			return err
		}
		if a.grave, err = metastate.TombstoneByID(r, req.NodeID); err != nil {
			return err
		}
		a.newest, err = metastate.NewestApplied(r)
		return err
	})
	if err == nil {
		err = a.check(req)
	}
	return a, err
}

// admissible looks, and says no only when a second look after a barrier does:
// what a leader that was replaced remembers is no reason.
func (c *Controller) admissible(ctx context.Context, req *metaapi.JoinRequest) (*applicant, error) {
	a, err := c.look(req)
	if err == nil {
		return a, nil
	}
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	return c.look(req)
}

// unseat removes the servers that the node was with other disks; afterwards none
// of them can vote or store for this cluster. It answers the look after that.
func (c *Controller) unseat(ctx context.Context, req *metaapi.JoinRequest, a *applicant) (_ *applicant, err error) {
	for a.seat.former != nil {
		if err := a.checkRemoval(); err != nil {
			return nil, err
		}
		c.log.Warn("a node has another disk: removing the raft server that it was", "node", req.NodeID, "server", a.seat.former.RaftID, "disk", req.DiskID)
		if _, err := c.raft.RemoveServer(ctx, a.seat.former.RaftID, a.conf.Index); err != nil {
			return nil, c.refusal(err)
		}
		if a, err = c.look(req); err != nil {
			return nil, err
		}
	}
	return a, nil
}
