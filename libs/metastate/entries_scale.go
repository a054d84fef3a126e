package metastate

import "github.com/narad-mq/narad/libs/topic"

// GrowTopic gives one version of one life of a topic more partitions; those that
// it has stay as they are.
type GrowTopic struct {
	Name        string             `json:"name"`
	Incarnation topic.Incarnation  `json:"incarnation"`
	Version     uint64             `json:"version"` // that was read
	Config      topic.Config       `json:"config"`  // complete, with the new number of partitions
	Added       []topic.Assignment `json:"added"`   // the new ones, in order
}

// SetDraining begins or cancels the decommission of a member.
type SetDraining struct {
	ID    string `json:"id"`
	On    bool   `json:"on"`
	NowMS int64  `json:"now_ms"`
	// LossAcceptedBy names the operator who accepts the loss of what only this member
	// has; it needs one that is dead, or lives without the disk of one of its copies.
	// "": nobody does, and nobody who did is forgotten.
	LossAcceptedBy string `json:"loss_accepted_by,omitempty"`
}

// RemoveMember ends a decommission: the record goes, a tombstone that names its
// disk stays. AcceptLoss also removes a member that still holds copies, if somebody
// accepted their loss and it does not live with their disk; who proposes it has listed
// what is lost.
type RemoveMember struct {
	ID         string     `json:"id"`
	DiskID     topic.ID64 `json:"disk_id"` // that was read
	AcceptLoss bool       `json:"accept_loss"`
	NowMS      int64      `json:"now_ms"`
}

// Moves starts, turns back and ends moves of partitions. Abort and End name the moves that
// were read: another one of the same partition stays as it is.
type Moves struct {
	Start []MoveStart    `json:"start,omitempty"`
	Abort []topic.MoveID `json:"abort,omitempty"`
	End   []topic.MoveID `json:"end,omitempty"`
}

// MoveStart begins a move: its destination becomes an observer.
type MoveStart struct {
	topic.Move
	ConfigVersion uint64 `json:"config_version"` // that was read
}

// ResetPartition ends the wait for copies that are lost for ever. A Replica without a
// copy id begins the partition anew, empty, on the disk that its node has now; one
// with it, a replica of the set, goes on alone with what it has.
type ResetPartition struct {
	topic.Ref
	Epoch    topic.Epoch   `json:"epoch"` // that was read
	Replica  topic.Replica `json:"replica"`
	NowMS    int64         `json:"now_ms"`
	Operator string        `json:"operator"` // who accepted the loss
}

// EntryType implements Entry.
func (*GrowTopic) EntryType() Type { return TypeGrowTopic }

// EntryType implements Entry.
func (*SetDraining) EntryType() Type { return TypeSetDraining }

// EntryType implements Entry.
func (*RemoveMember) EntryType() Type { return TypeRemoveMember }

// EntryType implements Entry.
func (*Moves) EntryType() Type { return TypeMoves }

// EntryType implements Entry.
func (*ResetPartition) EntryType() Type { return TypeResetPartition }
