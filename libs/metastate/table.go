package metastate

import (
	"slices"
	"strconv"

	"github.com/narad-mq/narad/libs/release"
)

// Type is the number of a kind of entry. It is the first byte of an entry on
// the Raft log, so a number means the same for ever.
type Type uint8

// The types. A number is never changed and never given again.
const (
	TypeClusterID      Type = 1
	TypeRegisterMember Type = 2
	TypeHeartbeats     Type = 3
	TypeMarkDead       Type = 4
	TypeCreateTopic    Type = 5
	TypeUpdateTopic    Type = 6
	TypeDeleteTopic    Type = 7
	TypeForgetEnded    Type = 8
	TypeBeginElections Type = 9
	TypeElectLeaders   Type = 10
	TypeRecordCopies   Type = 11
	TypeChangeReplicas Type = 12
	TypeGrowTopic      Type = 13
	TypeSetDraining    Type = 14
	TypeRemoveMember   Type = 15
	TypeAttachChild    Type = 16
	TypeDetachChild    Type = 17
	TypeMoves          Type = 18
	TypeResetPartition Type = 19
	TypeCreateChild    Type = 20
)

// TypeRow is one row of the entry table.
type TypeRow struct {
	Type Type
	Name string
	// Since is the first release that applies it. It decides two things: a release
	// before it does not have the row (Table), which is how the stand-in of the
	// previous release comes to know fewer types; and rows of release.First are
	// proposed without asking, all others only when everybody reports them
	// (Lacking). A row never changes its Since.
	Since string
	New   func() Entry
}

// Table returns the rows that this release applies, in order of numbers.
func Table() []TypeRow {
	return slices.DeleteFunc(allRows(), func(row TypeRow) bool { return !release.Has(release.Name, row.Since) })
}

// allRows is the entry table. A new type is a new row with the release in the
// making as its Since.
func allRows() []TypeRow {
	return []TypeRow{
		{TypeClusterID, "cluster_id", "0.1.0", func() Entry { return new(ClusterID) }},
		{TypeRegisterMember, "register_member", "0.1.0", func() Entry { return new(RegisterMember) }},
		{TypeHeartbeats, "heartbeats", "0.1.0", func() Entry { return new(Heartbeats) }},
		{TypeMarkDead, "mark_dead", "0.1.0", func() Entry { return new(MarkDead) }},
		{TypeCreateTopic, "create_topic", "0.1.0", func() Entry { return new(CreateTopic) }},
		{TypeUpdateTopic, "update_topic", "0.1.0", func() Entry { return new(UpdateTopic) }},
		{TypeDeleteTopic, "delete_topic", "0.1.0", func() Entry { return new(DeleteTopic) }},
		{TypeForgetEnded, "forget_ended", "0.2.0", func() Entry { return new(ForgetEnded) }},
		{TypeBeginElections, "begin_elections", "0.2.0", func() Entry { return new(BeginElections) }},
		{TypeElectLeaders, "elect_leaders", "0.2.0", func() Entry { return new(ElectLeaders) }},
		{TypeRecordCopies, "record_copies", "0.2.0", func() Entry { return new(RecordCopies) }},
		{TypeChangeReplicas, "change_replicas", "0.2.0", func() Entry { return new(ChangeReplicas) }},
		{TypeGrowTopic, "grow_topic", "0.2.0", func() Entry { return new(GrowTopic) }},
		{TypeSetDraining, "set_draining", "0.2.0", func() Entry { return new(SetDraining) }},
		{TypeRemoveMember, "remove_member", "0.2.0", func() Entry { return new(RemoveMember) }},
		{TypeAttachChild, "attach_child", "0.2.0", func() Entry { return new(AttachChild) }},
		{TypeDetachChild, "detach_child", "0.2.0", func() Entry { return new(DetachChild) }},
		{TypeMoves, "moves", "0.2.0", func() Entry { return new(Moves) }},
		{TypeResetPartition, "reset_partition", "0.2.0", func() Entry { return new(ResetPartition) }},
		{TypeCreateChild, "create_child", "0.2.0", func() Entry { return new(CreateChild) }},
	}
}

// NewestType is the highest type that this release applies: what a member
// reports when it joins and registers.
func NewestType() Type {
	rows := Table()
	return rows[len(rows)-1].Type
}

// NameOf is the name of a type for people; its number when no row has it.
func NameOf(t Type) string {
	for _, row := range allRows() {
		if row.Type == t {
			return row.Name
		}
	}
	return "type " + strconv.Itoa(int(t))
}

// newEntry returns an empty entry of the type, or nil for an unknown one.
func newEntry(t Type) Entry {
	for _, row := range allRows() {
		if row.Type == t && release.Has(release.Name, row.Since) {
			return row.New()
		}
	}
	return nil
}
