package partition

import (
	"slices"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Vouch is what this copy says, as the leader, about the copies of the partition;
// zero while it does not lead; with the history of its log when that is asked for. It
// holds as long as the metastore shows that epoch, leader and configuration. What is
// missing here is left to VouchPieces.
func (p *Partition) Vouch(history bool) nodeapi.Vouch {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.leader == nil {
		return nodeapi.Vouch{}
	}
	v := p.leader.Vouch(func(end int64) bool { return p.log.BytesFrom(end) <= quorum.CatchUpBytes })
	if v.Epoch == 0 {
		return nodeapi.Vouch{}
	}
	out := nodeapi.Vouch{
		Epoch: v.Epoch, ConfigVersion: v.Version, Settled: v.Settled,
		Proven: p.leader.CanServe(), HWM: p.leader.HWM(), Bytes: p.log.Bytes(),
	}
	if history {
		for _, e := range p.log.Epochs() {
			out.History = append(out.History, nodeapi.EpochStart(e))
		}
	}
	now := p.s.Mono()
	for _, m := range p.leader.Progress() {
		c := nodeapi.VouchedCopy{
			Replica:      topic.Replica{Node: m.Replica.Node, DiskID: m.Replica.Disk, CopyID: m.Replica.Copy},
			Near:         slices.Contains(v.Near, m.Replica) && p.hasPiecesLocked(m.Replica),
			Readmissible: slices.Contains(v.Readmissible, m.Replica),
			HeardAgoMS:   -1, LEO: m.End,
		}
		switch {
		case m.Replica.Node == p.s.Node:
			c.HeardAgoMS, c.LEO = 0, p.leader.LEO()
		case m.Heard:
			c.HeardAgoMS = max(now-m.HeardMS, 0)
		}
		c.MissingBytes = p.log.BytesFrom(c.LEO)
		out.Copies = append(out.Copies, c)
	}
	return out
}

// FarBehind tells whether a copy that has everything below offset lacks more than
// what a copy may lack to become a replica.
func (p *Partition) FarBehind(offset int64) bool {
	return p.log.MoreThan(offset, quorum.CatchUpBytes)
}
