package member

import (
	"context"
	"time"

	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/metastate"
	"github.com/narad-mq/narad/libs/problem"
)

// registerLoop registers this start until its own replica has applied it, and
// sends heartbeats from then on. It goes back to registering when the leader
// does not know the member.
func (m *Member) registerLoop(ctx context.Context) error {
	r := registrar{m: m}
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-next.C:
			next.Reset(r.step(ctx))
		case <-m.beatSoon:
			next.Reset(r.step(ctx))
		case <-ctx.Done():
			return nil
		}
	}
}

// HeartbeatSoon has the next heartbeat sent now instead of within HeartbeatEvery: what
// the controller knows of this member matters just now. It never waits.
func (m *Member) HeartbeatSoon() {
	select {
	case m.beatSoon <- struct{}{}:
	default: // one is asked for already
	}
}

// leaderlessPolls is how often per interval a member without a leader looks for
// one, so that its registration follows an election at once.
const leaderlessPolls = 20

// registrar is the state of the loop between its steps.
type registrar struct {
	m         *Member
	forgotten bool   // the leader does not know a member that was registered, or not all of what it says
	said      string // the last failure logged, so that each is logged once
}

// step does what is due and tells when to look again.
func (r *registrar) step(ctx context.Context) time.Duration {
	m, t := r.m, r.m.cfg.Timing
	if id, _ := m.raft.Leader(); id == "" {
		return t.RegisterEvery / leaderlessPolls
	}
	if m.registered() && !r.forgotten {
		r.forgotten = problem.HasCode(m.heartbeat(ctx), problem.MemberNotFound)
		return t.HeartbeatEvery
	}
	err := m.register(ctx)
	m.refusedFor(err)
	if err == nil {
		r.forgotten = false
		if m.registered() {
			m.log.Info("registered with the metastore", "cluster", m.ClusterID())
			return t.HeartbeatEvery // the registration was a stamp, too
		}
	} else if problem.HasCode(err, problem.NoMetastoreLeader) { // an election; it passes
		m.log.Debug("registration did not reach a leader", "err", err)
	} else if r.said != err.Error() {
		r.said = err.Error()
		m.log.Warn("registration did not succeed; trying again", "err", err)
	}
	return t.RegisterEvery
}

// registered tells whether this start's registration was applied here.
func (m *Member) registered() bool {
	self := m.View().Members().ByID[m.cfg.NodeID]
	return self != nil && self.BootNonce == m.nonce
}

func (m *Member) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timing.HeartbeatEvery)
	defer cancel()
	res, err := m.leader.Register(ctx, &metaapi.RegisterRequest{
		NodeID: m.cfg.NodeID, DiskID: m.dir.id.DiskID, BootNonce: m.nonce, Role: m.cfg.Role,
		RaftAddr: m.raft.Addr(), RPCAddr: m.addr, GossipAddr: m.gossipAddr(), Zone: m.cfg.Zone, Release: m.cfg.Release,
		NewestEntryType: uint8(metastate.NewestType()),
	})
	if err != nil {
		return err
	}
	// The answer is the leader's; what counts is this replica. When it takes
	// longer the loop asks again, which changes nothing.
	wait, cancel := context.WithTimeout(ctx, m.cfg.Timing.RegisterEvery)
	defer cancel()
	if err := m.raft.WaitApplied(wait, res.Index); err != nil && wait.Err() == nil {
		return err
	}
	return nil
}

func (m *Member) heartbeat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Timing.HeartbeatEvery)
	defer cancel()
	backlog, disk := m.load()
	err := m.leader.Heartbeat(ctx, &metaapi.HeartbeatRequest{
		NodeID: m.cfg.NodeID, DiskID: m.dir.id.DiskID, BootNonce: m.nonce, WALBacklog: backlog, DiskUsedPercent: disk,
		Release: m.cfg.Release, NewestEntryType: uint8(metastate.NewestType()), Lost: m.lost(),
	})
	if err != nil {
		m.log.Debug("heartbeat did not succeed", "err", err)
	}
	return err
}
