// Package metaapi is the contract of a metastore voter: what any role may ask
// it. Only the Raft leader answers most of it; others answer 421
// not_metastore_leader with the leader's id and node-RPC address where known.
package metaapi

import (
	"context"

	"github.com/narad-mq/narad/libs/topic"
)

// Voter is what a metastore voter does for others. Safe for concurrent use.
// Refusals are *problem.Problem. Every change answers the Raft index at which
// it was applied, so that the caller can wait for its own replica.
type Voter interface {
	// Join admits a node to the Raft configuration, or says how it stands.
	Join(ctx context.Context, req *JoinRequest) (*JoinResult, error)
	// Register records a member and the boot nonce of its process start; for a
	// storage node it also raises the epochs of the partitions that it leads.
	Register(ctx context.Context, req *RegisterRequest) (*ChangeResult, error)
	// Heartbeat stamps a registered member as alive.
	Heartbeat(ctx context.Context, req *HeartbeatRequest) error
	// CreateTopic creates a topic and assigns its partitions.
	CreateTopic(ctx context.Context, req *CreateTopicRequest) (*TopicResult, error)
	// UpdateTopic changes settings of one life of a topic, compare-and-set.
	UpdateTopic(ctx context.Context, req *UpdateTopicRequest) (*TopicResult, error)
	// DeleteTopic ends one life of a topic.
	DeleteTopic(ctx context.Context, req *DeleteTopicRequest) (*ChangeResult, error)
	// LookupTopic answers from the leader's state: for a name that a replica does not know yet.
	LookupTopic(ctx context.Context, req *LookupTopicRequest) (*TopicResult, error)
	// Confirm answers, after a barrier and by a fresh read, whether things are really gone.
	Confirm(ctx context.Context, req *ConfirmRequest) (*ConfirmResult, error)
	// Members answers the member records as the leader has them, and its own
	// measurement of who was heard when.
	Members(ctx context.Context) (*MembersResult, error)
	// Quorum answers the state of the metastore's Raft: what the leader knows, and
	// what every Raft server said of itself within 2 s.
	Quorum(ctx context.Context) (*QuorumResult, error)
	// Forget removes a Raft server that is no member and holds no partition.
	Forget(ctx context.Context, req *ForgetRequest) (*ChangeResult, error)
}

// JoinRequest is what a node says of itself when it asks to be admitted.
type JoinRequest struct {
	NodeID          string           `json:"node_id"`
	DiskID          topic.ID64       `json:"disk_id"`
	Role            topic.MemberRole `json:"role"`
	ClusterID       string           `json:"cluster_id"` // "" before admission
	RaftAddr        string           `json:"raft_addr"`
	RPCAddr         string           `json:"rpc_addr"`
	Zone            string           `json:"zone"`
	Release         string           `json:"release"`
	NewestEntryType uint8            `json:"newest_entry_type"` // 0: not told; then it is of the first release
	Empty           bool             `json:"empty"`             // this process made the identity file in this start
	// RaftID is as which Raft server the node takes part; "" while it takes no part,
	// because its disk is new.
	RaftID string `json:"raft_id"`
}

// JoinResult says how an admitted node stands.
type JoinResult struct {
	RaftID string `json:"raft_id"` // as which Raft server it is in the configuration
	Status string `json:"status"`  // staged, deferred, promoted, voter
	Reason string `json:"reason,omitempty"`
}

// RegisterRequest records one process start of a member.
type RegisterRequest struct {
	NodeID          string           `json:"node_id"`
	DiskID          topic.ID64       `json:"disk_id"`
	BootNonce       topic.ID64       `json:"boot_nonce"`
	Role            topic.MemberRole `json:"role"`
	RaftAddr        string           `json:"raft_addr"`
	RPCAddr         string           `json:"rpc_addr"`
	GossipAddr      string           `json:"gossip_addr,omitempty"` // "": it does not gossip
	Zone            string           `json:"zone"`
	Release         string           `json:"release"`
	NewestEntryType uint8            `json:"newest_entry_type"`
}

// HeartbeatRequest is sent every 5 s by every member. One whose Release or
// NewestEntryType are not those of the record is refused with member_not_found:
// the member registered with a leader that did not know them, and has to again.
type HeartbeatRequest struct {
	NodeID          string     `json:"node_id"`
	DiskID          topic.ID64 `json:"disk_id"`
	BootNonce       topic.ID64 `json:"boot_nonce"`
	WALBacklog      int64      `json:"wal_backlog"`
	DiskUsedPercent int        `json:"disk_used_percent"`
	Release         string     `json:"release"`           // "": not told
	NewestEntryType uint8      `json:"newest_entry_type"` // 0: not told
	// Lost are lone copies that a storage node misses; nil: not told.
	Lost *LostCopies `json:"lost,omitempty"`
}

// ChangeResult is an applied change.
type ChangeResult struct {
	Index uint64 `json:"index"`
}

// TopicResult is a topic after a change or a look-up.
type TopicResult struct {
	Index uint64      `json:"index"`
	Topic topic.Topic `json:"topic"`
}

// CreateTopicRequest names a new topic and its settings, complete. Refusals:
// invalid_topic_name, invalid_request, topic_exists (member topic, the existing
// topic.Topic), not_enough_storage_nodes (live, wanted), outcome_unknown.
type CreateTopicRequest struct {
	Name   string       `json:"name"`
	Config topic.Config `json:"config"`
}

// UpdateTopicRequest replaces the settings of one version of one life.
// Refusals: topic_not_found, topic_changed (incarnation), precondition_failed
// (version, incarnation), outcome_unknown.
type UpdateTopicRequest struct {
	Name        string            `json:"name"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Version     uint64            `json:"version"` // that was read
	Config      topic.Config      `json:"config"`
}

// DeleteTopicRequest ends one life. Version 0 does not compare it.
type DeleteTopicRequest struct {
	Name        string            `json:"name"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Version     uint64            `json:"version"`
}

// LookupTopicRequest asks for a name.
type LookupTopicRequest struct {
	Name string `json:"name"`
}

// MaxQuestions bounds one ConfirmRequest: one barrier serves them all.
const MaxQuestions = 1000

// ConfirmRequest is a list of typed questions behind one barrier.
type ConfirmRequest struct {
	Questions []Question `json:"questions"`
}

// Kinds of questions.
const (
	KindIncarnation = "incarnation"  // a life of a topic
	KindAttachEpoch = "attach_epoch" // an attachment of a child
)

// Question asks about one thing of a kind.
type Question struct {
	Kind string     `json:"kind"`
	ID   topic.ID64 `json:"id"`
	// Of KindPartition only.
	Topic     string `json:"topic,omitzero"`
	Partition int32  `json:"partition,omitzero"`
}

// Verdict is the answer to a Question. Anything that is not certain is unknown,
// and unknown keeps the data.
type Verdict string

// The verdicts.
const (
	VerdictGone    Verdict = "gone" // the metastore remembers its end
	VerdictLive    Verdict = "live"
	VerdictUnknown Verdict = "unknown"
)

// ConfirmResult answers in the order of the questions. It serves only the pass
// that asked.
type ConfirmResult struct {
	Verdicts []Verdict `json:"verdicts"`
	Holdings []Holding `json:"holdings,omitzero"` // of the questions of KindPartition, in their order
}

// MembersResult has the members and the leader's age of each one's last
// heartbeat. ClusterID lets one who belongs to no cluster, and so knows no id,
// name the right one when it calls them.
type MembersResult struct {
	LeaderID  string           `json:"leader_id"`
	ClusterID string           `json:"cluster_id"`
	AgesMS    map[string]int64 `json:"ages_ms"`
	Members   []topic.Member   `json:"members"` // by id; what a heartbeat carries is that of the last stamp
	// DeadMarkingRefused: the breaker keeps silent members from being marked dead.
	DeadMarkingRefused bool `json:"dead_marking_refused,omitempty"`
}

// ForgetRequest names a Raft server by its node id. Refusals: member_not_found,
// has_member_record, has_assignments, not_ready, outcome_unknown.
type ForgetRequest struct {
	NodeID string `json:"node_id"`
}

// QuorumResult is the quorum document of api.md, section 9.
type QuorumResult struct {
	LeaderID         *string        `json:"leader_id"`
	LeaderEpoch      uint64         `json:"leader_epoch"`
	LeaderEpochStart uint64         `json:"leader_epoch_start"`
	HighWatermark    uint64         `json:"high_watermark"`
	Majority         int            `json:"majority"`
	CommittedBy      []string       `json:"committed_by"`
	AnsweredBy       string         `json:"answered_by"`
	Servers          []QuorumServer `json:"servers"`
}

// QuorumServer is one Raft server; what is unknown is null.
type QuorumServer struct {
	ID            string  `json:"id"`
	Role          string  `json:"role"`
	Suffrage      string  `json:"suffrage"`
	Reachable     bool    `json:"reachable"`
	Member        bool    `json:"member"`
	Release       string  `json:"release"`
	State         string  `json:"state"`
	LeaderEpoch   *uint64 `json:"leader_epoch"`
	LEO           *uint64 `json:"leo"`
	Lag           *uint64 `json:"lag"`
	Applied       *uint64 `json:"applied"`
	LastContactMS *int64  `json:"last_contact_ms"`
}
