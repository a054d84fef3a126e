package partition

import (
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// handOverHold is how long a leader that has handed over appends nothing: an
	// election takes some ten ms. When none comes it goes on.
	handOverHold = 1500
	// handOverReach: a follower that lacks more is not waited for.
	handOverReach = 4096
)

// HandOver holds appends while the wanted replica has, or gets within the wait of
// the caller, everything that is written here. wait returns false when it has waited long
// enough.
func (p *Partition) HandOver(epoch topic.Epoch, to topic.Replica, wait func(<-chan struct{}) bool) (*nodeapi.HandoverResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for first := true; ; first = false {
		if p.leader == nil || p.leader.Epoch() != epoch || p.leader.Ended() != nil {
			return nil, p.notLeader(epoch)
		}
		res := &nodeapi.HandoverResult{LEO: p.log.WrittenEnd()}
		if first {
			if !p.withinReachLocked(to) {
				return res, nil
			}
			p.heldUntil = p.s.Mono() + handOverHold
		}
		if p.leader.HasAll(replicaOf(to)) {
			res.Ready = true
			return res, nil
		}
		if p.round == nil && p.leader.LEO() < res.LEO {
			p.syncRoundLocked()
			continue
		}
		news := p.movedLocked()
		if p.round != nil {
			news = p.round.done
		}
		p.mu.Unlock()
		more := wait(news)
		p.mu.Lock()
		if !more {
			p.heldUntil = 0
			return res, nil
		}
	}
}

// CallOff lets the leader of epoch append again at once: the hand-over for which it holds
// does not come.
func (p *Partition) CallOff(epoch topic.Epoch) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil || p.leader.Epoch() != epoch {
		return p.notLeader(epoch)
	}
	p.heldUntil = 0
	return nil
}

// notLeader is the refusal of what only the leader of epoch does.
func (p *Partition) notLeader(epoch topic.Epoch) error {
	return problem.New(problem.NotPartitionLeader, "this node does not lead %s under epoch %d", p.ref, epoch)
}

// withinReachLocked tells whether a replica lacks so little that it is worth to hold for it.
func (p *Partition) withinReachLocked(to topic.Replica) bool {
	for _, m := range p.leader.Progress() {
		if m.Replica == replicaOf(to) {
			return m.Counts && m.Heard && p.s.Mono()-m.HeardMS < quorum.LeaseMS && p.log.WrittenEnd()-m.End <= handOverReach
		}
	}
	return false
}
