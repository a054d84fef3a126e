package metastate

import (
	"errors"

	"github.com/narad-mq/narad/libs/topic"
)

// ErrUnavailable is what both assignment reads answer until the ownership latch
// is set: until the replica has been caught up once since this start and has
// applied its own registration of this start. Every caller treats it as
// transient: it holds back, answers 503 or skips a pass, and never decides
// ownership from elsewhere.
var ErrUnavailable = errors.New("assignments unavailable: this replica has not caught up since its start")

// ErrNoTopic is the answer for a name that the replica does not know.
var ErrNoTopic = errors.New("no such topic")

// Partitions is the immutable assignment table of one life of a topic.
type Partitions struct {
	Incarnation topic.Incarnation
	List        []topic.Assignment // index = partition
}

// MemberTable is the immutable table of members. It is replaced when a member
// registers, dies, revives, drains or goes; not by a heartbeat.
type MemberTable struct {
	ByID map[string]*topic.Member
}

// View is a node's local metastore replica as its role reads it. Reads are
// local, never block on the network, and cost about one atomic load and one map
// look-up for what was read before. Values are immutable. Safe for concurrent use.
type View interface {
	// Topic returns the record of a name, or ErrNoTopic. It is not gated by the
	// latch: a replica that lags may show an ended life.
	Topic(name string) (*topic.Topic, error)
	// Assignments returns the partitions of a name, ErrNoTopic or ErrUnavailable.
	// A caller compares Incarnation with the one that it acts for.
	Assignments(name string) (*Partitions, error)
	// AssignmentsOf returns every partition that has a copy on node, as a replica
	// or an observer, or ErrUnavailable.
	AssignmentsOf(node string) ([]topic.Assignment, error)
	// Topics lists at most limit records by name, those with the prefix, after
	// the name `after` ("" from the start).
	Topics(prefix, after string, limit int) ([]*topic.Topic, error)
	// Members returns the current member table.
	Members() *MemberTable
	// Ended tells whether the replica remembers the end of this incarnation.
	Ended(id topic.Incarnation) bool
	// Attachment returns one attachment of a child, with its attach points, or nil
	// when it has ended or is not known yet. It reads the database: for starts of
	// cursors, not for messages. Gated by the latch: ErrUnavailable.
	Attachment(epoch topic.ID64) (*topic.Attachment, error)
	// ClusterID is "" until it was applied.
	ClusterID() string
	// Changed returns a channel that is closed at the next change of topics,
	// assignments, members (not heartbeats) or the latch. Take it before
	// reading, so that no change falls between.
	Changed() <-chan struct{}
	// CaughtUpOnce tells whether the replica was caught up once since this start.
	CaughtUpOnce() bool
	// Latched tells whether the ownership latch is set.
	Latched() bool
}

// Index answers for all partitions together, in time that does not grow with
// them. It is gated by the latch as soon as the replica has a partition:
// ErrUnavailable. Safe for concurrent use.
type Index interface {
	// Loads returns what every node holds. The partitions beside are counted too,
	// each once: those that are in the replica already, of the same life of a topic, are
	// not counted again. The map is the caller's.
	Loads(beside []topic.Assignment) (topic.Loads, error)
	// Led returns the partitions with several replicas that are led by one that by
	// is true for, in order of topics and partitions. by is asked once for each
	// replica that leads, given by node and disk, and for the zero one: no replica
	// leads. It must not call the Index.
	Led(by func(leader topic.Replica) bool) ([]topic.Assignment, error)
}
