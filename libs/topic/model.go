package topic

// Topic is the metastore's record of one life of a name. Values are immutable
// once published; a change is a new value with the next Version.
type Topic struct {
	Name        string      `json:"name"`
	Incarnation Incarnation `json:"incarnation"`
	Version     uint64      `json:"version"`       // grows by one with each change
	CreatedAtMS int64       `json:"created_at_ms"` // Unix milliseconds, the proposer's clock
	Config
	// Children are the topics that every committed message is copied to, by name.
	Children []Child `json:"children,omitempty"`
	// Parent is where the messages of a child come from; nil: it has none.
	Parent *Parent `json:"parent,omitempty"`
}

// Child is a topic that is attached to a parent, as the parent's record has it.
type Child struct {
	Name        string      `json:"name"`
	Incarnation Incarnation `json:"incarnation"`
	DelayMS     int64       `json:"delay_ms"`     // 0: a plain child
	AttachEpoch ID64        `json:"attach_epoch"` // random, of this attachment
	AttachedMS  int64       `json:"attached_ms"`  // Unix ms, the proposer's clock
}

// Parent is the other side of a Child.
type Parent struct {
	Name        string      `json:"name"`
	Incarnation Incarnation `json:"incarnation"`
	DelayMS     int64       `json:"delay_ms"`
	AttachEpoch ID64        `json:"attach_epoch"`
}

// Role is what a topic is in fan-out.
type Role string

// The roles.
const (
	RoleStandalone Role = "standalone"
	RoleParent     Role = "parent"
	RoleChild      Role = "child"
	RoleDelayChild Role = "delay_child"
)

// Role tells what the topic is.
func (t *Topic) Role() Role {
	switch {
	case t.Parent != nil && t.Parent.DelayMS > 0:
		return RoleDelayChild
	case t.Parent != nil:
		return RoleChild
	case len(t.Children) > 0:
		return RoleParent
	}
	return RoleStandalone
}

// ChildNamed returns the attached child of that name, if any.
func (t *Topic) ChildNamed(name string) (Child, bool) {
	for _, c := range t.Children {
		if c.Name == name {
			return c, true
		}
	}
	return Child{}, false
}

// Attachment is one child of one parent, and where in the parent's partitions it
// began.
type Attachment struct {
	Parent            string      `json:"parent"`
	ParentIncarnation Incarnation `json:"parent_incarnation"`
	Child
	// Points are the high watermarks of the parent's partitions when the child was
	// attached, by index: what is committed from there on is copied. A partition
	// beyond them came later and is copied from its log start.
	Points []int64 `json:"points"`
}

// Bounds of fan-out (api.md, section 9).
const (
	// MaxChildren bounds what one committed message costs.
	MaxChildren = 108
	// MaxDelayMS bounds a child's delay: 365 days.
	MaxDelayMS = 365 * 24 * 3600 * 1000
	// DelayMarginMS is what a parent keeps its messages beyond the longest delay of
	// a child, so that a cursor that stood still for a while loses nothing: 1 h.
	DelayMarginMS = 3600 * 1000
)

// Replica is one copy that may count toward a partition's majority: a node
// *and* the disk on which the copy was placed. A node that comes back with
// another disk is not this replica.
type Replica struct {
	Node   string `json:"node"`
	DiskID ID64   `json:"disk_id"`
	CopyID ID64   `json:"copy_id,omitzero"` // of the directory, once opened and recorded
}

// Assignment is the metastore's record of one partition.
type Assignment struct {
	Ref
	Replicas      []Replica `json:"replicas"`
	Leader        string    `json:"leader"` // node id; empty: none
	LeaderEpoch   Epoch     `json:"leader_epoch"`
	ConfigVersion uint64    `json:"config_version"`
	// Observers fetch and never count: destinations of moves.
	Observers []Replica `json:"observers,omitempty"`
	// Before is the replica set before its last change, to which it may be taken
	// back, and Since the leader epoch at that change. None after a change that
	// cannot be taken back.
	Before []Replica `json:"before,omitempty"`
	Since  Epoch     `json:"since,omitzero"`
	// Reset is the first leader epoch after the partition was begun anew, empty,
	// because its copies were lost: what is of older ones is of no use. 0: it never was.
	Reset Epoch `json:"reset,omitzero"`
}

// Move takes the copy of one partition from one node to another, or, without From,
// gives the partition one more. How far it is stands in the assignment.
type Move struct {
	Ref
	From      string `json:"from"` // "": nobody gives one up
	To        string `json:"to"`
	ToDisk    ID64   `json:"to_disk"`
	StartedMS int64  `json:"started_ms"` // Unix ms, the proposer's clock
	// Reason is why it was started: what started it may be gone since.
	Reason string `json:"reason"`
	// Aborted: it is being taken back.
	Aborted bool `json:"aborted,omitzero"`
}

// MoveID tells a move of a partition from those before and after it.
type MoveID struct {
	Ref
	To        string `json:"to"`
	StartedMS int64  `json:"started_ms"`
}

// ID returns what the move is told apart by.
func (m *Move) ID() MoveID { return MoveID{Ref: m.Ref, To: m.To, StartedMS: m.StartedMS} }

// Reasons of moves.
const (
	MoveAsked        = "asked"        // by an administrator, by name
	MoveRebalance    = "rebalance"    // a node came that had too little
	MoveDecommission = "decommission" // its source is to be removed
	MoveComplete     = "complete"     // the partition lacks replicas, or one's node is gone
)

// ReplicaOn returns the replica that lives on node, if any.
func (a *Assignment) ReplicaOn(node string) (Replica, bool) {
	for _, r := range a.Replicas {
		if r.Node == node {
			return r, true
		}
	}
	return Replica{}, false
}

// Replicated tells whether copies of the partition follow each other: it has
// several, or one that gets another beside it.
func (a *Assignment) Replicated() bool { return len(a.Replicas) > 1 || len(a.Observers) > 0 }

// On tells whether a node has a copy, as a replica or as an observer.
func (a *Assignment) On(node string) bool {
	if _, ok := a.ReplicaOn(node); ok {
		return true
	}
	for _, o := range a.Observers {
		if o.Node == node {
			return true
		}
	}
	return false
}

// MemberRole is the program that a member runs.
type MemberRole string

// The three roles that register.
const (
	RoleVoter   MemberRole = "metastore-voter"
	RoleStorage MemberRole = "storage-node"
	RoleGateway MemberRole = "ingress-gateway"
)

// MemberStatus is the controller's verdict.
type MemberStatus string

// The two verdicts.
const (
	StatusAlive MemberStatus = "alive"
	StatusDead  MemberStatus = "dead"
)

// Member is the metastore's record of one registered process.
type Member struct {
	ID         string       `json:"id"`
	Role       MemberRole   `json:"role"`
	Status     MemberStatus `json:"status"`
	Draining   bool         `json:"draining"`
	DrainingMS int64        `json:"draining_ms,omitzero"` // since when, Unix ms; 0: not draining
	// LossAcceptedBy is the operator who let it be removed with what is lost with it:
	// said of a dead member, what only it has; of a living one, what was on another disk
	// than its own. It ends when the member is marked dead, lives again or registers.
	// "": nobody.
	LossAcceptedBy  string `json:"loss_accepted_by,omitempty"`
	DiskID          ID64   `json:"disk_id"`
	BootNonce       ID64   `json:"boot_nonce"` // of the process start that registered last
	RPCAddr         string `json:"rpc_addr"`
	RaftAddr        string `json:"raft_addr"`
	GossipAddr      string `json:"gossip_addr,omitempty"` // "": it does not gossip
	Zone            string `json:"zone,omitempty"`
	Release         string `json:"release"`
	NewestEntryType uint8  `json:"newest_entry_type"`
	HeartbeatMS     int64  `json:"heartbeat_ms"` // leader's wall clock at the last stamp
	WALBacklog      int64  `json:"wal_backlog"`  // gateways, as of the last stamp
	DiskUsedPercent int    `json:"disk_used_percent"`
}
