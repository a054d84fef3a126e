package nodeapi

import (
	"context"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc"
	"github.com/narad-mq/narad/libs/topic"
)

// VouchRequest asks a node about partitions that it leads, at most
// MaxVouchPartitions, or MaxVouchHistories with their histories, or one with its pieces.
type VouchRequest struct {
	Partitions []topic.Ref `json:"partitions"`
	// Histories asks for Vouch.History too, which is what a copy that moved away is
	// compared with.
	Histories bool `json:"histories,omitempty"`
	// Pieces asks for Vouch.Pieces too, of one partition: a copy that moved away and was
	// damaged is compared with it. A leader of before that has none.
	Pieces bool `json:"pieces,omitempty"`
}

// MaxVouchPartitions bounds one VouchRequest: far above the moves that run at
// once, and a reply of some 200 bytes for each copy of each.
const MaxVouchPartitions = 1000

// MaxVouchHistories bounds one VouchRequest with histories: one of 4,096 epochs, the
// longest, is some 200 KB.
const MaxVouchHistories = 16

// EpochStart tells where the batches of an epoch begin in a log.
type EpochStart struct {
	Epoch topic.Epoch `json:"epoch"`
	Start int64       `json:"start"`
}

// Limit is how many partitions the request may name.
func (r *VouchRequest) Limit() int {
	switch {
	case r.Pieces:
		return 1
	case r.Histories:
		return MaxVouchHistories
	}
	return MaxVouchPartitions
}

// VouchResult answers in the order of the request.
type VouchResult struct {
	Partitions []Vouch `json:"partitions"`
}

// Vouch is what the leader of a partition says about its copies. Zero of a node
// that does not lead it. It holds while the metastore shows that epoch, that
// configuration and this leader.
type Vouch struct {
	Epoch         topic.Epoch `json:"epoch"` // 0: it does not lead
	ConfigVersion uint64      `json:"config_version"`
	Settled       bool        `json:"settled"` // the configuration is proven by a committed record
	// Proven tells that HWM covers everything that any epoch before committed: a record of
	// this one is committed, or this is a lone copy without a tail. Where Pieces were not
	// asked for, also that nothing of that is known to be missing here.
	Proven bool  `json:"proven"`
	HWM    int64 `json:"hwm"`
	Bytes  int64 `json:"bytes"` // of the log

	Copies []VouchedCopy `json:"copies"` // of the replicas, then of others that fetch

	History []EpochStart `json:"history,omitempty"` // of the log, ascending; none unless asked for

	// Pieces are the damaged bytes that the leader's copy keeps, its own and those of
	// copies that it was made from, as it has just read them; none unless asked for.
	Pieces []Piece `json:"pieces,omitempty"`
	// Lost tells, where Pieces were asked for, that more is known to be missing in the
	// leader's copy, which another one may have.
	Lost bool `json:"lost,omitempty"`
}

// VouchedCopy is one copy as the leader knows it.
type VouchedCopy struct {
	topic.Replica
	Near         bool  `json:"near"`         // an observer that lacks at most quorum.CatchUpBytes
	Readmissible bool  `json:"readmissible"` // it has everything that the lost copy of its node had to have
	MissingBytes int64 `json:"missing_bytes"`
	HeardAgoMS   int64 `json:"heard_ago_ms"` // of its last fetch in this epoch; -1: none
	LEO          int64 `json:"leo"`
}

// Copy returns what is vouched for a node's copy.
func (v *Vouch) Copy(node string) (VouchedCopy, bool) {
	for _, c := range v.Copies {
		if c.Node == node {
			return c, true
		}
	}
	return VouchedCopy{}, false
}

const (
	maxVouchBody  = 1 << 20 // 1,000 partitions with the longest names
	maxVouchReply = 4 << 20
)

var methodVouch = rpc.Method{Name: "vouch", Class: rpc.ClassControl, MaxRequest: maxVouchBody, MaxReply: maxVouchReply}

// Vouch implements Candidate.
func (c *ReplicaClient) Vouch(ctx context.Context, req *VouchRequest) (*VouchResult, error) {
	if limit := req.Limit(); len(req.Partitions) > limit {
		return nil, c.tooMany(methodVouch, len(req.Partitions), limit)
	}
	res, err := rpc.CallJSON[VouchResult](ctx, c.peer, methodVouch, req)
	if err == nil && len(res.Partitions) != len(req.Partitions) {
		return nil, c.lost(methodVouch, fmt.Errorf("%d answers for %d partitions", len(res.Partitions), len(req.Partitions)))
	}
	return res, err
}
