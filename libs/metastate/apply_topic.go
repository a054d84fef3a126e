package metastate

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

func applyCreate(tx Tx, e *CreateTopic) (Result, error) {
	t := e.Topic
	t.Children, t.Parent = nil, nil // CreateChild links; this entry does not
	if err := topic.ValidateName(t.Name); err != nil {
		return refuse(problem.InvalidTopicName, err.Error()), nil
	}
	if why := checkAssignments(&t, e.Assignments); why != "" {
		return refuse(problem.InvalidRequest, why), nil
	}
	taken, err := TopicByFolded(tx, t.Name)
	if err != nil {
		return Result{}, err
	}
	if taken != nil {
		return refuse(problem.TopicExists, fmt.Sprintf("a topic named %q exists", taken.Name)).with("topic", taken), nil
	}
	if IsEnded(tx, t.Incarnation) || IsLive(tx, t.Incarnation) {
		return refuse(problem.TopicChanged, "this incarnation was given before").with("incarnation", t.Incarnation), nil
	}
	if stale, err := staleReplica(tx, e.Assignments); err != nil {
		return Result{}, err
	} else if stale != "" {
		return refuse(problem.NotReady, "the placement is of another disk of "+stale), nil
	}
	// One above every version that an ended life had: a name that comes again
	// never shows a version that it had before.
	ended, err := endedVersion(tx)
	if err != nil {
		return Result{}, err
	}
	t.Version = ended + 1
	if err := putNewTopic(tx, &t, e.Assignments); err != nil {
		return Result{}, err
	}
	return Result{Topic: &t, Effects: Effects{Topics: []string{t.Name}}}, nil
}

// staleReplica returns a node that came back on another disk after its replicas
// were placed, or "": its registration has decided already what it leads, so
// the partition would be taken for one that was lost with the old disk.
func staleReplica(r Reader, list []topic.Assignment) (string, error) {
	for i := range list {
		for _, rep := range list[i].Replicas {
			m, err := MemberByID(r, rep.Node)
			if err != nil {
				return "", err
			}
			if m != nil && m.DiskID != rep.DiskID {
				return m.ID, nil
			}
		}
	}
	return "", nil
}

// checkAssignments checks what must hold between a record and its partitions.
func checkAssignments(t *topic.Topic, list []topic.Assignment) string {
	if t.Incarnation == 0 {
		return "a topic needs an incarnation"
	}
	if len(list) == 0 || len(list) != t.Partitions || len(list) > topic.MaxPartitions {
		return fmt.Sprintf("%d assignments for %d partitions", len(list), t.Partitions)
	}
	for i := range list {
		if why := checkAssignment(t, i, &list[i]); why != "" {
			return fmt.Sprintf("assignment %d: %s", i, why)
		}
	}
	return ""
}

func checkAssignment(t *topic.Topic, i int, a *topic.Assignment) string {
	if a.Topic != t.Name || a.Incarnation != t.Incarnation || int(a.Partition) != i {
		return "it names another partition: " + a.Ref.String()
	}
	if len(a.Replicas) != t.ReplicationFactor {
		return fmt.Sprintf("%d replicas for a replication factor of %d", len(a.Replicas), t.ReplicationFactor)
	}
	seen := make(map[string]bool, len(a.Replicas))
	for _, r := range a.Replicas {
		if !validMemberID(r.Node) || r.DiskID == 0 || seen[r.Node] {
			return "replicas need distinct nodes, each with a disk id"
		}
		seen[r.Node] = true
	}
	if a.Leader != "" && !seen[a.Leader] {
		return "the leader has no replica"
	}
	return ""
}

func putNewTopic(tx Tx, t *topic.Topic, list []topic.Assignment) error {
	if err := put(tx, BucketTopics, []byte(t.Name), t); err != nil {
		return err
	}
	if err := tx.Put(BucketFolded, []byte(topic.FoldName(t.Name)), []byte(t.Name)); err != nil {
		return err
	}
	if err := tx.Put(BucketLive, incarnationKey(t.Incarnation), []byte(t.Name)); err != nil {
		return err
	}
	for i := range list {
		if err := putAssignment(tx, &list[i]); err != nil {
			return err
		}
	}
	return nil
}

// lookup finds the life that an update or a delete means, or says why not.
func lookup(tx Tx, name string, inc topic.Incarnation, version uint64) (*topic.Topic, Result, error) {
	t, err := TopicByName(tx, name)
	switch {
	case err != nil:
		return nil, Result{}, err
	case t == nil:
		return nil, refuse(problem.TopicNotFound, fmt.Sprintf("there is no topic %q", name)), nil
	case t.Incarnation != inc:
		return nil, refuse(problem.TopicChanged, "the name belongs to another incarnation").with("incarnation", t.Incarnation), nil
	case version != t.Version:
		return nil, refuse(problem.PreconditionFailed, "the topic has another version").
			with("version", t.Version).with("incarnation", t.Incarnation), nil
	}
	return t, Result{}, nil
}

func applyUpdate(tx Tx, e *UpdateTopic) (Result, error) {
	t, refused, err := lookup(tx, e.Name, e.Incarnation, e.Version)
	if err != nil || t == nil {
		return refused, err
	}
	if e.Config.Partitions != t.Partitions || e.Config.ReplicationFactor != t.ReplicationFactor {
		return refuse(problem.ImmutableField, "partitions and replication_factor cannot be changed by an update"), nil
	}
	for _, c := range t.Children {
		if refused := checkDelay(e.Config.RetentionMS, c.DelayMS); refused.Refusal != nil {
			return refused, nil
		}
	}
	t.Config = e.Config
	t.Version++
	if err := put(tx, BucketTopics, []byte(t.Name), t); err != nil {
		return Result{}, err
	}
	return Result{Topic: t, Effects: Effects{Topics: []string{t.Name}}}, nil
}

func applyDelete(tx Tx, e *DeleteTopic) (Result, error) {
	version := e.Version
	if version == 0 {
		if have, err := TopicByName(tx, e.Name); err != nil {
			return Result{}, err
		} else if have != nil {
			version = have.Version
		}
	}
	t, refused, err := lookup(tx, e.Name, e.Incarnation, version)
	if err != nil || t == nil {
		return refused, err
	}
	linked, err := unlinkAll(tx, t, e.NowMS)
	if err != nil {
		return Result{}, err
	}
	if err := forget(tx, t, e.NowMS); err != nil {
		return Result{}, err
	}
	return Result{Topic: t, Effects: Effects{Topics: append([]string{t.Name}, linked...)}}, nil
}

// forget removes everything of a life but the memory that it ended.
func forget(tx Tx, t *topic.Topic, nowMS int64) error {
	list, err := AssignmentsByName(tx, t.Name)
	if err != nil {
		return err
	}
	for i := range list {
		if err := tx.Delete(BucketAssignments, assignmentKey(t.Name, list[i].Partition)); err != nil {
			return err
		}
		if err := tx.Delete(BucketMoves, assignmentKey(t.Name, list[i].Partition)); err != nil {
			return err
		}
		for _, r := range slices.Concat(list[i].Replicas, list[i].Observers) {
			if err := tx.Delete(BucketReplicas, replicaKey(r.Node, t.Name)); err != nil {
				return err
			}
		}
	}
	if err := tx.Delete(BucketFolded, []byte(topic.FoldName(t.Name))); err != nil {
		return err
	}
	if err := tx.Delete(BucketLive, incarnationKey(t.Incarnation)); err != nil {
		return err
	}
	if err := tx.Delete(BucketTopics, []byte(t.Name)); err != nil {
		return err
	}
	if err := put(tx, BucketEnded, incarnationKey(t.Incarnation), &EndedRecord{Name: t.Name, EndedMS: nowMS}); err != nil {
		return err
	}
	last, err := endedVersion(tx)
	if err != nil || t.Version <= last {
		return err
	}
	return put(tx, BucketMeta, []byte(keyEndedVersion), t.Version)
}

func endedVersion(r Reader) (uint64, error) {
	v, err := get[uint64](r, BucketMeta, []byte(keyEndedVersion))
	if v == nil {
		return 0, err
	}
	return *v, err
}
