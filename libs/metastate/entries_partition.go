package metastate

import "github.com/narad-mq/narad/libs/topic"

// MaxItems bounds the items of one entry about partitions: about 200 bytes each
// keep it well below MaxEntryBytes.
const MaxItems = 4096

// BeginElections takes partitions from their leaders: the next leader epoch,
// without a leader. An item whose partition has changed since is left alone.
type BeginElections struct {
	Items []ElectionStart `json:"items"`
}

// ElectionStart names a partition and what was read of it.
type ElectionStart struct {
	topic.Ref
	Epoch         topic.Epoch `json:"epoch"` // that ends
	ConfigVersion uint64      `json:"config_version"`
}

// ElectLeaders gives partitions that have no leader the one that was chosen from
// the fence answers of a majority.
type ElectLeaders struct {
	Items []Elected `json:"items"`
}

// Elected names the partition, the epoch under which a majority was fenced, the
// configuration whose majority that was, and the copy that leads from now on.
type Elected struct {
	topic.Ref
	Epoch         topic.Epoch   `json:"epoch"`
	ConfigVersion uint64        `json:"config_version"`
	Leader        topic.Replica `json:"leader"`
}

// RecordCopies records which copy a replica is, before it first counts: that of
// a replica that had none (WasDisk and Was are then what the assignment says:
// its disk, and 0), or another one in the place of a copy that was lost, which
// must name the epoch of the leader that vouched for it.
type RecordCopies struct {
	Items []CopyRecord `json:"items"`
}

// CopyRecord is one copy of one partition.
type CopyRecord struct {
	topic.Ref
	Node    string     `json:"node"`
	WasDisk topic.ID64 `json:"was_disk"` // as read
	Was     topic.ID64 `json:"was"`      // copy id as read; 0: none was recorded
	DiskID  topic.ID64 `json:"disk_id"`  // where the copy is
	CopyID  topic.ID64 `json:"copy_id"`
	// Of the leader that vouched for a copy in the place of a lost one: its epoch,
	// and the configuration that it counted by; 0 when Was is 0.
	Epoch         topic.Epoch `json:"epoch"`
	ConfigVersion uint64      `json:"config_version"`
}

// ChangeReplicas replaces the replica set of one partition by one that has one
// replica more or one less. The leader stays, and must be in it.
type ChangeReplicas struct {
	topic.Ref
	ConfigVersion uint64          `json:"config_version"` // that was read
	Epoch         topic.Epoch     `json:"epoch"`          // that was read: the leader that vouched for the change led it
	Replicas      []topic.Replica `json:"replicas"`
}

// EntryType implements Entry.
func (*BeginElections) EntryType() Type { return TypeBeginElections }

// EntryType implements Entry.
func (*ElectLeaders) EntryType() Type { return TypeElectLeaders }

// EntryType implements Entry.
func (*RecordCopies) EntryType() Type { return TypeRecordCopies }

// EntryType implements Entry.
func (*ChangeReplicas) EntryType() Type { return TypeChangeReplicas }
