package election

import (
	"context"

	"github.com/narad-mq/narad/libs/topic"
)

// Nodes is how an election reaches storage nodes. Safe for concurrent use. Every
// call ends by its ctx; an error is no answer.
type Nodes interface {
	// Fence asks a node to promise epochs: one answer per item, in order.
	Fence(ctx context.Context, node string, items []Fence) ([]Promise, error)
	// Prime gives the node that is to lead what the others know of positions; an
	// answer means that it keeps them until the leadership begins.
	Prime(ctx context.Context, node string, items []Prime) error
	// HandOver asks a leader to stop appending until a follower has all it has;
	// one answer per item tells whether it was reached. One that names no follower lets
	// the leader go on.
	HandOver(ctx context.Context, node string, items []HandOver) ([]bool, error)
	// Standing asks a node how it stands to partitions: one answer per item.
	Standing(ctx context.Context, node string, refs []topic.Ref) ([]Standing, error)
}

// Fence asks one replica to serve nothing below an epoch any more.
type Fence struct {
	topic.Ref
	Replica topic.Replica // that is meant
	Epoch   topic.Epoch
}

// Promise is a replica's answer to a Fence.
type Promise struct {
	OK        bool        // it promised the epoch, durably, and what follows is what it has
	LastEpoch topic.Epoch // of its last batch
	LEO       int64       // its synced end
	Damaged   bool        // it cannot read some of that, so it must not lead
	// Settled is the newest epoch that it has led in this process and could serve
	// under; everything committed up to that epoch lies below HWM.
	Settled topic.Epoch
	HWM     int64
	// Generation of the consumer positions, which a seek raises, and the positions.
	Generation uint64
	Positions  []byte
}

// Prime is the positions from which a new leader starts.
type Prime struct {
	topic.Ref
	Epoch     topic.Epoch
	Positions [][]byte // of the highest generation, one per replica that has it
}

// HandOver names the follower that is to lead; the zero replica: none, there is no hand-over.
type HandOver struct {
	topic.Ref
	Epoch topic.Epoch
	To    topic.Replica
}

// Standing is how a node stands to a partition.
type Standing struct {
	Leads        bool  // it leads it and can serve
	FetchedAgoMS int64 // since its last answered fetch of it; negative: never
	Lost         bool  // the only copy is recorded to be on its disk and is not there
}
