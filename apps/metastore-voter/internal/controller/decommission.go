package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/narad-mq/narad/apps/metastore-voter/internal/decommission"
	"github.com/narad-mq/narad/apps/metastore-voter/internal/moves"
	"github.com/narad-mq/narad/libs/gatewayapi"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/placement"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// askGateway ends the question to a draining gateway: it looks at its own memory.
const askGateway = 2 * time.Second

var (
	_ metaapi.Decommissions  = (*Controller)(nil)
	_ decommission.Metastore = removals{}
)

// Decommission implements metaapi.Decommissions. It is judged behind a barrier and
// one at a time, so that two at once do not each count on the other's node.
func (c *Controller) Decommission(ctx context.Context, req *metaapi.DecommissionRequest) (*metaapi.DecommissionResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	c.members.Lock()
	defer c.members.Unlock()
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	s, err := c.stateOf(ctx, req.NodeID)
	if err != nil {
		return nil, err
	}
	again := s.Member.Draining && (!req.AcceptDataLoss || s.Member.LossAcceptedBy != "")
	var living *metaapi.Reason
	if req.AcceptDataLoss && s.Member.LossAcceptedBy == "" {
		if living = s.Living(); living == nil {
			s.Member.LossAcceptedBy = operator(req.Operator)
		}
	}
	v := decommission.Judge(s)
	if living != nil {
		v.Reasons = slices.Insert(v.Reasons, 0, *living)
	}
	unsafe := decommission.Unsafe(v.Reasons)
	out := &metaapi.DecommissionResult{
		Would:   len(unsafe) == 0 || s.Member.Draining && living == nil,
		Reasons: c.keptBack(s, v), Replicas: len(s.Copies), WALBacklogRecords: backlogOf(s),
	}
	for i := range s.Copies {
		if s.Copies[i].Leader == req.NodeID {
			out.PartitionsLed++
		}
	}
	switch {
	case req.DryRun, again:
		return out, nil
	case !out.Would:
		return nil, problem.New(problem.DecommissionUnsafe, "%q cannot be decommissioned now: %s", req.NodeID, unsafe[0].Message).With("reasons", unsafe)
	}
	out.Index, _, err = c.propose(ctx, &metastate.SetDraining{ID: req.NodeID, On: true, NowMS: c.wallMS(), LossAcceptedBy: s.Member.LossAcceptedBy})
	if err != nil {
		return nil, err
	}
	c.log.Info("decommission begins", "member", req.NodeID, "role", string(s.Member.Role), "by", operator(req.Operator), "accept_data_loss", req.AcceptDataLoss, "replicas", out.Replicas)
	c.tell(req.NodeID, true)
	return out, nil
}

func operator(name string) string {
	if name == "" {
		return "unknown"
	}
	return name
}

// tell lets others know sooner than they would see it.
func (c *Controller) tell(member string, draining bool) {
	if c.cfg.Told != nil {
		c.cfg.Told(member, draining)
	}
}

func backlogOf(s *decommission.State) int64 {
	if s.Gateway != nil {
		return s.Gateway.Backlog
	}
	return s.Member.WALBacklog
}

// CancelDecommission implements metaapi.Decommissions. It takes turns with the
// removal, so that no member is half in.
func (c *Controller) CancelDecommission(ctx context.Context, req *metaapi.CancelDecommissionRequest) (*metaapi.ChangeResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	c.members.Lock()
	defer c.members.Unlock()
	if err := c.sure(ctx); err != nil {
		return nil, err
	}
	m, err := c.record(req.NodeID)
	if err != nil {
		return nil, err
	}
	nothing := func(why string) error {
		return problem.New(problem.DecommissionUnsafe, "%q cannot be kept: %s", req.NodeID, why).With("reasons", []metaapi.Reason{})
	}
	switch {
	case !m.Draining:
		return nil, nothing("it is not being decommissioned")
	case serverOf(c.raft.Configuration(), m) == nil:
		return nil, nothing("it has left the Raft configuration already; add it anew with an empty data directory")
	}
	index, _, err := c.propose(ctx, &metastate.SetDraining{ID: req.NodeID, NowMS: c.wallMS()})
	if err != nil {
		return nil, err
	}
	c.log.Info("decommission cancelled", "member", req.NodeID, "by", operator(req.Operator))
	c.tell(req.NodeID, false)
	c.takeBack(ctx, req.NodeID)
	return &metaapi.ChangeResult{Index: index}, nil
}

// takeBack aborts what a decommission that was cancelled has under way: what is kept need
// not leave. What is not taken back, because this leader is lost, goes on and comes back
// by a rebalance.
func (c *Controller) takeBack(ctx context.Context, member string) {
	under, err := c.moves.List()
	if err != nil {
		c.log.Warn("what a cancelled decommission has under way goes on", "member", member, "err", err)
		return
	}
	e := &metastate.Moves{}
	for i := range under.Moves {
		if m := &under.Moves[i]; m.From == member && m.Reason == topic.MoveDecommission && !m.Aborted {
			e.Abort = append(e.Abort, m.ID())
		}
	}
	if len(e.Abort) == 0 {
		return
	}
	if _, _, err := c.propose(ctx, e); err != nil {
		c.log.Warn("what a cancelled decommission has under way goes on", "member", member, "moves", len(e.Abort), "err", err)
		return
	}
	c.moves.Kick()
}

// MemberDetail implements metaapi.Decommissions.
func (c *Controller) MemberDetail(ctx context.Context, req *metaapi.MemberDetailRequest) (*metaapi.MemberDetailResult, error) {
	if _, err := c.leading(); err != nil {
		return nil, err
	}
	m, err := c.record(req.NodeID)
	if err != nil {
		return nil, err
	}
	out := &metaapi.MemberDetailResult{Blocked: []metaapi.Reason{}}
	if !m.Draining {
		return out, nil
	}
	s, err := c.stateOf(ctx, req.NodeID)
	if err != nil {
		return nil, err
	}
	out.Draining, out.StartedMS = true, s.Member.DrainingMS
	out.PartitionsLeft, out.WALBacklogRecords = len(s.Copies), backlogOf(s)
	out.Blocked = c.keptBack(s, decommission.Judge(s))
	return out, nil
}

// keptBack are the reasons of a verdict, and what the moves away from the member wait for.
func (c *Controller) keptBack(s *decommission.State, v decommission.Verdict) []metaapi.Reason {
	out := append([]metaapi.Reason{}, v.Reasons...)
	if under, err := c.moves.List(); err == nil {
		out = append(out, decommission.Held(s.Member.ID, under.Moves)...)
	}
	return out
}

// record is a member's record with its last stamp, or the refusal.
func (c *Controller) record(id string) (*topic.Member, error) {
	var m *topic.Member
	var grave *metastate.Tombstone
	err := c.raft.Read(func(r metastate.Reader) (err error) {
		if m, err = metastate.MemberByID(r, id); err != nil {
			return err
		}
		grave, err = metastate.TombstoneByID(r, id)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read member %q: %w", id, err)
	case m != nil:
		return m, nil
	case find(c.raft.Configuration(), id) != nil:
		return nil, problem.New(problem.MemberNotFound, "%q is a Raft server that never registered: forget it instead", id)
	case grave != nil:
		return nil, problem.New(problem.MemberNotFound, "%q was decommissioned already", id)
	}
	return nil, problem.New(problem.MemberNotFound, "there is no member %q", id)
}

// serverOf is the Raft server of a member and its disk of record; nil: none. Only
// the servers of a first configuration are named for the node alone.
func serverOf(conf raftnode.Configuration, m *topic.Member) *raftnode.Server {
	for i := range conf.Servers {
		if s := &conf.Servers[i]; s.RaftID == raftnode.ServerID(m.ID, m.DiskID) || s.RaftID == m.ID {
			return s
		}
	}
	return nil
}

// stateOf gathers what decides about a member, and asks it when it is a gateway.
func (c *Controller) stateOf(ctx context.Context, id string) (*decommission.State, error) {
	m, err := c.record(id)
	if err != nil {
		return nil, err
	}
	s, err := c.localState(m)
	if err == nil && m.Role == topic.RoleGateway && s.Server != nil {
		c.askDrained(ctx, s)
	}
	return s, err
}

// localState is what this leader knows without asking anybody.
func (c *Controller) localState(m *topic.Member) (*decommission.State, error) {
	s := &decommission.State{Member: *m, Members: map[string]*topic.Member{}, Self: c.cfg.NodeID, Moving: map[topic.Ref]bool{}, Factors: map[string]int{}}
	members := c.memberList()
	for i := range members {
		s.Members[members[i].ID] = &members[i]
	}
	conf := c.raft.Configuration()
	a := &applicant{conf: conf, self: c.raft.ServerID(), stats: c.raft.Stats().Servers}
	own := serverOf(conf, m)
	for i := range conf.Servers {
		srv := &conf.Servers[i]
		s.Servers = append(s.Servers, decommission.Server{Node: srv.ID, RaftID: srv.RaftID, Voter: srv.Voter, Reachable: a.reaches(srv.RaftID)})
		if srv == own {
			one := s.Servers[i]
			s.Server = &one
		}
	}
	var err error
	view := c.raft.View()
	if s.Copies, err = view.AssignmentsOf(m.ID); err != nil {
		return nil, problem.New(problem.NotReady, "the leader does not know the partitions of %q yet", m.ID)
	}
	for i := range s.Copies {
		name := s.Copies[i].Topic
		if _, known := s.Factors[name]; known {
			continue
		}
		t, err := view.Topic(name)
		switch {
		case err == nil:
			s.Factors[name] = t.ReplicationFactor
		case !errors.Is(err, metastate.ErrNoTopic): // one that is gone by now wants nothing
			return nil, fmt.Errorf("read what topic %q is to have: %w", name, err)
		}
	}
	err = c.raft.Read(func(r metastate.Reader) error {
		moves, err := metastate.AllMoves(r)
		for i := range moves {
			s.Moving[moves[i].Ref] = true
		}
		return err
	})
	if under, merr := c.moves.List(); merr == nil {
		s.Running = under.Running
	}
	if err != nil {
		return nil, fmt.Errorf("read the moves under way: %w", err)
	}
	return s, nil
}

// askDrained puts the gateway's word into the state. No word is no consent.
func (c *Controller) askDrained(ctx context.Context, s *decommission.State) {
	ctx, cancel := context.WithTimeout(ctx, askGateway)
	defer cancel()
	if c.cfg.Gateway == nil {
		return
	}
	res, err := c.cfg.Gateway(s.Member.ID, s.Member.RPCAddr).Drained(ctx, &gatewayapi.DrainedRequest{BootNonce: s.Member.BootNonce})
	switch {
	case err == nil:
		s.Gateway = res
	case gatewayapi.NoDrain(err):
		s.OldGateway = true
	default:
		c.log.Debug("a gateway did not say whether it is drained", "member", s.Member.ID, "err", err)
	}
}

// removals is the controller as a decommission.Runner uses it.
type removals struct{ *Controller }

// State implements decommission.Metastore.
func (c removals) State(ctx context.Context, id string) (*decommission.State, error) {
	s, err := c.stateOf(ctx, id)
	if problem.HasCode(err, problem.MemberNotFound) {
		return nil, nil
	}
	if err == nil && !s.Member.Draining {
		return nil, nil
	}
	return s, err
}

// Evacuate implements decommission.Metastore.
func (c removals) Evacuate(ctx context.Context, member string, list []topic.Assignment) error {
	plan, err := c.evacuation(member, list)
	if err != nil || len(plan) == 0 {
		return err
	}
	begun, err := c.moves.Begin(ctx, topic.MoveDecommission, plan)
	if begun > 0 {
		c.log.Info("decommission: partitions move away", "member", member, "moves_begun", begun, "moves_planned", len(plan))
	}
	return err
}

// evacuation is where what can leave a member would go now.
func (c removals) evacuation(member string, list []topic.Assignment) ([]placement.Move, error) {
	nodes, err := c.nodes(nil)
	if err != nil {
		return nil, err
	}
	under, err := c.arriving()
	if err != nil {
		return nil, err
	}
	return placement.Evacuate(member, nodes, list, under, moves.Away(c.raft.View())), nil
}

// toEvacuate counts what has somewhere to go and waits until other moves have ended, of
// all members that drain.
func (c removals) toEvacuate() (n int, err error) {
	members := c.memberList()
	for i := range members {
		m := &members[i]
		if !m.Draining || m.Role != topic.RoleStorage {
			continue
		}
		s, err := c.localState(m)
		if err != nil {
			return 0, err
		}
		plan, err := c.evacuation(m.ID, s.Settled())
		if err != nil {
			return 0, err
		}
		n += len(plan)
	}
	return n, nil
}

// arriving are the moves whose destinations are no replicas yet, so that no load counts
// them: without them what begins while 8 moves run all goes to the node that had least.
func (c removals) arriving() (out []topic.Move, err error) {
	err = c.raft.Read(func(r metastate.Reader) error {
		all, err := metastate.AllMoves(r)
		if err != nil {
			return err
		}
		for i := range all {
			a, err := metastate.PartitionOf(r, all[i].Ref)
			if err != nil {
				return err
			}
			if a == nil {
				continue
			}
			if _, joined := a.ReplicaOn(all[i].To); !joined {
				out = append(out, all[i])
			}
		}
		return nil
	})
	return out, err
}

// Transfer implements decommission.Metastore.
func (c removals) Transfer(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.timing.Transfer)
	defer cancel()
	return c.raft.TransferLeadership(ctx)
}

// RemoveServer implements decommission.Metastore. What was judged is judged again where
// nobody joins, is removed or cancels; only a gateway's word is taken as it was
// given a moment ago: a cancel since then is seen here.
func (c removals) RemoveServer(ctx context.Context, judged *decommission.State) error {
	ctx, cancel := context.WithTimeout(ctx, c.timing.Propose)
	defer cancel()
	c.members.Lock()
	defer c.members.Unlock()
	if err := c.sure(ctx); err != nil {
		return err
	}
	m, err := c.record(judged.Member.ID)
	if err != nil {
		return err
	}
	was := &judged.Member
	if !m.Draining || m.DrainingMS != was.DrainingMS || m.DiskID != was.DiskID || m.BootNonce != was.BootNonce {
		return problem.New(problem.PreconditionFailed, "%q is not what it was when it was judged", m.ID)
	}
	s, err := c.localState(m)
	if err != nil {
		return err
	}
	s.Gateway, s.OldGateway = judged.Gateway, judged.OldGateway
	if v := decommission.Judge(s); v.Step != decommission.Remove {
		return problem.New(problem.PreconditionFailed, "%q is kept back by now", m.ID).With("reasons", v.Reasons)
	}
	_, err = c.raft.RemoveServer(ctx, s.Server.RaftID, c.raft.Configuration().Index)
	return err
}

// Bury implements decommission.Metastore.
func (c removals) Bury(ctx context.Context, m *topic.Member, loss bool) error {
	_, _, err := c.propose(ctx, &metastate.RemoveMember{ID: m.ID, DiskID: m.DiskID, AcceptLoss: loss, NowMS: c.wallMS()})
	return err
}
