package metastate

// Bucket is one named key space of the state.
type Bucket string

// The buckets and what their keys and values are. Values are JSON.
const (
	// BucketTopics: topic name -> topic.Topic.
	BucketTopics Bucket = "topics"
	// BucketFolded: folded topic name -> exact name of the live topic that holds it.
	BucketFolded Bucket = "folded"
	// BucketAssignments: name, 0x00, partition (4 bytes big-endian) -> topic.Assignment.
	BucketAssignments Bucket = "assignments"
	// BucketReplicas: node id, 0x00, name -> empty: the topics that have a replica on a node.
	BucketReplicas Bucket = "replicas"
	// BucketLive: incarnation (8 bytes big-endian) -> exact name of the live topic that has it.
	BucketLive Bucket = "live"
	// BucketMembers: member id -> topic.Member.
	BucketMembers Bucket = "members"
	// BucketEnded: incarnation (8 bytes big-endian) -> EndedRecord. Nothing expires; ForgetEnded removes.
	BucketEnded Bucket = "ended"
	// BucketTombstones: member id -> Tombstone. Nothing expires.
	BucketTombstones Bucket = "tombstones"
	// BucketMoves: key of the assignment -> topic.Move: partitions under way.
	BucketMoves Bucket = "moves"
	// BucketAttachments: attach epoch (8 bytes big-endian) -> topic.Attachment.
	BucketAttachments Bucket = "attachments"
	// BucketMeta: single values: keys below.
	BucketMeta Bucket = "meta"
)

// Buckets lists every bucket once.
func Buckets() []Bucket {
	return []Bucket{
		BucketTopics, BucketFolded, BucketAssignments, BucketReplicas, BucketLive,
		BucketMembers, BucketEnded, BucketTombstones, BucketMoves, BucketAttachments, BucketMeta,
	}
}

// Keys of BucketMeta.
const (
	keyClusterID    = "cluster_id"    // JSON string
	keyEndedVersion = "ended_version" // JSON number: highest version that any ended topic had
	keyNewestType   = "newest_type"   // JSON number: highest entry type ever applied
)

// Reader reads the state at one moment. A returned slice is valid until the
// transaction ends and must not be changed.
type Reader interface {
	// Get returns the value, or nil when the key is absent.
	Get(b Bucket, key []byte) []byte
	// Scan calls fn for every key with the prefix, in byte order, until fn
	// returns false. fn must not change the state.
	Scan(b Bucket, prefix []byte, fn func(key, value []byte) bool)
}

// Tx is one transaction: all of it takes effect, or nothing. Put and Delete
// copy what they are given. An error of either is fatal to the node.
type Tx interface {
	Reader
	Put(b Bucket, key, value []byte) error
	Delete(b Bucket, key []byte) error
}
