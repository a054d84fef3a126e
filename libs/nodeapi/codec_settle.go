package nodeapi

import (
	"encoding/binary"

	"github.com/narad-mq/narad/libs/topic"
)

const (
	// lookBack is how many of the last refs are compared before one is written
	// again: settlements of one call come in runs of few partitions, and a table
	// that holds a ref twice is as good.
	lookBack = 16

	minRef      = 10
	minSettleOp = 20
)

// appendSettleRequest writes the refs of the operations once, then the operations.
func appendSettleRequest(b []byte, req *SettleRequest) []byte {
	var near [64]topic.Ref // most calls concern few partitions
	refs := near[:0]
	at := make([]uint16, len(req.Ops))
	for i := range req.Ops {
		at[i] = uint16(len(refs))
		for j := len(refs) - 1; j >= 0 && j >= len(refs)-lookBack; j-- {
			if refs[j] == req.Ops[i].Ref {
				at[i] = uint16(j)
				break
			}
		}
		if int(at[i]) == len(refs) {
			refs = append(refs, req.Ops[i].Ref)
		}
	}
	b = binary.AppendUvarint(append(b, version), uint64(len(refs)))
	for _, r := range refs {
		b = appendRef(b, r)
	}
	b = binary.AppendUvarint(b, uint64(len(req.Ops)))
	for i := range req.Ops {
		op := &req.Ops[i]
		b = binary.AppendUvarint(b, uint64(at[i]))
		b = binary.AppendUvarint(append(b, byte(op.Kind)), uint64(op.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(op.Epoch))
		b = append(b, op.Nonce[:]...)
		b = binary.AppendVarint(b, op.ArgMS)
	}
	return b
}

func decodeSettleRequest(b []byte) (*SettleRequest, error) {
	r := open(b)
	refs := make([]topic.Ref, r.Count(MaxSettleOps, minRef))
	for i := range refs {
		refs[i] = readRef(&r)
	}
	req := &SettleRequest{}
	if n := r.Count(MaxSettleOps, minSettleOp); n > 0 {
		req.Ops = make([]SettleOp, n)
	}
	for i := range req.Ops {
		at := r.Int()
		if at >= len(refs) {
			r.Fail()
			break
		}
		op := &req.Ops[i]
		op.Ref, op.Kind = refs[at], SettleKind(r.U8())
		if op.Kind < SettleAck || op.Kind > SettleRelease {
			r.Fail()
		}
		op.Offset, op.Epoch = r.Int64(), topic.Epoch(r.U32())
		copy(op.Nonce[:], r.Raw(len(op.Nonce)))
		op.ArgMS = r.Varint()
	}
	return req, done(&r, "settle request")
}

func appendSettleResult(b []byte, res *SettleResult) []byte {
	b = binary.AppendUvarint(append(b, version), uint64(len(res.Statuses)))
	for _, s := range res.Statuses {
		b = append(b, byte(s))
	}
	return b
}

func decodeSettleResult(b []byte) (*SettleResult, error) {
	r := open(b)
	res := &SettleResult{}
	if n := r.Count(MaxSettleOps, 1); n > 0 {
		res.Statuses = make([]SettleStatus, n)
	}
	for i := range res.Statuses {
		res.Statuses[i] = SettleStatus(r.U8())
		if res.Statuses[i] > SettleUnavailable {
			r.Fail()
		}
	}
	return res, done(&r, "settle reply")
}
