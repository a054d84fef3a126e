package metastate

import "github.com/narad-mq/narad/libs/topic"

// AttachChild makes one life of a topic a child of one life of another. The
// points were collected by the proposer: what the parent's partitions had
// committed by then is not copied.
type AttachChild struct {
	topic.Attachment
}

// DetachChild ends one attachment.
type DetachChild struct {
	Parent            string            `json:"parent"`
	ParentIncarnation topic.Incarnation `json:"parent_incarnation"`
	Child             string            `json:"child"`
	AttachEpoch       topic.ID64        `json:"attach_epoch"`
	NowMS             int64             `json:"now_ms"`
}

// CreateChild creates a topic and attaches it: both or neither.
type CreateChild struct {
	Create CreateTopic `json:"create"`
	Attach AttachChild `json:"attach"`
}

// EntryType implements Entry.
func (*AttachChild) EntryType() Type { return TypeAttachChild }

// EntryType implements Entry.
func (*DetachChild) EntryType() Type { return TypeDetachChild }

// EntryType implements Entry.
func (*CreateChild) EntryType() Type { return TypeCreateChild }
