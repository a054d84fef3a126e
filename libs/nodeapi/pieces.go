package nodeapi

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

const (
	// MaxPieceList bounds the pieces that one answer lists: 128 bytes each.
	MaxPieceList = 256
	// MaxPieceBytes bounds the bytes of one answer: the copy that asks holds one whole
	// piece in memory, and the node that answers no more than this of each.
	MaxPieceBytes = 1 << 20

	maxPiecesReply = MaxPieceBytes/3*4 + 64<<10 // in base64
)

// PiecesRequest asks the leader of a partition which damaged bytes its copy keeps, or for
// some of them: a copy that is made of it keeps them too. Who asks is named as in a fetch.
// Refusals: not_ready, id_in_use (another process is registered under that id),
// not_partition_leader (it does not lead, or who asks is neither replica nor observer),
// stale_epoch, topic_changed, partition_unavailable, invalid_request. A node of the first
// release does not know the operation.
type PiecesRequest struct {
	From string     `json:"from"`
	Disk topic.ID64 `json:"disk"`
	Boot topic.ID64 `json:"boot"`
	Copy topic.ID64 `json:"copy"` // of the directory that asks
	Target
	// After lists the pieces above that name, at most MaxPieceList, and tells that those
	// up to there are on the disk of who asks. Nothing listed: there are no more.
	After string `json:"after"`
	// Name asks for bytes of one piece from Offset on instead, at most MaxBytes (and
	// MaxPieceBytes), at least one.
	Name     string `json:"name"`
	Offset   int64  `json:"offset"`
	MaxBytes int    `json:"max_bytes"`
}

// PiecesResult answers a PiecesRequest.
type PiecesResult struct {
	Pieces []Piece `json:"pieces"` // ascending by name
	Lacks  bool    `json:"lacks"`  // the leader has not got all that it awaits itself
	Lost   bool    `json:"lost"`   // more than the pieces is known to be missing in the leader's copy
	Bytes  []byte  `json:"bytes"`
}

// Piece is what a copy keeps of one damaged range.
type Piece struct {
	Name string `json:"name"` // see partlog.Piece
	Size int64  `json:"size"`
	CRC  uint32 `json:"crc"` // CRC-32C
}

var methodPieces = rpc.Method{Name: "pieces", Class: rpc.ClassFetch, MaxRequest: maxSmallReply, MaxReply: maxPiecesReply}

// Pieces implements Candidate. An answer of more than was asked for is not believed.
func (c *ReplicaClient) Pieces(ctx context.Context, req *PiecesRequest) (*PiecesResult, error) {
	res, err := rpc.CallJSON[PiecesResult](ctx, c.peer, methodPieces, req)
	if err == nil && (len(res.Pieces) > MaxPieceList || len(res.Bytes) > min(req.MaxBytes, MaxPieceBytes)) {
		return nil, c.lost(methodPieces, fmt.Errorf("%d pieces and %d bytes", len(res.Pieces), len(res.Bytes)))
	}
	return res, err
}
