package metastate

import (
	"encoding/binary"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/narad-mq/narad/libs/topic"
)

// EndedRecord remembers the end of one life of a topic.
type EndedRecord struct {
	Name    string `json:"name"`
	EndedMS int64  `json:"ended_ms"` // the proposer's wall clock
}

// Tombstone remembers a removed member and the disks that went with it.
type Tombstone struct {
	ID        string       `json:"id"`
	DiskIDs   []topic.ID64 `json:"disk_ids"`
	RemovedMS int64        `json:"removed_ms"`
}

// names tells whether the tombstone buried this disk.
func (t *Tombstone) names(disk topic.ID64) bool {
	for _, d := range t.DiskIDs {
		if d == disk {
			return true
		}
	}
	return false
}

// TopicByName returns the live record of exactly this name, or nil. An error
// is a record that cannot be read: fatal.
func TopicByName(r Reader, name string) (*topic.Topic, error) {
	return get[topic.Topic](r, BucketTopics, []byte(name))
}

// TopicByFolded returns the live record whose name folds to the same, or nil.
func TopicByFolded(r Reader, name string) (*topic.Topic, error) {
	exact := r.Get(BucketFolded, []byte(topic.FoldName(name)))
	if exact == nil {
		return nil, nil
	}
	return get[topic.Topic](r, BucketTopics, exact)
}

// AssignmentsByName returns the partitions of a live topic in order; empty for others.
func AssignmentsByName(r Reader, name string) ([]topic.Assignment, error) {
	return scan[topic.Assignment](r, BucketAssignments, append([]byte(name), 0))
}

// AllTopics returns every live record by name.
func AllTopics(r Reader) ([]topic.Topic, error) { return scan[topic.Topic](r, BucketTopics, nil) }

// MemberByID returns a member, or nil.
func MemberByID(r Reader, id string) (*topic.Member, error) {
	return get[topic.Member](r, BucketMembers, []byte(id))
}

// AllMembers returns every member by id, with its last stamp.
func AllMembers(r Reader) ([]topic.Member, error) { return scan[topic.Member](r, BucketMembers, nil) }

// TombstoneByID returns a removed member's tombstone, or nil.
func TombstoneByID(r Reader, id string) (*Tombstone, error) {
	return get[Tombstone](r, BucketTombstones, []byte(id))
}

// AllTombstones returns the tombstones by id.
func AllTombstones(r Reader) ([]Tombstone, error) { return scan[Tombstone](r, BucketTombstones, nil) }

// PartitionOf returns one partition of one life of a topic, or nil when that life
// or partition is not there.
func PartitionOf(r Reader, ref topic.Ref) (*topic.Assignment, error) { return partition(r, ref) }

// IsEnded tells whether the end of this life is remembered.
func IsEnded(r Reader, id topic.Incarnation) bool {
	return r.Get(BucketEnded, incarnationKey(id)) != nil
}

// IsLive tells whether a live topic has this incarnation.
func IsLive(r Reader, id topic.Incarnation) bool { return r.Get(BucketLive, incarnationKey(id)) != nil }

// ReadClusterID returns the cluster's id, or "" before it was applied.
func ReadClusterID(r Reader) (string, error) {
	v, err := get[string](r, BucketMeta, []byte(keyClusterID))
	if v == nil {
		return "", err
	}
	return *v, err
}

// NewestApplied returns the highest entry type that this state ever applied.
func NewestApplied(r Reader) (Type, error) {
	v, err := get[Type](r, BucketMeta, []byte(keyNewestType))
	if v == nil {
		return 0, err
	}
	return *v, err
}

// TopicsOnNode returns the names of the topics that have a replica on the node, by name.
func TopicsOnNode(r Reader, node string) []string {
	prefix := append([]byte(node), 0)
	var names []string
	r.Scan(BucketReplicas, prefix, func(k, _ []byte) bool {
		names = append(names, string(k[len(prefix):]))
		return true
	})
	return names
}

func get[T any](r Reader, b Bucket, key []byte) (*T, error) {
	raw := r.Get(b, key)
	if raw == nil {
		return nil, nil
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("read %s/%q: %w", b, key, err)
	}
	return v, nil
}

func scan[T any](r Reader, b Bucket, prefix []byte) ([]T, error) {
	var out []T
	var failed error
	r.Scan(b, prefix, func(k, raw []byte) bool {
		var v T
		if err := json.Unmarshal(raw, &v); err != nil {
			failed = fmt.Errorf("read %s/%q: %w", b, k, err)
			return false
		}
		out = append(out, v)
		return true
	})
	return out, failed
}

func put(tx Tx, b Bucket, key []byte, v any) error {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("write %s/%q: %w", b, key, err)
	}
	return tx.Put(b, key, raw)
}

func incarnationKey(id topic.Incarnation) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(id))
}

func assignmentKey(name string, partition int32) []byte {
	k := make([]byte, 0, len(name)+5)
	k = append(append(k, name...), 0)
	return binary.BigEndian.AppendUint32(k, uint32(partition))
}

func replicaKey(node, name string) []byte {
	k := make([]byte, 0, len(node)+1+len(name))
	return append(append(append(k, node...), 0), name...)
}
