package partition

import (
	"fmt"

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
	return s
}

func replicaOf(r topic.Replica) quorum.Replica {
	return quorum.Replica{Node: r.Node, Disk: r.DiskID, Copy: r.CopyID}
}

// alone tells that the partition has one copy: no fence, no fetching.
func (s *Set) alone() bool { return len(s.Replicas) == 1 }

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
// one its identities, durably before it is used when others will count it.
func (p *Partition) identify(set *Set) error {
	st, found := p.log.State()
	want, _ := set.on(p.s.Node)
	if set.alone() {
		return p.identifyAlone(found, want)
	}
	promised, valid := p.fenceFile.Promised()
	verdict := quorum.JudgeCopy(quorum.Found{
		Disk: p.s.DiskID, Directory: found && st.DiskID == p.s.DiskID, Copy: st.CopyID, FenceValid: valid,
		LEO: p.log.LEO(), HWM: st.HWM,
	}, want, false)
	p.state = st
	fresh := !found || st.DiskID != p.s.DiskID
	if verdict == quorum.Lost || fresh {
		if verdict == quorum.Lost {
			p.s.Metrics.LostCopies.Inc()
			p.s.Log.Error("the copy on this disk is not what the metastore records; it fetches everything again and counts for nothing meanwhile",
				"partition", p.ref.String(), "recorded_copy", want.Copy.String(), "log_end", p.log.LEO(), "high_watermark", st.HWM)
		}
		p.state.CopyID, p.state.DiskID = p.randomID(), p.s.DiskID
		if p.state.LogID == 0 {
			p.state.LogID = p.randomID()
		}
		if err := p.log.SaveState(p.state, true); err != nil {
			return err
		}
	}
	if !valid {
		if err := p.fenceFile.Promise(0); err != nil {
			return err
		}
	}
	p.fence = quorum.NewFence(quorum.Replica{Node: p.s.Node, Disk: p.s.DiskID, Copy: p.state.CopyID}, promised)
	p.fence.Recorded(set.Replicas)
	return nil
}

// identifyAlone is identify for a partition with one copy: the log's own end is
// all there is to go by.
func (p *Partition) identifyAlone(found bool, want quorum.Replica) error {
	st, _ := p.log.State()
	switch {
	case found && st.DiskID != p.s.DiskID:
		return fmt.Errorf("%w: made on disk %s", ErrLost, st.DiskID)
	case want.Copy != 0 && (!found || st.CopyID != want.Copy):
		return fmt.Errorf("%w: copy %s is recorded", ErrLost, want.Copy)
	}
	if !found {
		st.CopyID, st.LogID, st.DiskID = p.randomID(), p.randomID(), p.s.DiskID
		// Without a state the log's own end is all there is to go by: what was
		// synced and acknowledged is in it.
		st.HWM = 0
	}
	p.state = st
	return nil
}

// CopyID is the random id of the copy's directory.
func (p *Partition) CopyID() topic.ID64 { return p.state.CopyID }
