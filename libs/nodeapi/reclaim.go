package nodeapi

import "github.com/narad-mq/narad/libs/topic"

// MaxReclaimItems bounds one ReclaimRequest: what one confirm asks about
// (metaapi.MaxQuestions).
const MaxReclaimItems = 1000

// ReclaimRequest names directories of an inventory that are to be removed. That
// the caller had them confirmed counts for nothing: the node asks the metastore
// again, reads every marker again under the open guard, and removes only what
// still carries exactly the incarnation of the item, whose end is recorded.
// Refusals: invalid_request (too many items), not_ready (this node's replica has not
// caught up, or nobody confirms).
type ReclaimRequest struct {
	Items []ReclaimItem `json:"items"`
	// AllowLarge lets a request through that would take more than 100 directories
	// and more than a tenth of the node's: an operator has looked at it.
	AllowLarge bool `json:"allow_large"`
}

// ReclaimItem is an entry of an inventory as it was seen. What stands there now
// is compared with it.
type ReclaimItem struct {
	Kind        InventoryKind     `json:"kind"`
	Name        string            `json:"name"`
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
}

// ReclaimStatus is what became of one item.
type ReclaimStatus string

// The statuses.
const (
	Reclaimed ReclaimStatus = "reclaimed" // removed by this call
	Kept      ReclaimStatus = "kept"      // not removed, or not wholly; Reason says why
	Absent    ReclaimStatus = "absent"    // nothing stands under that name
)

// ReasonLarge is the reason of every item that a request without AllowLarge
// would have removed beside too many others.
const ReasonLarge = "too many directories at once; an operator has to allow it"

// ReclaimOutcome is the answer to one item.
type ReclaimOutcome struct {
	Status ReclaimStatus `json:"status"`
	Reason string        `json:"reason,omitempty"` // of Kept, for people
	Bytes  int64         `json:"bytes"`            // of the partitions' files, removed with Reclaimed, else 0
}

// ReclaimResult answers item by item, in order. A node stops in time to answer:
// items that it did not get to are kept, and can be asked for again.
type ReclaimResult struct {
	Outcomes []ReclaimOutcome `json:"outcomes"`
}
