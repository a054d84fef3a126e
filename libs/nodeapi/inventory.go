package nodeapi

import "github.com/narad-mq/narad/libs/topic"

// Bounds of one page of an inventory: 1,000 entries is what one confirm asks
// about (metaapi.MaxQuestions), and with MaxInventoryPartitions numbers of
// partitions the reply stays below 4 MiB.
const (
	MaxInventoryEntries    = 1000
	MaxInventoryPartitions = 65_536
	// MaxInventoryCopies is about where a page ends that lists copies: 300 bytes each.
	MaxInventoryCopies = 4096
	// MaxInventoryToken bounds a page token: a file name of 255 bytes in base64.
	MaxInventoryToken = 512
)

// InventoryRequest asks for one page of what a node has in its topic
// directories. Refusals: invalid_request (a token that is none).
type InventoryRequest struct {
	After string `json:"after"` // Next of the page before; "" from the start
	Limit int    `json:"limit"` // entries, 1..MaxInventoryEntries; others mean that maximum
	// Copies asks for InventoryEntry.Copies too. A node of before that leaves them out.
	Copies bool `json:"copies,omitempty"`
}

// InventoryResult is one page. What is renamed between two pages may stand in
// both, or in none; the next pass finds it.
type InventoryResult struct {
	Entries []InventoryEntry `json:"entries"`
	Next    string           `json:"next"` // token of the next page; "" when this is the last one
}

// InventoryKind is what an entry is, by its name and place.
type InventoryKind string

// The kinds.
const (
	InventoryServing    InventoryKind = "serving"    // it stands under a topic's name
	InventoryQuarantine InventoryKind = "quarantine" // `<topic>.stale-<incarnation>`: set aside
	InventorySuperseded InventoryKind = "superseded" // `<topic>.quarantine`: a copy that was replaced
	InventoryStaging    InventoryKind = "staging"    // being made, or left over from that
	InventoryForeign    InventoryKind = "foreign"    // no name of Narad's
)

// InventoryEntry is one directory as it was when the page was read.
type InventoryEntry struct {
	Kind        InventoryKind     `json:"kind"`
	Name        string            `json:"name"`        // below the data directory; invalid UTF-8 is replaced
	Topic       string            `json:"topic"`       // whose it is or was; "" when foreign
	Incarnation topic.Incarnation `json:"incarnation"` // of its marker; 0: unsure, it has no valid one
	Partitions  []int32           `json:"partitions"`  // copies in it, in order
	Bytes       int64             `json:"bytes"`       // of its partitions' files; -1: not measured
	Unreadable  bool              `json:"unreadable"`  // its marker or content could not be read: what stands here is no proof
	// Copies are those of partitions that moved away and are out of the partition's
	// name: none unless asked for.
	Copies []InventoryCopy `json:"copies,omitempty"`
}

// InventoryCopy is one copy that was replaced: quarantine, because it may have what
// nobody else has, or superseded, when its removal was interrupted.
type InventoryCopy struct {
	Kind      InventoryKind `json:"kind"`
	Name      string        `json:"name"` // below the data directory
	Partition int32         `json:"partition"`
	Copy      topic.ID64    `json:"copy"`
	Bytes     int64         `json:"bytes"`    // -1: not measured
	SinceMS   int64         `json:"since_ms"` // Unix ms of when it was set aside; 0: not known
	Reason    string        `json:"reason"`   // why, for people
}
