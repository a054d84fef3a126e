package member

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/raftnode"
	"github.com/narad-mq/narad/libs/topic"
)

// joinLoop brings the node into the cluster and keeps it there: it asks to be
// admitted until its own Raft sees a leader, again whenever it has seen none
// for a while, and, when it may vote, until it does.
func (m *Member) joinLoop(ctx context.Context) error {
	if err := m.form(ctx); err != nil {
		return err
	}
	j := joiner{m: m, asking: true, said: once{}, deferred: once{}}
	tick := time.NewTicker(m.cfg.Timing.JoinEvery)
	defer tick.Stop()
	for {
		if err := j.step(ctx); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// joiner is the state of the loop between its steps.
type joiner struct {
	m          *Member
	asking     bool // no leader was seen yet, or none for long
	remembered metaapi.Memory
	said       once // what was logged since a leader was seen last: several peers may each say something else, at every attempt
	deferred   once // reasons for which the leader deferred a promotion
}

// maxSaid bounds what is remembered as logged: peers have a handful of codes and
// reasons, and what they answer beyond is not worth a line either.
const maxSaid = 32

// once holds what was logged, so that each thing is logged once.
type once map[string]bool

// first tells whether to log now, and notes it.
func (o once) first(what string) bool {
	if o[what] || len(o) >= maxSaid {
		return false
	}
	o[what] = true
	return true
}

func (j *joiner) step(ctx context.Context) error {
	m := j.m
	if id, _ := m.raft.Leader(); id != "" {
		if j.asking {
			j.asking = false
			clear(j.said)
		}
		m.lostAt.Store(nil)
		j.remembered = j.remembered.Remember(m.LeaderAddr())
		j.promote(ctx)
		return nil
	}
	now := time.Now()
	m.lostAt.CompareAndSwap(nil, &now)
	if now.Sub(*m.lostAt.Load()) >= m.cfg.Timing.LeaderlessFor {
		j.asking = true
	}
	if j.asking {
		return j.walk(ctx)
	}
	return nil
}

// walk makes one attempt over everybody who may know the leader. The leader's
// consent opens the gate of a new disk.
func (j *joiner) walk(ctx context.Context) error {
	candidates := append(append([]string(nil), j.m.voterAddrs()...), j.remembered...)
	w := metaapi.NewWalk(candidates...)
	for addr := w.Next(); addr != "" && ctx.Err() == nil; addr = w.Next() {
		if addr == j.m.addr {
			continue
		}
		res, err := j.m.askJoin(ctx, addr)
		if err == nil {
			j.remembered = j.remembered.Remember(addr)
			return j.admitted(addr, res)
		}
		switch hint := metaapi.HintOf(err); {
		case hint == j.m.addr: // it is no leader, it asks
		case hint != "" && !metaapi.ValidHint(hint):
			j.note("a peer named a leader address that nobody can dial; it is not followed", "peer", addr)
		case w.Hint(hint):
			j.remembered = j.remembered.Remember(hint)
		}
		j.refused(addr, err)
	}
	return nil
}

// admitted lets this node's Raft begin as the server that the leader knows, if it
// did not yet.
func (j *joiner) admitted(addr string, res *metaapi.JoinResult) error {
	m := j.m
	want := raftnode.ServerID(m.cfg.NodeID, m.dir.id.DiskID)
	if m.raft.Gated() && res.RaftID != want {
		j.note("a leader answered for another raft server than this one; it is asked again", "leader", addr, "said", res.RaftID, "want", want)
		return nil
	}
	j.note("joining the cluster", "leader", addr, "status", res.Status, "reason", res.Reason)
	if !m.raft.Gated() {
		return nil
	}
	return m.raft.Admit(want)
}

// refused logs what an operator must act on.
func (j *joiner) refused(addr string, err error) {
	j.m.refusedFor(err)
	var p *problem.Problem
	if !errors.As(err, &p) {
		j.m.log.Debug("join: no answer", "peer", addr, "err", err)
		return
	}
	switch p.Code {
	case problem.NotMetastoreLeader, problem.NoRaftConfiguration, problem.Overloaded:
		j.m.log.Debug("join: not there", "peer", addr, "code", string(p.Code))
	case problem.NotReady:
		// A leader that has just been elected passes by itself; one that waits for the
		// other voters before it removes the server of a disk that is gone may not.
		if j.said.first(p.Detail) {
			j.m.log.Info("the leader does not let this node in yet; it keeps asking", "leader", addr, "reason", p.Detail)
		}
	default:
		if j.said.first(string(p.Code)) {
			j.m.log.Error("the cluster refuses this node; it keeps asking", "peer", addr, "code", string(p.Code), "detail", p.Detail)
		}
	}
}

func (j *joiner) note(msg string, args ...any) {
	if j.said.first(msg) {
		j.m.log.Info(msg, args...)
	}
}

// promote asks for a vote, when this node may have one, has none and has caught up.
func (j *joiner) promote(ctx context.Context) {
	m := j.m
	if m.cfg.Role != topic.RoleVoter || m.votes() {
		return
	}
	if ok, _ := m.raft.CaughtUp(); !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timing.JoinEvery)
	defer cancel()
	res, err := m.leader.Join(ctx, m.joinRequest())
	switch {
	case err != nil:
		j.refused(m.LeaderAddr(), err)
	case res.Status == "deferred" && j.deferred.first(res.Reason):
		m.log.Info("cluster join: caught up as a raft non-voter; the leader defers promotion", "reason", res.Reason)
	case res.Status == "promoted":
		m.log.Info("promoted to raft voter")
	}
}

func (m *Member) votes() bool {
	own := m.raft.ServerID()
	for _, s := range m.raft.Configuration().Servers {
		if s.RaftID == own {
			return s.Voter
		}
	}
	return false
}

func (m *Member) joinRequest() *metaapi.JoinRequest {
	return &metaapi.JoinRequest{
		NodeID: m.cfg.NodeID, DiskID: m.dir.id.DiskID, Role: m.cfg.Role, ClusterID: m.ClusterID(),
		RaftAddr: m.raft.Addr(), RPCAddr: m.addr, Zone: m.cfg.Zone, Release: m.cfg.Release,
		NewestEntryType: uint8(metastate.NewestType()), Empty: m.dir.empty, RaftID: m.raft.ServerID(),
	}
}

// askJoin sends one join request to one peer.
func (m *Member) askJoin(ctx context.Context, addr string) (*metaapi.JoinResult, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timing.AskBudget)
	defer cancel()
	return metaapi.NewClient(m.client.Peer("", addr)).Join(ctx, m.joinRequest())
}

// form gives an initial member with an empty disk its first configuration,
// unless a peer answers as a member of a cluster that exists already.
func (m *Member) form(ctx context.Context) error {
	servers := m.cfg.Initial
	if m.cfg.FormAlone {
		servers = []raftnode.Server{{ID: m.cfg.NodeID, Addr: m.raft.Addr(), Voter: true}}
	}
	if len(servers) == 0 || !m.raft.Empty() {
		return nil
	}
	switch found, cluster := m.probe(ctx); {
	case found != "" && cluster:
		m.log.Info("a peer belongs to a cluster already: joining it", "peer", found)
		return nil
	case found != "":
		// The others have begun to form the cluster and may need this vote for their
		// first election; nothing can have been committed without a leader.
		m.log.Info("a peer is forming the cluster: joining it", "peer", found)
		return m.raft.Admit(m.cfg.NodeID)
	}
	if ctx.Err() != nil || !m.raft.Empty() {
		return nil
	}
	if len(servers)%2 == 0 {
		m.log.Warn("an even number of initial members tolerates no more failures than one less", "members", len(servers))
	}
	if err := m.raft.Bootstrap(servers); err != nil && !errors.Is(err, raftnode.ErrHasState) {
		return err
	}
	m.log.Info("formed a cluster with the initial members", "members", len(servers))
	return nil
}

// probe asks the peers whether a cluster exists and returns who said so, or "",
// and whether that cluster ever had a leader.
func (m *Member) probe(ctx context.Context) (addr string, cluster bool) {
	tick := time.NewTicker(m.cfg.Timing.ProbeEvery)
	defer tick.Stop()
	for round := range m.cfg.Timing.ProbeRounds {
		if m.cfg.FormAlone || len(m.cfg.Join) == 0 {
			return "", false
		}
		for _, addr := range m.cfg.Join {
			if addr == m.addr {
				continue
			}
			if _, err := m.askJoin(ctx, addr); configured(err) {
				return addr, established(err)
			}
		}
		if round == m.cfg.Timing.ProbeRounds-1 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", false
		}
	}
	return "", false
}

// configured tells whether the answer to a join comes from a node with a Raft
// configuration: 200, 421 or 409.
func configured(err error) bool {
	var p *problem.Problem
	if errors.As(err, &p) {
		return p.Status == 421 && p.Code != problem.WrongNode || p.Status == 409
	}
	return err == nil
}

// established tells whether a configured peer's answer comes from a cluster that
// had a leader: only a 421 that names neither a leader nor a cluster does not.
func established(err error) bool {
	var p *problem.Problem
	if !errors.As(err, &p) || p.Code != problem.NotMetastoreLeader {
		return true
	}
	return named(p, "leader_id") || named(p, "leader_addr") || named(p, "cluster_id")
}

func named(p *problem.Problem, member string) bool {
	s, ok := p.Members[member].(string)
	return !ok || s != ""
}
