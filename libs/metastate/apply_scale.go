package metastate

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// AllMoves returns every move under way, by topic and partition.
func AllMoves(r Reader) ([]topic.Move, error) { return scan[topic.Move](r, BucketMoves, nil) }

// moveOf returns the move of one partition of one life, or nil.
func moveOf(r Reader, ref topic.Ref) (*topic.Move, error) {
	m, err := get[topic.Move](r, BucketMoves, assignmentKey(ref.Topic, ref.Partition))
	if err != nil || m == nil || m.Incarnation != ref.Incarnation {
		return nil, err
	}
	return m, nil
}

// applyGrow adds partitions: of the topic as it was read, with indexes that go on
// from those that it has.
func applyGrow(tx Tx, e *GrowTopic) (Result, error) {
	t, refused, err := lookup(tx, e.Name, e.Incarnation, e.Version)
	if err != nil || t == nil {
		return refused, err
	}
	had := t.Partitions
	if e.Config.ReplicationFactor != t.ReplicationFactor {
		return refuse(problem.ImmutableField, "replication_factor cannot be changed"), nil
	}
	if e.Config.Partitions <= had || e.Config.Partitions > topic.MaxPartitions || len(e.Added) != e.Config.Partitions-had {
		return refuse(problem.InvalidRequest, fmt.Sprintf("%d new partitions for %d beside %d", len(e.Added), e.Config.Partitions, had)), nil
	}
	t.Config = e.Config
	for i := range e.Added {
		if why := checkAssignment(t, had+i, &e.Added[i]); why != "" {
			return refuse(problem.InvalidRequest, fmt.Sprintf("new partition %d: %s", had+i, why)), nil
		}
	}
	if stale, err := staleReplica(tx, e.Added); err != nil {
		return Result{}, err
	} else if stale != "" {
		return refuse(problem.NotReady, "the placement is of another disk of "+stale), nil
	}
	t.Version++
	if err := put(tx, BucketTopics, []byte(t.Name), t); err != nil {
		return Result{}, err
	}
	for i := range e.Added {
		if err := putAssignment(tx, &e.Added[i]); err != nil {
			return Result{}, err
		}
	}
	return Result{Topic: t, Effects: Effects{Topics: []string{t.Name}}}, nil
}

// putAssignment stores an assignment and keeps the index by node.
func putAssignment(tx Tx, a *topic.Assignment) error {
	if err := put(tx, BucketAssignments, assignmentKey(a.Topic, a.Partition), a); err != nil {
		return err
	}
	for _, r := range slices.Concat(a.Replicas, a.Observers) {
		if err := tx.Put(BucketReplicas, replicaKey(r.Node, a.Topic), []byte{}); err != nil {
			return err
		}
	}
	return nil
}

func applySetDraining(tx Tx, e *SetDraining) (Result, error) {
	m, err := MemberByID(tx, e.ID)
	switch {
	case err != nil:
		return Result{}, err
	case m == nil:
		return refuse(problem.MemberNotFound, fmt.Sprintf("there is no member %q", e.ID)), nil
	case m.Draining == e.On && (e.LossAcceptedBy == "" || m.LossAcceptedBy != ""):
		return Result{Member: m}, nil
	}
	if e.On && e.LossAcceptedBy != "" {
		if gone, err := hasLost(tx, m); err != nil {
			return Result{}, err
		} else if !gone {
			return refuse(problem.NotReady, fmt.Sprintf("%q lives on the disk of its partitions by now: nothing of it is lost", e.ID)), nil
		}
	}
	switch {
	case !e.On:
		m.DrainingMS, m.LossAcceptedBy = 0, ""
	case !m.Draining:
		m.DrainingMS, m.LossAcceptedBy = e.NowMS, e.LossAcceptedBy
	default:
		m.LossAcceptedBy = e.LossAcceptedBy
	}
	m.Draining = e.On
	if err := put(tx, BucketMembers, []byte(m.ID), m); err != nil {
		return Result{}, err
	}
	return Result{Member: m, Effects: Effects{Members: []string{m.ID}}}, nil
}

// applyRemoveMember buries a member that is draining and holds nothing any more, or,
// with AcceptLoss while somebody's word stands, nothing but copies that are lost with it:
// it is dead, or has another disk than theirs.
// The tombstone names every disk that was ever buried under that id.
func applyRemoveMember(tx Tx, e *RemoveMember) (Result, error) {
	m, err := MemberByID(tx, e.ID)
	switch {
	case err != nil:
		return Result{}, err
	case m == nil:
		return refuse(problem.MemberNotFound, fmt.Sprintf("there is no member %q", e.ID)), nil
	case !m.Draining || m.DiskID != e.DiskID:
		return refuse(problem.PreconditionFailed, "the member is not draining with that disk"), nil
	case (!e.AcceptLoss || m.LossAcceptedBy == "") && len(TopicsOnNode(tx, e.ID)) > 0:
		return refuse(problem.HasAssignments, fmt.Sprintf("%q still has partitions", e.ID)), nil
	}
	if back, err := bringsBack(tx, m); err != nil {
		return Result{}, err
	} else if back {
		return refuse(problem.HasAssignments, fmt.Sprintf("%q lives, with partitions on its disk: nothing of them is lost", e.ID)), nil
	}
	grave, err := TombstoneByID(tx, e.ID)
	if err != nil {
		return Result{}, err
	}
	if grave == nil {
		grave = &Tombstone{ID: e.ID}
	}
	if !grave.names(m.DiskID) {
		grave.DiskIDs = append(grave.DiskIDs, m.DiskID)
	}
	grave.RemovedMS = e.NowMS
	if err := put(tx, BucketTombstones, []byte(e.ID), grave); err != nil {
		return Result{}, err
	}
	if err := tx.Delete(BucketMembers, []byte(e.ID)); err != nil {
		return Result{}, err
	}
	return Result{Member: m, Effects: Effects{Members: []string{e.ID}}}, nil
}

// bringsBack tells whether a member lives with copies on the disk that it has: one of
// which somebody accepted the loss of others, on another disk.
func bringsBack(r Reader, m *topic.Member) (bool, error) {
	if m.Status != topic.StatusAlive {
		return false, nil
	}
	return anyCopy(r, m.ID, func(rep topic.Replica) bool { return rep.DiskID == m.DiskID })
}

// hasLost tells whether the loss of something that only a member has can be accepted: it
// is dead, or lives without the disk of one of its copies.
func hasLost(r Reader, m *topic.Member) (bool, error) {
	if m.Status == topic.StatusDead {
		return true, nil
	}
	return anyCopy(r, m.ID, func(rep topic.Replica) bool { return rep.DiskID != m.DiskID })
}

// anyCopy tells whether is holds for a replica of record on a node.
func anyCopy(r Reader, node string, is func(topic.Replica) bool) (bool, error) {
	for _, name := range TopicsOnNode(r, node) {
		list, err := AssignmentsByName(r, name)
		if err != nil {
			return false, err
		}
		for i := range list {
			if rep, ok := list[i].ReplicaOn(node); ok && is(rep) {
				return true, nil
			}
		}
	}
	return false, nil
}

// applyMoves answers item by item: starts, aborts, ends.
func applyMoves(tx Tx, e *Moves) (Result, error) {
	if n := len(e.Start) + len(e.Abort) + len(e.End); n > MaxItems {
		return refuse(problem.InvalidRequest, fmt.Sprintf("%d items, at most %d", n, MaxItems)), nil
	}
	var res Result
	note := func(ref topic.Ref, done bool, err error) error {
		res.Done = append(res.Done, done)
		if done && !slices.Contains(res.Effects.Topics, ref.Topic) {
			res.Effects.Topics = append(res.Effects.Topics, ref.Topic)
		}
		return err
	}
	for i := range e.Start {
		done, err := startMove(tx, &e.Start[i])
		if err := note(e.Start[i].Ref, done, err); err != nil {
			return Result{}, err
		}
	}
	for _, id := range e.Abort {
		done, err := abortMove(tx, id)
		if err := note(id.Ref, done, err); err != nil {
			return Result{}, err
		}
	}
	for _, id := range e.End {
		done, err := endMove(tx, id)
		if err := note(id.Ref, done, err); err != nil {
			return Result{}, err
		}
	}
	return res, nil
}

// startMove makes the destination an observer, unless the partition is moving
// already, has changed, or one of the two nodes is not what the move says. Without a
// source the partition must have fewer replicas than its topic is to have.
func startMove(tx Tx, s *MoveStart) (bool, error) {
	a, err := partition(tx, s.Ref)
	if err != nil || a == nil || a.ConfigVersion != s.ConfigVersion {
		return false, err
	}
	have, err := moveOf(tx, s.Ref)
	if err != nil || have != nil {
		return false, err
	}
	to, err := MemberByID(tx, s.To)
	if err != nil || to == nil || to.DiskID != s.ToDisk || to.Role != topic.RoleStorage {
		return false, err
	}
	_, from := a.ReplicaOn(s.From)
	if s.From == "" {
		t, err := TopicByName(tx, s.Topic)
		if err != nil || t == nil {
			return false, err
		}
		from = len(a.Replicas) < t.ReplicationFactor
	}
	_, already := a.ReplicaOn(s.To)
	if !from || already || len(a.Observers) > 0 {
		return false, nil
	}
	m := s.Move
	m.Aborted = false
	a.Observers = []topic.Replica{{Node: s.To, DiskID: s.ToDisk}}
	a.ConfigVersion++
	if err := put(tx, BucketMoves, assignmentKey(s.Topic, s.Partition), &m); err != nil {
		return false, err
	}
	return true, putAssignment(tx, a)
}

func abortMove(tx Tx, id topic.MoveID) (bool, error) {
	m, err := moveOf(tx, id.Ref)
	if err != nil || m == nil || m.ID() != id || m.Aborted {
		return false, err
	}
	m.Aborted = true
	return true, put(tx, BucketMoves, assignmentKey(id.Topic, id.Partition), m)
}

// endMove forgets a move. What is left of it in the assignment, an observer, goes
// with it; replicas are changed by ChangeReplicas only.
func endMove(tx Tx, id topic.MoveID) (bool, error) {
	m, err := moveOf(tx, id.Ref)
	if err != nil || m == nil || m.ID() != id {
		return false, err
	}
	if err := tx.Delete(BucketMoves, assignmentKey(id.Topic, id.Partition)); err != nil {
		return false, err
	}
	a, err := partition(tx, id.Ref)
	if err != nil || a == nil || len(a.Observers) == 0 {
		return true, err
	}
	gone := a.Observers
	a.Observers = nil
	a.ConfigVersion++
	if err := put(tx, BucketAssignments, assignmentKey(a.Topic, a.Partition), a); err != nil {
		return false, err
	}
	return true, indexReplicas(tx, a.Topic, gone, a.Replicas)
}

// applyReset begins a partition anew on the disk that a node has now, or, when it
// names a copy, with that one alone. The epoch goes on: what is left anywhere else of
// the old log is of older ones.
func applyReset(tx Tx, e *ResetPartition) (Result, error) {
	a, err := partition(tx, e.Ref)
	switch {
	case err != nil:
		return Result{}, err
	case a == nil:
		return refuse(problem.TopicChanged, "this partition is not there"), nil
	case a.LeaderEpoch != e.Epoch:
		return refuse(problem.PreconditionFailed, "the partition has another leader epoch").with("leader_epoch", a.LeaderEpoch), nil
	}
	if e.Replica.CopyID != 0 && !slices.Contains(a.Replicas, e.Replica) {
		return refuse(problem.PreconditionFailed, "the copy that is to go on is no replica"), nil
	}
	m, err := MemberByID(tx, e.Replica.Node)
	if err != nil {
		return Result{}, err
	}
	if m == nil || m.DiskID != e.Replica.DiskID || m.Role != topic.RoleStorage {
		return refuse(problem.NotReady, "the node has another disk"), nil
	}
	old := slices.Concat(a.Replicas, a.Observers)
	if err := tx.Delete(BucketMoves, assignmentKey(a.Topic, a.Partition)); err != nil {
		return Result{}, err
	}
	a.Replicas = []topic.Replica{e.Replica}
	a.Leader, a.Observers, a.Before, a.Since = m.ID, nil, nil, 0
	a.LeaderEpoch++
	a.ConfigVersion++
	if e.Replica.CopyID == 0 {
		a.Reset = a.LeaderEpoch
	}
	if err := put(tx, BucketAssignments, assignmentKey(a.Topic, a.Partition), a); err != nil {
		return Result{}, err
	}
	if err := indexReplicas(tx, a.Topic, old, a.Replicas); err != nil {
		return Result{}, err
	}
	return Result{Effects: Effects{Topics: []string{a.Topic}}}, nil
}
