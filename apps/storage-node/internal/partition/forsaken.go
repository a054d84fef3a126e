package partition

import "github.com/narad-mq/narad/libs/quorum"

// stallMS is how long an fsync may take before its partition is given up: no
// healthy disk takes so long, and clients wait.
const stallMS = 5000

// forsakenLocked tells that no majority follows this leadership, and that it had
// the time to find one: then nothing is appended, because nothing would be
// committed, and whoever asks hears that another one may lead.
func (p *Partition) forsakenLocked() bool {
	now := p.s.Mono()
	return p.setSize > 1 && now-p.ledSince >= quorum.LeaseMS && !p.leader.MayServe(now)
}

// stalled tells that the disk has not answered an fsync for too long.
func (p *Partition) stalled() bool {
	began := p.syncing.Load()
	return began != 0 && p.s.Mono()-began >= stallMS
}

// GiveUp ends the leadership of a partition whose disk does not answer, if
// others have copies of it: they go on. It waits for nothing, and costs next to
// nothing while the disk is well. The append lock may be held by a write to that disk:
// then this does nothing, so that the other partitions get their turn, and is called again.
func (p *Partition) GiveUp() {
	if !p.stalled() || !p.mu.TryLock() {
		return
	}
	if p.leader == nil || p.setSize < 2 {
		p.mu.Unlock()
		return
	}
	q := p.resignLocked()
	err := p.followLocked()
	p.mu.Unlock()
	p.s.Log.Error("the disk does not answer; a leadership is given up", "partition", p.ref.String(), "error", err)
	if q != nil {
		go q.Drop() // it may wait for a write to that disk
	}
}
