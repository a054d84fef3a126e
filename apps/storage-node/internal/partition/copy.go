package partition

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// Set is the replica set of a partition, as the metastore has it.
type Set struct {
	quorum.Config
	quorum.Leadership
}

// SetOf reads an assignment.
func SetOf(a *topic.Assignment) Set {
	s := Set{
		Config:     quorum.Config{Version: a.ConfigVersion},
		Leadership: quorum.Leadership{Epoch: a.LeaderEpoch, Leader: a.Leader},
	}
	for _, r := range a.Replicas {
		s.Replicas = append(s.Replicas, replicaOf(r))
	}
	for _, o := range a.Observers {
		s.Observers = append(s.Observers, o.Node)
	}
	return s
}

func replicaOf(r topic.Replica) quorum.Replica {
	return quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
}

// alone tells that the partition has one copy, and none that follows it.
func (s *Set) alone() bool { return len(s.Replicas) == 1 && len(s.Observers) == 0 }

// only tells that the partition has one replica, which is on that node, whoever
// observes it: what is missing there nobody else is known to have.
func (s *Set) only(node string) bool { return len(s.Replicas) == 1 && s.Replicas[0].Node == node }

// present is ErrLost where the directory of the only replica, which is recorded, is not
// there. None is made in its place: whoever has it puts it back under that name.
func (s *Set) present(sh *Shared, dir string) error {
	want, ok := s.on(sh.Node)
	if !ok || !s.only(sh.Node) || want.Copy == 0 {
		return nil
	}
	if _, err := sh.FS.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: copy %s on disk %s is recorded, and its directory is gone", ErrLost, want.Copy, want.Disk)
	}
	return nil
}

// before tells that the metastore had s before it had o: neither the epoch nor the
// version of a partition goes back, and an epoch has no leader first and then one.
func (s *Set) before(o *Set) bool {
	return s.Epoch < o.Epoch || s.Version < o.Version || s.Epoch == o.Epoch && s.Leader == "" && o.Leader != ""
}

// on returns the replica on a node.
func (s *Set) on(node string) (quorum.Replica, bool) {
	for _, r := range s.Replicas {
		if r.Node == node {
			return r, true
		}
	}
	return quorum.Replica{}, false
}

// identify compares the copy with what the metastore records, and gives a new
// one its identities. Those of a copy that others will count are durable before it
// is used; those of a lone one before they are recorded (LoneIdentity). The log is whole up
// to there; vouched is the end of what the copy may have said that it has, beside its
// high watermark.
func (p *Partition) identify(set *Set, whole, vouched int64) error {
	st, found := p.log.State()
	want, recorded := set.on(p.s.Node)
	promised, valid := p.fenceFile.Promised()
	if !recorded { // an observer: it never counted
		want = quorum.Replica{Node: p.s.Node, Disk: p.s.DiskID}
	}
	verdict := quorum.JudgeCopy(quorum.Found{
		Disk: p.s.DiskID, Directory: found && st.DiskID == p.s.DiskID, Copy: st.CopyID,
		FenceValid: valid || set.only(p.s.Node), // nobody asks the only replica for a promise
		LEO:        min(p.log.LEO(), whole), HWM: max(st.HWM, vouched),
	}, want, set.only(p.s.Node))
	if set.only(p.s.Node) && (verdict == quorum.Lost || verdict == quorum.Waiting) { // nobody can admit another copy
		return fmt.Errorf("%w: copy %s on disk %s is recorded", ErrLost, want.Copy, want.Disk)
	}
	p.state, p.identified = st, found
	if !found || st.DiskID != p.s.DiskID || verdict == quorum.Lost {
		p.renew(verdict, want.Copy)
	}
	p.fence = quorum.NewFence(quorum.Replica{Node: p.s.Node, Disk: p.s.DiskID, Copy: p.state.CopyID}, promised)
	if set.alone() {
		return nil
	}
	_, err := p.Identity()
	return err
}

// renew makes this another copy than any before.
func (p *Partition) renew(verdict quorum.Verdict, recorded topic.ID64) {
	if verdict == quorum.Lost {
		p.s.Metrics.LostCopies.Inc()
		p.s.Log.Error("the copy on this disk is not what the metastore records; it fetches everything again and counts for nothing meanwhile",
			"partition", p.ref.String(), "recorded_copy", recorded.String(), "log_end", p.log.LEO(), "high_watermark", p.state.HWM)
	}
	p.state.CopyID, p.state.DiskID, p.identified = p.randomID(), p.s.DiskID, false
	if p.state.LogID == 0 {
		p.state.LogID = p.randomID()
	}
}

// Identity is the random id of the copy, durable, as is its fence: what the
// metastore may record.
func (p *Partition) Identity() (topic.ID64, error) {
	id, err := p.LoneIdentity()
	if err != nil {
		return 0, err
	}
	if _, valid := p.fenceFile.Promised(); !valid {
		if err := p.fenceFile.Promise(0); err != nil {
			return 0, fmt.Errorf("make the fence of %s: %w", p.ref, err)
		}
	}
	return id, nil
}

// LoneIdentity is Identity of a lone copy, which nobody asks for a promise: it costs
// no fence. One that gets company makes its fence before that (Assume).
func (p *Partition) LoneIdentity() (topic.ID64, error) {
	p.posMu.Lock()
	st, saved := p.state, p.identified
	p.posMu.Unlock()
	if !saved {
		p.saveMu.Lock()
		defer p.saveMu.Unlock()
		p.posMu.Lock()
		st = p.state // newer positions may have been written while this waited
		p.posMu.Unlock()
		st.HWM = p.hwm.Load()
		if err := p.log.SaveState(st, true); err != nil {
			return 0, fmt.Errorf("save the identity of %s: %w", p.ref, err)
		}
	}
	p.posMu.Lock()
	p.identified = true
	p.posMu.Unlock()
	return st.CopyID, nil
}

// own gives the replicas as the rule counts them here: a lone copy whose id is not
// recorded yet is this one.
func (p *Partition) own(set *Set) []quorum.Replica {
	if len(set.Replicas) == 1 && set.Replicas[0].Node == p.s.Node && set.Replicas[0].Disk == p.s.DiskID && set.Replicas[0].Copy == 0 {
		return []quorum.Replica{p.fence.Self()}
	}
	return set.Replicas
}
