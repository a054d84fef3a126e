package metastate

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// partition reads one partition of one life of a topic, or nil when that life or
// partition is not there.
func partition(r Reader, ref topic.Ref) (*topic.Assignment, error) {
	a, err := get[topic.Assignment](r, BucketAssignments, assignmentKey(ref.Topic, ref.Partition))
	if err != nil || a == nil || a.Incarnation != ref.Incarnation {
		return nil, err
	}
	return a, nil
}

// eachPartition runs decide on the partition of each item and stores it when
// decide says that it changed. The result tells item by item what was done; an
// item whose partition is not there was not.
func eachPartition[T any](tx Tx, items []T, ref func(*T) topic.Ref, decide func(*topic.Assignment, *T) bool) (Result, error) {
	if len(items) > MaxItems {
		return refuse(problem.InvalidRequest, fmt.Sprintf("%d items, at most %d", len(items), MaxItems)), nil
	}
	res := Result{Done: make([]bool, len(items))}
	changed := map[string]bool{}
	for i := range items {
		a, err := partition(tx, ref(&items[i]))
		if err != nil {
			return Result{}, err
		}
		if a == nil || !decide(a, &items[i]) {
			continue
		}
		if err := put(tx, BucketAssignments, assignmentKey(a.Topic, a.Partition), a); err != nil {
			return Result{}, err
		}
		res.Done[i] = true
		if !changed[a.Topic] {
			changed[a.Topic] = true
			res.Effects.Topics = append(res.Effects.Topics, a.Topic)
		}
	}
	return res, nil
}

// applyBeginElections ends leaderships. A partition with one copy has no
// election: its leader is where its copy is.
func applyBeginElections(tx Tx, e *BeginElections) (Result, error) {
	return eachPartition(tx, e.Items, func(s *ElectionStart) topic.Ref { return s.Ref },
		func(a *topic.Assignment, s *ElectionStart) bool {
			if a.LeaderEpoch != s.Epoch || a.ConfigVersion != s.ConfigVersion || len(a.Replicas) < 2 {
				return false
			}
			a.Leader = ""
			a.LeaderEpoch++
			return true
		})
}

// applyElectLeaders makes elected copies leaders: only under the epoch that was
// fenced, while it has no leader, and while the set whose majority was asked is
// the set. So of two controllers that fenced one epoch at most one succeeds.
func applyElectLeaders(tx Tx, e *ElectLeaders) (Result, error) {
	return eachPartition(tx, e.Items, func(l *Elected) topic.Ref { return l.Ref },
		func(a *topic.Assignment, l *Elected) bool {
			r, ok := a.ReplicaOn(l.Leader.Node)
			if !ok || r != l.Leader || a.Leader != "" || a.LeaderEpoch != l.Epoch || a.ConfigVersion != l.ConfigVersion {
				return false
			}
			a.Leader = r.Node
			return true
		})
}

// applyRecordCopies stores which copy a replica is. The first record of a
// replica needs no more than that nothing was recorded: it has never counted. A
// replica that replaces a lost copy also needs the epoch in which the leader saw
// that it holds everything committed: in another epoch, or counted by another
// set, more may be committed.
//
// The first record of a lone copy is no other configuration: its leader has counted by
// that very copy all along, so nothing of it has to settle.
func applyRecordCopies(tx Tx, e *RecordCopies) (Result, error) {
	return eachPartition(tx, e.Items, func(c *CopyRecord) topic.Ref { return c.Ref },
		func(a *topic.Assignment, c *CopyRecord) bool {
			for i := range a.Replicas {
				r := &a.Replicas[i]
				if r.Node != c.Node {
					continue
				}
				first := c.Was == 0 && c.DiskID == r.DiskID
				vouched := c.Epoch != 0 && c.Epoch == a.LeaderEpoch && c.ConfigVersion == a.ConfigVersion && a.Leader != "" && a.Leader != c.Node
				if r.CopyID != c.Was || r.DiskID != c.WasDisk || c.CopyID == 0 || c.DiskID == 0 || !first && !vouched {
					return false
				}
				r.DiskID, r.CopyID = c.DiskID, c.CopyID
				a.Before, a.Since = nil, 0
				if !first || a.Replicated() {
					a.ConfigVersion++ // the leader counts by the new copy from now on, not by the old one
				}
				return true
			}
			return false
		})
}

func applyChangeReplicas(tx Tx, e *ChangeReplicas) (Result, error) {
	a, err := partition(tx, e.Ref)
	switch {
	case err != nil:
		return Result{}, err
	case a == nil:
		return refuse(problem.TopicChanged, "this partition is not there"), nil
	case a.ConfigVersion != e.ConfigVersion:
		return refuse(problem.PreconditionFailed, "the replica set has another version").with("version", a.ConfigVersion), nil
	case a.LeaderEpoch != e.Epoch:
		return refuse(problem.PreconditionFailed, "the partition has another leader epoch").with("leader_epoch", a.LeaderEpoch), nil
	}
	if why := checkReplicaChange(a, e.Replicas); why != "" {
		return refuse(problem.InvalidRequest, why), nil
	}
	old := slices.Concat(a.Replicas, a.Observers)
	a.Before, a.Since = a.Replicas, a.LeaderEpoch
	a.Replicas = e.Replicas
	a.Observers = slices.DeleteFunc(a.Observers, func(o topic.Replica) bool { _, in := a.ReplicaOn(o.Node); return in })
	a.ConfigVersion++
	if err := leadAlone(tx, a); err != nil {
		return Result{}, err
	}
	if err := put(tx, BucketAssignments, assignmentKey(a.Topic, a.Partition), a); err != nil {
		return Result{}, err
	}
	if err := indexReplicas(tx, a.Topic, old, e.Replicas); err != nil {
		return Result{}, err
	}
	return Result{Effects: Effects{Topics: []string{a.Topic}}}, nil
}

// leadAlone gives a partition of which one copy is left, and that nobody leads, to
// that copy: there is no election of one. The epoch is a new one, so nobody can
// have led under it. On another disk than the copy's there is nothing to lead with.
func leadAlone(tx Tx, a *topic.Assignment) error {
	if len(a.Replicas) != 1 || a.Leader != "" {
		return nil
	}
	m, err := MemberByID(tx, a.Replicas[0].Node)
	if err != nil || m == nil || m.DiskID != a.Replicas[0].DiskID {
		return err
	}
	a.Leader = m.ID
	a.LeaderEpoch++
	return nil
}

// checkReplicaChange allows one replica more or one less, nothing else: two
// majorities of sets that differ by one replica share a replica, those of sets
// that differ by two may not.
func checkReplicaChange(a *topic.Assignment, next []topic.Replica) string {
	seen := map[string]bool{}
	kept := 0
	for _, r := range next {
		if !validMemberID(r.Node) || r.DiskID == 0 || seen[r.Node] {
			return "replicas need distinct nodes, each with a disk id"
		}
		seen[r.Node] = true
		if have, ok := a.ReplicaOn(r.Node); ok && have == r {
			kept++
		}
	}
	added, removed := len(next)-kept, len(a.Replicas)-kept
	switch {
	case added+removed != 1:
		return fmt.Sprintf("a change of %d replicas at once", added+removed)
	case len(next) == 0:
		return "a partition needs a replica"
	case a.Leader != "" && !seen[a.Leader]:
		return "the leader is not in the new set"
	}
	return ""
}

// indexReplicas keeps the index of topics by node: next are in it, and of old those
// of which a partition of the topic still has a copy.
func indexReplicas(tx Tx, name string, old, next []topic.Replica) error {
	for _, r := range next {
		if err := tx.Put(BucketReplicas, replicaKey(r.Node, name), []byte{}); err != nil {
			return err
		}
	}
	list, err := AssignmentsByName(tx, name)
	if err != nil {
		return err
	}
	for _, r := range old {
		if onNode(list, r.Node) {
			continue
		}
		if err := tx.Delete(BucketReplicas, replicaKey(r.Node, name)); err != nil {
			return err
		}
	}
	return nil
}

// onNode tells whether a node has a replica of one of the partitions, or is to
// get one.
func onNode(list []topic.Assignment, node string) bool {
	for i := range list {
		for _, r := range slices.Concat(list[i].Replicas, list[i].Observers) {
			if r.Node == node {
				return true
			}
		}
	}
	return false
}
