package metastate

import (
	"strings"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// maxMemberID bounds a member id in bytes: a DNS name.
const maxMemberID = 253

// nextStamp keeps stamps of a member strictly growing, also when the leader's
// wall clock goes back, so that "the stamp that I observed" names one heartbeat.
func nextStamp(last, now int64) int64 { return max(now, last+1) }

func applyRegister(tx Tx, e *RegisterMember) (Result, error) {
	next := e.Member
	old, err := MemberByID(tx, next.ID)
	if err != nil {
		return Result{}, err
	}
	grave, err := TombstoneByID(tx, next.ID)
	if err != nil {
		return Result{}, err
	}
	if refused := checkRegister(old, grave, &next); refused.Refusal != nil {
		return refused, nil
	}
	next.Status, next.Draining, next.DrainingMS, next.LossAcceptedBy = topic.StatusAlive, false, 0, ""
	next.HeartbeatMS = e.NowMS
	newStart := true
	if old != nil {
		next.Draining, next.DrainingMS = old.Draining, old.DrainingMS
		next.HeartbeatMS = nextStamp(old.HeartbeatMS, e.NowMS)
		newStart = old.BootNonce != next.BootNonce
	}
	if err := put(tx, BucketMembers, []byte(next.ID), &next); err != nil {
		return Result{}, err
	}
	res := Result{Member: &next, Effects: Effects{Members: []string{next.ID}}}
	if newStart && next.Role == topic.RoleStorage {
		res.Effects.Topics, err = restartLeaderships(tx, &next)
	}
	return res, err
}

func checkRegister(old *topic.Member, grave *Tombstone, next *topic.Member) Result {
	switch {
	case !validMemberID(next.ID):
		return refuse(problem.InvalidRequest, "the member id is empty, too long or has a zero byte")
	case next.DiskID == 0 || next.BootNonce == 0:
		return refuse(problem.InvalidRequest, "a registration needs a disk id and a boot nonce")
	case next.Role != topic.RoleVoter && next.Role != topic.RoleStorage && next.Role != topic.RoleGateway:
		return refuse(problem.InvalidRequest, "unknown role")
	case grave != nil && grave.names(next.DiskID):
		return refuse(problem.Decommissioned, "this member was decommissioned with this disk")
	case old != nil && old.Role != next.Role:
		return refuse(problem.IDInUse, "the id belongs to a member of another role")
	case old != nil && old.Status == topic.StatusAlive && old.DiskID != next.DiskID:
		return refuse(problem.IDInUse, "a live member with another disk has this id")
	}
	return Result{}
}

// validMemberID keeps ids fit to be keys: an entry must never fail on a key that
// the database does not take, because that would stop every node.
func validMemberID(s string) bool {
	return s != "" && len(s) <= maxMemberID && strings.IndexByte(s, 0) < 0
}

// restartLeaderships raises the epoch of what a storage node led before it
// started anew, so that nothing of its former process can commit, and returns
// the topics that changed.
func restartLeaderships(tx Tx, m *topic.Member) ([]string, error) {
	var changed []string
	for _, name := range TopicsOnNode(tx, m.ID) {
		list, err := AssignmentsByName(tx, name)
		if err != nil {
			return nil, err
		}
		touched := false
		for i := range list {
			if !restartLeadership(&list[i], m) {
				continue
			}
			touched = true
			if err := put(tx, BucketAssignments, assignmentKey(name, list[i].Partition), &list[i]); err != nil {
				return nil, err
			}
		}
		if touched {
			changed = append(changed, name)
		}
	}
	return changed, nil
}

// restartLeadership decides one partition and tells whether it changed. A
// partition with one copy is led by the node that has this copy, and only on
// the disk on which it was placed: on another disk it is lost, and no one leads
// it. A replicated one gets no leader: its election is the controller's.
func restartLeadership(a *topic.Assignment, m *topic.Member) bool {
	r, ok := a.ReplicaOn(m.ID)
	if !ok {
		return false
	}
	leader := ""
	if len(a.Replicas) == 1 {
		if r.DiskID == m.DiskID {
			leader = m.ID
		} else if a.Leader == "" {
			return false
		}
	} else if a.Leader != m.ID {
		return false
	}
	a.Leader = leader
	a.LeaderEpoch++
	return true
}

func applyHeartbeats(tx Tx, e *Heartbeats) (Result, error) {
	res := Result{Stamps: make([]StampOutcome, len(e.Items))}
	for i, h := range e.Items {
		m, err := MemberByID(tx, h.ID)
		if err != nil {
			return Result{}, err
		}
		switch {
		case m == nil:
			res.Stamps[i] = StampUnknown
			continue
		case m.BootNonce != h.BootNonce:
			res.Stamps[i] = StampStale
			continue
		case m.Status == topic.StatusDead:
			m.LossAcceptedBy = "" // it was the word about one that does not come back
			res.Stamps[i] = Revived
			res.Effects.Members = append(res.Effects.Members, m.ID)
		}
		m.Status = topic.StatusAlive
		m.HeartbeatMS = nextStamp(m.HeartbeatMS, e.NowMS)
		m.WALBacklog, m.DiskUsedPercent = h.WALBacklog, h.DiskUsedPercent
		if err := put(tx, BucketMembers, []byte(m.ID), m); err != nil {
			return Result{}, err
		}
	}
	return res, nil
}

func applyMarkDead(tx Tx, e *MarkDead) (Result, error) {
	res := Result{Marked: make([]bool, len(e.Items))}
	for i, d := range e.Items {
		m, err := MemberByID(tx, d.ID)
		if err != nil {
			return Result{}, err
		}
		if m == nil || m.Status != topic.StatusAlive || m.HeartbeatMS != d.HeartbeatMS {
			continue
		}
		// Who gave up what a living member had lost with an earlier disk did not give up
		// what is on the disk that it has.
		m.Status, m.LossAcceptedBy = topic.StatusDead, ""
		if err := put(tx, BucketMembers, []byte(m.ID), m); err != nil {
			return Result{}, err
		}
		res.Marked[i] = true
		res.Effects.Members = append(res.Effects.Members, m.ID)
	}
	return res, nil
}
