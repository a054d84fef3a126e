package problem

// Code is a stable identifier of a kind of refusal. Clients branch on it.
type Code string

// Every code that a client or a node may see.
const (
	InvalidRequest       Code = "invalid_request"
	InvalidTopicName     Code = "invalid_topic_name"
	InvalidKey           Code = "invalid_key"
	InvalidAttribute     Code = "invalid_attribute"
	InvalidBatch         Code = "invalid_batch"
	InvalidEncoding      Code = "invalid_encoding"
	BatchTooLarge        Code = "batch_too_large"
	EmptyMessage         Code = "empty_message"
	PartitionOutOfRange  Code = "partition_out_of_range"
	OffsetOutOfRange     Code = "offset_out_of_range"
	InvalidReceiptHandle Code = "invalid_receipt_handle"
	CrossOrigin          Code = "cross_origin"
	TopicNotFound        Code = "topic_not_found"
	ChildNotFound        Code = "child_not_found"
	MemberNotFound       Code = "member_not_found"
	RouteNotFound        Code = "route_not_found"
	MethodNotAllowed     Code = "method_not_allowed"
	RequestTimeout       Code = "request_timeout"
	TopicExists          Code = "topic_exists"
	TopicChanged         Code = "topic_changed"
	TopicInUse           Code = "topic_in_use"
	RoleConflict         Code = "role_conflict"
	AlreadyAttached      Code = "already_attached"
	TooManyChildren      Code = "too_many_children"
	RetentionTooShort    Code = "retention_too_short"
	ImmutableField       Code = "immutable_field"
	OutOfSequence        Code = "out_of_sequence"
	DecommissionUnsafe   Code = "decommission_unsafe"
	MoveInProgress       Code = "move_in_progress"
	MoveNotInFlight      Code = "move_not_in_flight"
	HasMemberRecord      Code = "has_member_record"
	HasAssignments       Code = "has_assignments"
	LeaseLost            Code = "lease_lost"
	OffsetGone           Code = "offset_gone"
	PreconditionFailed   Code = "precondition_failed"
	MessageTooLarge      Code = "message_too_large"
	BodyTooLarge         Code = "body_too_large"
	URITooLong           Code = "uri_too_long"
	HeadersTooLarge      Code = "headers_too_large"
	UnsupportedMediaType Code = "unsupported_media_type"
	UnsupportedEncoding  Code = "unsupported_encoding"
	ExpectationFailed    Code = "expectation_failed"
	TooManyRequests      Code = "too_many_requests"
	Internal             Code = "internal"
	NotImplemented       Code = "not_implemented"
	NotReady             Code = "not_ready"
	Draining             Code = "draining"
	Overloaded           Code = "overloaded"
	DiskFull             Code = "disk_full"
	TopicBacklogFull     Code = "topic_backlog_full"
	PartitionUnavailable Code = "partition_unavailable"
	NoMetastoreLeader    Code = "no_metastore_leader"
	NotEnoughStorage     Code = "not_enough_storage_nodes"
	WALUnavailable       Code = "wal_unavailable"
	OutcomeUnknown       Code = "outcome_unknown"

	// Between nodes only.
	NotPartitionLeader  Code = "not_partition_leader"
	NotMetastoreLeader  Code = "not_metastore_leader"
	NoRaftConfiguration Code = "no_raft_configuration"
	IncarnationMismatch Code = "incarnation_mismatch"
	StaleEpoch          Code = "stale_epoch"
	DamagedBatch        Code = "damaged_batch"
	Decommissioned      Code = "decommissioned"
	OlderRelease        Code = "older_release"
	IDInUse             Code = "id_in_use"
	WrongCluster        Code = "wrong_cluster"
	WrongNode           Code = "wrong_node"
)

// Row is what the reference says of a code.
type Row struct {
	Code         Code
	Status       int
	Applied      Applied // on mutating routes; the edge drops it on others
	RetryAfterMS int64   // default hint; 0: none
	Caller       string  // what the caller should do
}

// defaultRetryMS is the hint of a refusal that says nothing finer: long enough
// not to hammer, short enough to follow an election.
const defaultRetryMS = 1000

// Table lists every code once; the reference is generated from it.
func Table() []Row { return append([]Row(nil), table...) }

var table = []Row{
	{InvalidRequest, 400, AppliedNo, 0, "fix the request"},
	{InvalidTopicName, 400, AppliedNo, 0, "fix the name"},
	{InvalidKey, 400, AppliedNo, 0, "fix the key"},
	{InvalidAttribute, 400, AppliedNo, 0, "fix the attribute"},
	{InvalidBatch, 400, AppliedNo, 0, "fix the batch"},
	{InvalidEncoding, 400, AppliedNo, 0, "fix the encoding"},
	{BatchTooLarge, 400, AppliedNo, 0, "send fewer messages"},
	{EmptyMessage, 400, AppliedNo, 0, "send at least one byte"},
	{PartitionOutOfRange, 400, AppliedNo, 0, "name a partition of the topic"},
	{OffsetOutOfRange, 400, AppliedNo, 0, "start at or below the high watermark"},
	{InvalidReceiptHandle, 400, AppliedNo, 0, "send the handle as it was given"},
	{CrossOrigin, 403, AppliedNo, 0, "do not call from another site's page"},
	{TopicNotFound, 404, AppliedNo, 0, "check the name"},
	{ChildNotFound, 404, AppliedNo, 0, "check the name"},
	{MemberNotFound, 404, AppliedNo, 0, "check the name"},
	{RouteNotFound, 404, AppliedNo, 0, "check the path"},
	{MethodNotAllowed, 405, AppliedNo, 0, "use a method of the Allow header"},
	{RequestTimeout, 408, AppliedNo, 0, "send the body faster"},
	{TopicExists, 409, AppliedNo, 0, "use the existing topic or another name"},
	{TopicChanged, 409, AppliedNo, 0, "read the topic again and decide"},
	{TopicInUse, 409, AppliedNo, 0, "remove what uses the topic first"},
	{RoleConflict, 409, AppliedNo, 0, "use a topic of another role"},
	{AlreadyAttached, 409, AppliedNo, 0, "detach the child first"},
	{TooManyChildren, 409, AppliedNo, 0, "detach a child, or use another parent"},
	{RetentionTooShort, 409, AppliedNo, 0, "raise the parent's retention to minimum_ms"},
	{ImmutableField, 409, AppliedNo, 0, "create another topic"},
	{OutOfSequence, 409, AppliedNo, 0, "go on at expected, or take a new producer id"},
	{DecommissionUnsafe, 409, AppliedNo, 0, "read reasons: add nodes, bring them back, or accept a loss by name"},
	{MoveInProgress, 409, AppliedNo, 0, "wait for the move of this partition, or abort it"},
	{MoveNotInFlight, 409, AppliedNo, 0, "look at the list of moves"},
	{HasMemberRecord, 409, AppliedNo, 0, "decommission the member: forget is for Raft servers that never registered"},
	{HasAssignments, 409, AppliedNo, 0, "delete the topics that have partitions there"},
	{LeaseLost, 410, AppliedNo, 0, "stop; expect the message to be delivered again"},
	{OffsetGone, 410, AppliedNo, 0, "start at log_start"},
	{PreconditionFailed, 412, AppliedNo, 0, "read the topic again"},
	{MessageTooLarge, 413, AppliedNo, 0, "send a smaller message"},
	{BodyTooLarge, 413, AppliedNo, 0, "send a smaller body"},
	{URITooLong, 414, AppliedNo, 0, "send a shorter request line"},
	{HeadersTooLarge, 431, AppliedNo, 0, "send fewer or shorter headers"},
	{UnsupportedMediaType, 415, AppliedNo, 0, "send a supported content type"},
	{UnsupportedEncoding, 415, AppliedNo, 0, "send zstd, gzip or no encoding"},
	{ExpectationFailed, 417, AppliedNo, 0, "expect 100-continue or nothing"},
	{TooManyRequests, 429, AppliedNo, defaultRetryMS, "back off"},
	{Internal, 500, AppliedUnknown, 0, "retry, and report the request id"},
	{NotImplemented, 501, AppliedNo, 0, "wait for a release that has it"},
	{NotReady, 503, AppliedNo, defaultRetryMS, "try another gateway"},
	{Draining, 503, AppliedNo, defaultRetryMS, "use another gateway"},
	{Overloaded, 503, AppliedNo, defaultRetryMS, "back off"},
	{DiskFull, 503, AppliedNo, 5 * defaultRetryMS, "use another gateway"},
	{TopicBacklogFull, 503, AppliedNo, defaultRetryMS, "back off"},
	{PartitionUnavailable, 503, AppliedNo, 300, "back off"},
	{NoMetastoreLeader, 503, AppliedNo, defaultRetryMS, "back off"},
	{NotEnoughStorage, 503, AppliedNo, 5 * defaultRetryMS, "add storage nodes"},
	{WALUnavailable, 503, AppliedNo, defaultRetryMS, "use another gateway"},
	{OutcomeUnknown, 504, AppliedUnknown, 0, "read back, or retry knowing that it may be twice"},

	{NotPartitionLeader, 421, AppliedNo, 0, "ask the leader that the metastore names"},
	{NotMetastoreLeader, 421, AppliedNo, 0, "ask the leader that is named"},
	{NoRaftConfiguration, 412, AppliedNo, 0, "ask another peer"},
	{IncarnationMismatch, 412, AppliedNo, 0, "hold the records until confirm"},
	{StaleEpoch, 409, AppliedNo, 0, "read the assignment again"},
	{DamagedBatch, 422, AppliedNo, 0, "send the batch again as it is on disk"},
	{Decommissioned, 409, AppliedNo, 0, "wipe the data directory to join as new"},
	{OlderRelease, 409, AppliedNo, 0, "upgrade"},
	{IDInUse, 409, AppliedNo, 0, "choose another node id"},
	{WrongCluster, 409, AppliedNo, 0, "join your own cluster"},
	{WrongNode, 421, AppliedNo, 0, "read the member table again: the address belongs to another node"},
}

var byCode = func() map[Code]Row {
	m := make(map[Code]Row, len(table))
	for _, r := range table {
		m[r.Code] = r
	}
	return m
}()
