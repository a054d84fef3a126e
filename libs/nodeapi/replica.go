package nodeapi

import (
	"context"

	"github.com/narad-mq/narad/libs/topic"
)

// Replica is what the replicas of a partition, and the controller that elects
// among them, ask a storage node. It stands beside Node: only storage nodes and
// the controller use it. Safe for concurrent use.
type Replica interface {
	// Fetch asks the leader of each partition named for batches from an offset
	// on, and tells it thereby that everything below is on the fetcher's disk.
	// Each partition is judged on its own (FetchStatus); a refusal of the whole
	// call says that the caller is not the process that the metastore knows
	// under that node id (id_in_use), or that this node is not_ready.
	Fetch(ctx context.Context, req *FetchRequest) (*FetchResult, error)
	// Fence makes the copies of a node promise an epoch: each syncs the promise,
	// stops serving and answering fetches under older ones, and only then tells
	// what it has. Repeating it is harmless.
	Fence(ctx context.Context, req *FenceRequest) (*FenceResult, error)
	// Handover makes the leader stop appending until a wanted replica has all it
	// has, so that an election may choose that one, or append again when none comes.
	// Refusals: not_partition_leader, stale_epoch, not_ready, incarnation_mismatch.
	Handover(ctx context.Context, req *HandoverRequest) (*HandoverResult, error)
}

// Bounds of replication.
const (
	// MaxFetchPartitions is how many partitions one fetch may name: more than two
	// nodes share in a cluster that is not overfilled; beyond it a node fetches
	// in several calls.
	MaxFetchPartitions = 8192
	// MaxFetchWaitMS bounds the long poll: a fetcher that is cut off is missed
	// well within the 3 s for which a leader may believe in its majority.
	MaxFetchWaitMS = 500
	// MaxFetchBytes bounds what a fetch may ask for; the answer ends once it is
	// reached, and the last partition may go past it by one batch, its positions
	// and a snapshot.
	MaxFetchBytes = 32 << 20
	// MaxFenceItems is how many partitions one fence may name. A node that led
	// more is fenced in several calls, each of which waits for one sync a
	// partition.
	MaxFenceItems = 1024
	// MaxFenceBytes is where a node leaves out the positions of further items
	// (FenceAnswer.PositionLeft); the last one given may go past it.
	MaxFenceBytes = 16 << 20
	// MaxHandoverWaitMS is for how long a leader stops appending for a hand-over.
	MaxHandoverWaitMS = 500
)

// FetchRequest is what one node fetches from another: any of the partitions
// that the one has a copy of and the other leads. It names only partitions whose
// last bytes are synced, so that a slow one holds nobody back; several requests
// of one pair of nodes may be under way, such as one that waits for the idle
// partitions and one that goes round with the busy ones, but a partition stands
// in one of them only. Nothing is remembered between requests.
type FetchRequest struct {
	From       string     // node id of the fetcher
	Disk       topic.ID64 // its data disk
	Boot       topic.ID64 // boot nonce of its registration
	WaitMS     int        // how long to wait for news, at most MaxFetchWaitMS
	MaxBytes   int        // of the whole answer, at most MaxFetchBytes
	Partitions []FetchPartition
}

// FetchPartition is one partition of a fetch.
type FetchPartition struct {
	Target                // the disk is the leader's, the epoch the one that the fetcher believes in
	Copy      topic.ID64  // of the fetcher's directory: a replica is (From, Disk, Copy)
	Offset    int64       // its LEO: everything below is synced
	LastEpoch topic.Epoch // of the batch below Offset; 0: it has none
	// HWM is what the fetcher knows. A higher one is told with the next answer,
	// at the latest when the wait ends, and is no reason to answer early.
	HWM int64
	// PositionSeen is the FetchAnswer.PositionVersion that the fetcher stored
	// last from this leader under this epoch; 0: none.
	PositionSeen uint64
	// Round is the newest confirm round that the leader told under this epoch: a
	// leader that wants to know that it still leads waits until a majority names it.
	Round    uint64
	MaxBytes int  // of batches; one batch always fits
	Observer bool // it asks as an observer: it never counts
}

// FetchStatus is how a partition answered a fetch.
type FetchStatus uint8

// The statuses.
const (
	FetchOK          FetchStatus = iota // Batches follow Offset, or are empty
	FetchDiverging                      // (LastEpoch, Offset) is not on the leader's history: truncate by Diverge and fetch again
	FetchBelowStart                     // Offset is below LogStart: install Snapshot and fetch on from LogStart
	FetchNotLeader                      // the disk named does not lead it, or not yet
	FetchStaleEpoch                     // the fetcher's epoch is older than Epoch
	FetchNewerEpoch                     // the fetcher's epoch is newer: this leader steps down and looks
	FetchNotReplica                     // (From, Disk, Copy) is neither replica nor observer of it
	FetchUnavailable                    // it leads but cannot read now
	FetchGone                           // the incarnation is not the live one here

	lastFetchStatus = FetchGone
)

// FetchResult has an answer for each partition with news, in the order of the
// request. Those without any are left out: the leader leads them under the epoch
// named, and took note of the offset.
type FetchResult struct {
	Partitions []FetchAnswer

	release func()
}

// OnRelease sets what Release does: a server that answers with views of buffers
// that it will use again is told when the answer has been written. Call it once.
func (r *FetchResult) OnRelease(f func()) { r.release = f }

// Release ends the use of everything that Batches, Position and Snapshot show.
// A fetcher that calls it lets the buffer be used again; one that does not call
// it costs garbage only. It is harmless to call twice.
func (r *FetchResult) Release() {
	if f := r.release; f != nil {
		r.release = nil
		f()
	}
}

// FetchAnswer answers one FetchPartition. Of a refusal only Index, Status and
// Epoch say something, and Epoch may be 0 when it is not known.
type FetchAnswer struct {
	Index  int // of the FetchPartition
	Status FetchStatus
	Epoch  topic.Epoch // the leader's
	// HWM and LogStart of the leader. A follower's HWM is the smaller one of HWM
	// and its own LEO.
	HWM      int64
	LogStart int64
	// Diverge is, of FetchDiverging, the largest epoch of the leader's history
	// that is not above LastEpoch, and DivergeEnd where it ends. The fetcher
	// truncates to the smaller one of DivergeEnd and its own end of that epoch.
	Diverge    topic.Epoch
	DivergeEnd int64
	Round      uint64 // newest confirm round; the next fetch names it
	// PositionVersion is of Position, counted by the leader within its epoch.
	// Position is nil when the fetcher has seen that version. The generation
	// outlives leaders: a seek starts a new one.
	PositionVersion    uint64
	PositionGeneration uint64
	Position           []byte
	// Batches are whole batches as they are on the leader's disk, from Offset on;
	// the first one begins above Offset where the leader has a gap, which ends at
	// or below HWM.
	Batches []byte
	// Snapshot is the start of the leader's log (partlog.ExportStart).
	Snapshot []byte
}

// FenceRequest makes copies promise epochs.
type FenceRequest struct {
	// WithPositions asks for the consumer positions too, which the one that is to
	// lead needs and the controller does not.
	WithPositions bool
	Items         []FenceItem
}

// FenceItem is one copy: the disk is the asked replica's own, the epoch the one
// to promise.
type FenceItem = Target

// FenceStatus is how a copy answered a fence.
type FenceStatus uint8

// The statuses. Only a promise, also that of a damaged copy, counts toward a majority.
const (
	FencePromised    FenceStatus = iota // the epoch is promised, on disk, and what follows holds until it ends
	FenceStale                          // PromisedEpoch is newer, or the epoch has a leader already
	FenceNotHere                        // no copy of that incarnation and disk is here
	FenceLost                           // the copy is not the recorded one, or lacks what it had: it neither counts nor leads
	FenceUnavailable                    // it could not be opened, read or synced now
	FenceDamaged                        // as FencePromised, and it cannot read some of that: it must not lead

	lastFenceStatus = FenceDamaged
)

// FenceResult answers a FenceRequest, item by item in order.
type FenceResult struct {
	Answers []FenceAnswer
}

// FenceAnswer answers one FenceItem. Of a refusal only Status and PromisedEpoch
// say something.
type FenceAnswer struct {
	Status        FenceStatus
	PromisedEpoch topic.Epoch // the highest one promised
	LastEpoch     topic.Epoch // of the last synced batch
	LEO           int64       // synced end
	HWM           int64
	// Settled is the newest epoch that this process has led and could serve under, 0:
	// none. Everything that was ever committed under it and before lies below HWM.
	Settled topic.Epoch
	CopyID  topic.ID64
	// PositionLeft: the answer had no room for the positions; fence it again in a
	// call of its own.
	PositionLeft       bool
	PositionGeneration uint64
	Position           []byte // nil unless asked for
}

// HandoverRequest asks the leader to let a replica catch up with it.
type HandoverRequest struct {
	Target            // the leader's
	To     string     `json:"to"`      // node id of the wanted replica; empty: nobody is, and a leader that holds goes on
	ToDisk topic.ID64 `json:"to_disk"` // and its disk
}

// HandoverResult tells whether the wanted replica has everything. When it is
// ready the leader appends nothing before its epoch ends or a short time has
// passed; when it is not the leader goes on at once.
type HandoverResult struct {
	Ready bool  `json:"ready"`
	LEO   int64 `json:"leo"` // of the leader
}
