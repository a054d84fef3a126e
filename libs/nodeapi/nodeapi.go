// Package nodeapi is the contract of a storage node: what gateways, peers and
// the sweeper may ask it. Interface, wire client and wire server stand side by
// side, and one test suite runs over an in-memory implementation and the wire.
//
// Every partition operation names incarnation, disk id and leader epoch, and the
// node checks each itself. Refusals are *problem.Problem; what a client could
// not send or did not hear is *rpc.TransportError, whose Sent tells whether the
// operation may have been done.
package nodeapi

import (
	"context"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/topic"
)

// Node is what a storage node does for others. Safe for concurrent use. Results
// may alias request or connection buffers only where a field says so.
type Node interface {
	// Commit appends one batch of a producer stream and answers when the high
	// watermark has passed everything in it, records that the partition already
	// had included. Refusals with applied "no": not_partition_leader (members
	// leader, leader_epoch), incarnation_mismatch (members live, given),
	// stale_epoch, damaged_batch, not_ready, partition_unavailable, overloaded, disk_full;
	// out_of_sequence (expected) for a record.StreamClient.
	// With applied "unknown": outcome_unknown (a failed write or sync).
	Commit(ctx context.Context, req *CommitRequest) (*CommitResult, error)
	// Claim leases records for takers that wait now, for several topics in one
	// call, and arms a wake-up where there is too little. It never waits.
	Claim(ctx context.Context, req *ClaimRequest) (*ClaimResult, error)
	// Settle acks, extends, nacks or releases leases; one status each, in order.
	Settle(ctx context.Context, req *SettleRequest) (*SettleResult, error)
	// Read returns committed records without leasing them (replay). Refusals:
	// offset_out_of_range (high_watermark), offset_gone (log_start),
	// not_partition_leader, partition_unavailable, not_ready, topic_changed.
	Read(ctx context.Context, req *ReadRequest) (*ReadResult, error)
	// Details reports partitions as their leader sees them.
	Details(ctx context.Context, req *DetailsRequest) (*DetailsResult, error)
	// Inventory lists what lies in the node's topic directories, in pages. It
	// reads the disk and judges nothing, so it answers before the node is ready.
	Inventory(ctx context.Context, req *InventoryRequest) (*InventoryResult, error)
	// Reclaim removes directories of ended incarnations, after the node itself has
	// had their end confirmed: one outcome per item, in order.
	Reclaim(ctx context.Context, req *ReclaimRequest) (*ReclaimResult, error)
}

// Target names a partition as the caller believes it to be.
type Target struct {
	topic.Ref
	DiskID topic.ID64  `json:"disk_id"` // of the replica that the caller means
	Epoch  topic.Epoch `json:"epoch"`   // leader epoch that the caller believes in
}

// CommitRequest is one batch for one partition.
type CommitRequest struct {
	Target
	Batch []byte // one batch as package record encodes it; unplaced (no offset, epoch, time)
}

// CommitResult tells what became of a batch.
type CommitResult struct {
	Epoch         topic.Epoch // under which it was committed
	HighWatermark int64
	BaseOffset    int64 // of the first record appended by this call, or of a client's record that is repeated; else -1
	Appended      int   // records appended by this call
	Duplicates    int   // records that the partition already had
}

// ClaimRequest is everything that one gateway wants of one node at one moment.
type ClaimRequest struct {
	Gateway string // node id, whom to wake
	Claims  []Claim
}

// Claim asks for records of one life of one topic.
type Claim struct {
	Topic       string
	Incarnation topic.Incarnation
	Partitions  []ClaimPartition // partitions that the caller believes this node leads
	Takers      []Taker          // whom to serve, in order; each gets at least one record or none
	Arm         bool             // leave a wake-up at each partition that had too little
}

// ClaimPartition is one partition of a Claim.
type ClaimPartition struct {
	Partition int32
	DiskID    topic.ID64
	Epoch     topic.Epoch
}

// Taker is one waiting consumer.
type Taker struct {
	Max          int   // records, 1..1000
	MaxBytes     int   // payload bytes together; the first record always fits
	VisibilityMS int64 // 0: the topic's
}

// ClaimStatus is how a partition answered a claim.
type ClaimStatus uint8

// The statuses.
const (
	ClaimMore        ClaimStatus = iota // it may have more to give
	ClaimEmpty                          // nothing more to give now; armed if asked
	ClaimCapped                         // at a cap of the topic: nothing until something settles; armed if asked
	ClaimNotLeader                      // this node does not lead it (or not under that epoch)
	ClaimUnavailable                    // it leads but cannot serve now
	ClaimGone                           // the incarnation is not the live one here
)

// ClaimResult answers a ClaimRequest, claim by claim in order.
type ClaimResult struct {
	Claims []ClaimAnswer
}

// ClaimAnswer answers one Claim.
type ClaimAnswer struct {
	Partitions []ClaimStatus // in the order of the claim
	Deliveries [][]Delivery  // by taker in the order of the claim; empty: nothing for it
}

// Nonce is the unguessable part of a lease.
type Nonce [12]byte

// Delivery is one leased record.
type Delivery struct {
	Partition     int32
	Offset        int64
	Epoch         topic.Epoch // of the lease: the leader's at the time
	Nonce         Nonce
	CommitMS      int64 // Unix ms, the partition clock
	DeliveryCount int
	LeaseMS       int64
	ID            string
	Body          []byte // encoded message, see package record
}

// SettleKind is what to do with a lease.
type SettleKind uint8

// The kinds.
const (
	SettleAck     SettleKind = 1
	SettleExtend  SettleKind = 2 // ArgMS: visibility from now
	SettleNack    SettleKind = 3 // ArgMS: delay before the next delivery
	SettleRelease SettleKind = 4 // the answer was never written: back at once, delivery not counted
)

// SettleRequest is a list of settlements, usually of many requests at once.
type SettleRequest struct {
	Ops []SettleOp
}

// SettleOp settles one lease.
type SettleOp struct {
	topic.Ref
	Kind   SettleKind
	Offset int64
	Epoch  topic.Epoch
	Nonce  Nonce
	ArgMS  int64
}

// SettleStatus is the outcome of one SettleOp.
type SettleStatus uint8

// The outcomes.
const (
	SettleOK          SettleStatus = iota // done, or a repeat of what was done
	SettleLost                            // no live lease with that nonce: 410
	SettleUnavailable                     // not the leader, or cannot serve now: 503, applied no
)

// SettleResult answers op by op, in order.
type SettleResult struct {
	Statuses []SettleStatus
}

// ReadRequest reads committed records from Offset, or from the first record
// committed at or after SinceMS when Offset is negative and SinceMS is not 0,
// or from the log start when both are unset (-1, 0).
type ReadRequest struct {
	Target
	Offset   int64
	SinceMS  int64
	Limit    int
	MaxBytes int
	// Confirmed asks the leader to make sure, by fetches of a majority that were
	// sent after the read began, that it still leads: then nothing that was
	// committed before is missing from the answer.
	Confirmed bool
}

// ReadResult is a page of committed records.
type ReadResult struct {
	LogStart      int64
	NextOffset    int64
	HighWatermark int64
	Records       []ReadRecord
}

// ReadRecord is one record of a page.
type ReadRecord struct {
	Offset   int64
	CommitMS int64
	ID       string
	Body     []byte
}

// DetailsRequest asks for partitions of one topic.
type DetailsRequest struct {
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
	Partitions  []int32           `json:"partitions"`
}

// DetailsResult has a row for each partition that this node leads.
type DetailsResult struct {
	Partitions []PartitionDetails `json:"partitions"`
}

// PartitionDetails is a partition as its leader sees it.
type PartitionDetails struct {
	Partition         int32            `json:"partition"`
	Epoch             topic.Epoch      `json:"epoch"`
	ConfigVersion     uint64           `json:"config_version"`
	LogStart          int64            `json:"log_start"`
	HighWatermark     int64            `json:"high_watermark"`
	LogEnd            int64            `json:"log_end"`
	Frontier          int64            `json:"frontier"`
	SettledAhead      int64            `json:"settled_ahead"`
	InFlight          int64            `json:"in_flight"`
	OldestUnsettledMS int64            `json:"oldest_unsettled_ms"` // age; 0: none
	DroppedUnsettled  int64            `json:"dropped_unsettled"`
	Bytes             int64            `json:"bytes"`
	Replicas          []ReplicaDetails `json:"replicas"`
	Problem           *problem.Problem `json:"problem,omitempty"` // it leads but cannot serve
}

// ReplicaDetails is one replica as the leader sees it.
type ReplicaDetails struct {
	ID     string `json:"id"`
	LogEnd int64  `json:"log_end"`
	Lag    int64  `json:"lag"`
	InSync bool   `json:"in_sync"`
}
