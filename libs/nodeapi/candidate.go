package nodeapi

import (
	"context"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// Candidate is what the controller asks a storage node around an election,
// beside the fence, and other nodes about the copies of what it leads. Safe for
// concurrent use; every call may be repeated.
type Candidate interface {
	// Prime gives a copy that is about to lead the consumer positions that a
	// majority knows. It keeps them until the leadership of that epoch begins.
	Prime(ctx context.Context, req *PrimeRequest) error
	// Standing tells how the node stands to partitions, from memory but for those lost.
	Standing(ctx context.Context, req *StandingRequest) (*StandingResult, error)
	// Vouch tells what the node says, as a leader, about the copies of partitions,
	// from memory but for the pieces.
	Vouch(ctx context.Context, req *VouchRequest) (*VouchResult, error)
	// Pieces gives a copy the damaged bytes that the leader's copy keeps.
	Pieces(ctx context.Context, req *PiecesRequest) (*PiecesResult, error)
}

// PrimeRequest is positions for leaderships that are about to begin.
type PrimeRequest struct {
	Items []PrimeItem `json:"items"` // at most MaxFenceItems
}

// PrimeItem is the positions of one partition.
type PrimeItem struct {
	Target             // the copy that will lead, and under which epoch
	Positions [][]byte `json:"positions"` // snapshots of package lease, of one generation
}

// StandingRequest asks about partitions, at most MaxFetchPartitions.
type StandingRequest struct {
	Partitions []topic.Ref `json:"partitions"`
}

// StandingResult answers in the order of the request.
type StandingResult struct {
	Partitions []Standing `json:"partitions"`
}

// Standing is how a node stands to one partition.
type Standing struct {
	Leads bool `json:"leads"` // it leads it, and a majority still fetches from it
	// FetchedAgoMS is how long ago a fetch of it was answered; -1: never.
	FetchedAgoMS int64 `json:"fetched_ago_ms"`
	// Lost: the only copy is recorded to be on the node's disk, and is not there.
	Lost bool `json:"lost,omitempty"`
}

// Bounds of the bodies: the positions of one partition from as many replicas as
// it may have, in base64 and each as large as a queue makes them (4 MiB), and
// 8,192 partitions with the longest names.
const (
	maxPrimeBody     = 28 << 20
	maxStandingBody  = 4 << 20
	maxStandingReply = 1 << 20
)

var (
	methodPrime    = rpc.Method{Name: "prime", Class: rpc.ClassControl, MaxRequest: maxPrimeBody, MaxReply: maxSmallReply}
	methodStanding = rpc.Method{Name: "standing", Class: rpc.ClassControl, MaxRequest: maxStandingBody, MaxReply: maxStandingReply}
)

// nothing is the body of an answer that says no more than that it was done.
type nothing struct{}

// ServeCandidate registers the operations of c. Call it before the server serves.
func ServeCandidate(s *rpc.Server, c Candidate) {
	rpc.HandleJSON(s, methodPrime, func(ctx context.Context, req *PrimeRequest) (*nothing, error) {
		return &nothing{}, c.Prime(ctx, req)
	})
	rpc.HandleJSON(s, methodStanding, c.Standing)
	rpc.HandleJSON(s, methodVouch, c.Vouch)
	rpc.HandleJSON(s, methodPieces, c.Pieces)
}

var _ Candidate = (*ReplicaClient)(nil)

// Prime implements Candidate.
func (c *ReplicaClient) Prime(ctx context.Context, req *PrimeRequest) error {
	_, err := rpc.CallJSON[nothing](ctx, c.peer, methodPrime, req)
	return err
}

// Standing implements Candidate.
func (c *ReplicaClient) Standing(ctx context.Context, req *StandingRequest) (*StandingResult, error) {
	return rpc.CallJSON[StandingResult](ctx, c.peer, methodStanding, req)
}
