package api

import (
	"context"
	"io"
	"time"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/diagnosis"
	"github.com/narad-mq/narad/libs/metaapi"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// AnyPartition is the partition of a request that pins none.
const AnyPartition int32 = -1

// Topics is the metadata side of the API. Refusals are *problem.Problem.
type Topics interface {
	// Resolve returns the live record of a name: from the local replica, or, when
	// that does not know it, by one bounded question to the leader. Errors:
	// topic_not_found, no_metastore_leader, not_ready (before the first catch-up).
	Resolve(ctx context.Context, name string) (*topic.Topic, error)
	// List reads the local replica: at most limit records by name.
	List(prefix, after string, limit int) ([]*topic.Topic, error)
	// Create, Update and Delete answer after this gateway's own replica shows the
	// change (at most 2 s after the commit).
	Create(ctx context.Context, name string, c topic.Config) (*topic.Topic, error)
	Update(ctx context.Context, t *topic.Topic, c topic.Config) (*topic.Topic, error)
	// Delete ends the life t; version 0 does not compare it.
	Delete(ctx context.Context, t *topic.Topic, version uint64) error
}

// Produced is one message to accept.
type Produced struct {
	Pin     int32 // partition that the client named, or AnyPartition
	Message record.Message
}

// Producer makes messages durable in the ingress WAL. It copies what it keeps:
// the caller may reuse all memory when the call has returned.
type Producer interface {
	// Accept makes all messages durable or none, in order, and returns the id of
	// the first. Refusals: not_ready, draining, overloaded, disk_full,
	// topic_backlog_full, wal_unavailable (applied no or unknown).
	Accept(ctx context.Context, t *topic.Topic, msgs []Produced) (firstID string, err error)
	// CanAccept is nil while Accept would try: what /readyz/accept shows.
	CanAccept() error
}

// CommitRequest is messages to commit before they are answered.
type CommitRequest struct {
	Topic    *topic.Topic
	Messages []Produced
	Timeout  time.Duration // from the call on
	// Producer and Seq are the client's own number, of one pinned message; "": none.
	Producer string
	Seq      uint64
}

// Committed is the outcome of one message. A Refusal's Applied tells whether it may
// have been stored all the same.
type Committed struct {
	ID        string
	Partition int32
	Offset    int64
	Refusal   *problem.Problem // nil: it is committed
}

// Committer commits messages at the leaders of their partitions. It copies what it
// keeps: the caller may reuse all memory when the call has returned.
type Committer interface {
	// Commit returns the outcome of each message, in order; those that a key or a pin
	// sends to one partition share one. An error refuses all, with applied no: not_ready, draining, overloaded,
	// batch_too_large. Refusals: partition_unavailable, disk_full, overloaded, draining,
	// topic_not_found, out_of_sequence (applied no), outcome_unknown.
	Commit(req *CommitRequest) ([]Committed, error)
	// CanCommit is nil while Commit would try.
	CanCommit() error
}

// ConsumeRequest is one consume call. A nil Gone means that the caller cannot tell.
type ConsumeRequest struct {
	Topic        *topic.Topic
	Partition    int32         // or AnyPartition
	Wait         time.Duration // 0: answer from what is there now
	Max          int
	MaxBytes     int
	VisibilityMS int64       // 0: the topic's
	Gone         func() bool // whether the client has closed its connection; cheap
}

// ConsumeResult holds leased records; none means that the wait is over.
type ConsumeResult struct {
	Deliveries  []nodeapi.Delivery
	Unavailable int // partitions that could not be asked
}

// Consumer leases, settles and reads. Refusals are *problem.Problem.
type Consumer interface {
	// Consume returns within Wait + 0.5 s, whatever is down, and within 1 s of
	// ctx's end or of the topic's (topic_not_found). Errors besides:
	// too_many_requests, partition_unavailable (none could be asked), not_ready.
	Consume(ctx context.Context, req *ConsumeRequest) (*ConsumeResult, error)
	// Release gives leases back whose answer could not be written. It does not wait.
	Release(t *topic.Topic, ds []nodeapi.Delivery)
	// Settle settles leases, one status each, in order. ops carry Ref, Kind, Offset, Epoch, Nonce, ArgMS.
	Settle(ctx context.Context, t *topic.Topic, ops []nodeapi.SettleOp) ([]nodeapi.SettleStatus, error)
	// Read is replay of one partition; req's Target is filled in by the callee.
	Read(ctx context.Context, t *topic.Topic, partition int32, req nodeapi.ReadRequest) (*nodeapi.ReadResult, error)
	// Details asks the leaders of all partitions, at most 2 s; a row per partition.
	Details(ctx context.Context, t *topic.Topic) ([]PartitionRow, error)
}

// PartitionRow is a partition of GET /v1/topics/{t}. Details is nil when the
// leader did not answer.
type PartitionRow struct {
	Index         int32
	Status        string // ok, no_leader, unavailable, lost
	Leader        string // "": none
	Epoch         topic.Epoch
	ConfigVersion uint64
	Details       *nodeapi.PartitionDetails
}

// Cluster answers the cluster reads.
type Cluster interface {
	Moves
	Decommissions
	// Members is from the local replica, with the leader's heartbeat ages where it could be asked.
	Members(ctx context.Context) (*MembersView, error)
	// Quorum asks the leader; with none, every Raft server. At most 5 s.
	Quorum(ctx context.Context) (*metaapi.QuorumResult, error)
	// Forget removes a Raft server that is no member. Refusals: member_not_found,
	// has_member_record, has_assignments, not_ready, no_metastore_leader, outcome_unknown.
	Forget(ctx context.Context, id string) error
	// Status looks at everything; it works without a leader. At most 5 s.
	Status(ctx context.Context) (*diagnosis.Report, error)
	// Backup opens a backup of the metadata (package backup), which has everything
	// that was committed before the call; it ends when ctx does, and must be closed.
	// Refusals: not_ready, overloaded.
	Backup(ctx context.Context) (*BackupStream, error)
}

// BackupStream is a backup on its way.
type BackupStream struct {
	io.ReadCloser
	Size int64 // bytes
}

// MembersView is the member table with what only the leader measures.
type MembersView struct {
	ClusterID  string
	LeaderID   string // "": none known
	AsOf       time.Time
	Stale      bool // the leader could not be asked: no ages
	Members    []topic.Member
	AgesMS     map[string]int64 // by member id
	LedBy      map[string]int   // partitions led, by storage node
	ReplicasOn map[string]int   // replicas, by storage node
	Tombstones []Tombstone      // by id
}
