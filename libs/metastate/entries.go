package metastate

import "github.com/narad-mq/narad/libs/topic"

// Entry is one change as it stands on the Raft log.
type Entry interface {
	// EntryType is the entry's number in the table.
	EntryType() Type
}

// ClusterID names the cluster: the first leader's first command. Applied again
// with the same id it changes nothing; another id is refused.
type ClusterID struct {
	ID string `json:"id"` // 32 lower-case hex digits
}

// RegisterMember records one process start of a member. Status, Draining and
// HeartbeatMS of Member are ignored: the state machine sets them.
type RegisterMember struct {
	Member topic.Member `json:"member"`
	NowMS  int64        `json:"now_ms"` // the proposer's wall clock
}

// Heartbeats stamps members as alive, several in one entry.
type Heartbeats struct {
	NowMS int64       `json:"now_ms"`
	Items []Heartbeat `json:"items"`
}

// Heartbeat is one member's stamp; it counts only for the process start that it names.
type Heartbeat struct {
	ID              string     `json:"id"`
	BootNonce       topic.ID64 `json:"boot_nonce"`
	WALBacklog      int64      `json:"wal_backlog"`
	DiskUsedPercent int        `json:"disk_used_percent"`
}

// MarkDead marks members dead whose last stamp is still the one observed.
type MarkDead struct {
	Items []DeadMark `json:"items"`
}

// DeadMark names a member and the stamp (Member.HeartbeatMS) that the verdict rests on.
type DeadMark struct {
	ID          string `json:"id"`
	HeartbeatMS int64  `json:"heartbeat_ms"`
}

// CreateTopic creates one life of a name with its partitions. Topic.Version is
// ignored: the state machine gives it.
type CreateTopic struct {
	Topic       topic.Topic        `json:"topic"`
	Assignments []topic.Assignment `json:"assignments"` // index = partition
}

// UpdateTopic replaces the settings of one version of one life.
type UpdateTopic struct {
	Name        string            `json:"name"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Version     uint64            `json:"version"` // that was read
	Config      topic.Config      `json:"config"`
}

// DeleteTopic ends one life of a name. Version 0 does not compare the version.
type DeleteTopic struct {
	Name        string            `json:"name"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Version     uint64            `json:"version"`
	NowMS       int64             `json:"now_ms"`
}

// EntryType implements Entry.
func (*ClusterID) EntryType() Type { return TypeClusterID }

// EntryType implements Entry.
func (*RegisterMember) EntryType() Type { return TypeRegisterMember }

// EntryType implements Entry.
func (*Heartbeats) EntryType() Type { return TypeHeartbeats }

// EntryType implements Entry.
func (*MarkDead) EntryType() Type { return TypeMarkDead }

// EntryType implements Entry.
func (*CreateTopic) EntryType() Type { return TypeCreateTopic }

// EntryType implements Entry.
func (*UpdateTopic) EntryType() Type { return TypeUpdateTopic }

// EntryType implements Entry.
func (*DeleteTopic) EntryType() Type { return TypeDeleteTopic }
