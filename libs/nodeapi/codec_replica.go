package nodeapi

import (
	"encoding/binary"
	"slices"

	"github.com/narad-mq/narad/libs/rpc/wire"
	"github.com/narad-mq/narad/libs/topic"
)

// Bodies of replication, version 1, in the terms of codec.go:
//
//	fetch     request  u8 1, str from, u64 disk, u64 boot, uv wait ms, uv max bytes, uv n, n partitions:
//	                     target, u64 copy, uv offset, u32 last epoch, uv high watermark,
//	                     uv position version seen, uv confirm round, uv max bytes, u8 observer (0, 1)
//	          reply    u8 1, uv n, n answers, ascending by index:
//	                     uv index, u8 status, u32 epoch, uv high watermark, uv log start,
//	                     u32 diverging epoch, uv its end, uv confirm round,
//	                     uv position version, uv position generation, u8 position follows (0, 1), [bytes position],
//	                     bytes batches, bytes snapshot
//
//	fence     request  u8 1, u8 with positions (0, 1), uv n, n targets
//	          reply    u8 1, uv n, n answers:
//	                     u8 status, u32 promised epoch, u32 last epoch, uv log end, uv high watermark, u32 settled epoch, u64 copy id,
//	                     u8 position left out (0, 1), uv position generation, u8 position follows (0, 1), [bytes position]
//
// A position that follows may be empty; one that does not is nil. Handover is
// JSON. TestReplicaGolden holds the bytes.

// The fewest bytes of a thing on the wire, and the most of what is opaque here.
const (
	minTarget         = minRef + 12
	minFetchPartition = minTarget + 18
	minFetchAnswer    = 19
	minFenceAnswer    = 26

	maxFetchHead = 96 // of an answer, without what is opaque

	maxPosition = 8 << 20 // partlog.MaxPosition
	maxSnapshot = 4 << 20 // partlog.MaxStart
	maxBatches  = MaxFetchBytes + 17<<20
)

func appendFlag(b []byte, set bool) []byte {
	if set {
		return append(b, 1)
	}
	return append(b, 0)
}

func readFlag(r *wire.Reader) bool {
	v := r.U8()
	if v > 1 {
		r.Fail()
	}
	return v == 1
}

func appendPosition(b, position []byte) []byte {
	b = appendFlag(b, position != nil)
	if position != nil {
		b = wire.AppendBytes(b, position)
	}
	return b
}

func readPosition(r *wire.Reader) []byte {
	if !readFlag(r) {
		return nil
	}
	return r.Bytes(maxPosition)
}

func appendFetchRequest(b []byte, req *FetchRequest) []byte {
	b = wire.AppendString(append(b, version), req.From)
	b = binary.BigEndian.AppendUint64(b, uint64(req.Disk))
	b = binary.BigEndian.AppendUint64(b, uint64(req.Boot))
	b = binary.AppendUvarint(b, uint64(req.WaitMS))
	b = binary.AppendUvarint(b, uint64(req.MaxBytes))
	b = binary.AppendUvarint(b, uint64(len(req.Partitions)))
	for i := range req.Partitions {
		p := &req.Partitions[i]
		b = appendTarget(b, p.Target)
		b = binary.BigEndian.AppendUint64(b, uint64(p.Copy))
		b = binary.AppendUvarint(b, uint64(p.Offset))
		b = binary.BigEndian.AppendUint32(b, uint32(p.LastEpoch))
		b = binary.AppendUvarint(b, uint64(p.HWM))
		b = binary.AppendUvarint(b, p.PositionSeen)
		b = binary.AppendUvarint(b, p.Round)
		b = binary.AppendUvarint(b, uint64(p.MaxBytes))
		b = appendFlag(b, p.Observer)
	}
	return b
}

func decodeFetchRequest(b []byte) (*FetchRequest, error) {
	r := open(b)
	req := &FetchRequest{
		From: r.String(maxNodeID), Disk: topic.ID64(r.U64()), Boot: topic.ID64(r.U64()),
		WaitMS: int(r.Uvarint(MaxFetchWaitMS)), MaxBytes: int(r.Uvarint(MaxFetchBytes)),
	}
	if n := r.Count(MaxFetchPartitions, minFetchPartition); n > 0 {
		req.Partitions = make([]FetchPartition, n)
	}
	for i := range req.Partitions {
		if r.Bad() {
			break
		}
		req.Partitions[i] = FetchPartition{
			Target: readTarget(&r), Copy: topic.ID64(r.U64()), Offset: r.Int64(), LastEpoch: topic.Epoch(r.U32()), HWM: r.Int64(),
			PositionSeen: r.Uvarint(1<<64 - 1), Round: r.Uvarint(1<<64 - 1), MaxBytes: int(r.Uvarint(MaxFetchBytes)), Observer: readFlag(&r),
		}
	}
	return req, done(&r, "fetch request")
}

// minView is from how many bytes on batches are a part of their own: below it a write
// to the connection costs more than the copy.
const minView = 16 << 10

// appendFetchResult gives a reply in parts: the first is appended to b, and large batches
// are not copied.
func appendFetchResult(b []byte, res *FetchResult) [][]byte {
	size := minFetchAnswer
	for i := range res.Partitions {
		a := &res.Partitions[i]
		size += maxFetchHead + len(a.Position) + len(a.Snapshot)
		if len(a.Batches) < minView {
			size += len(a.Batches)
		}
	}
	b = slices.Grow(b, size) // once, and so the parts stay where they are
	var parts [][]byte
	b = binary.AppendUvarint(append(b, version), uint64(len(res.Partitions)))
	for i := range res.Partitions {
		a := &res.Partitions[i]
		b = binary.AppendUvarint(b, uint64(a.Index))
		b = binary.BigEndian.AppendUint32(append(b, byte(a.Status)), uint32(a.Epoch))
		b = binary.AppendUvarint(b, uint64(a.HWM))
		b = binary.AppendUvarint(b, uint64(a.LogStart))
		b = binary.BigEndian.AppendUint32(b, uint32(a.Diverge))
		b = binary.AppendUvarint(b, uint64(a.DivergeEnd))
		b = binary.AppendUvarint(b, a.Round)
		b = binary.AppendUvarint(b, a.PositionVersion)
		b = binary.AppendUvarint(b, a.PositionGeneration)
		b = appendPosition(b, a.Position)
		if len(a.Batches) < minView {
			b = wire.AppendBytes(b, a.Batches)
		} else {
			b = binary.AppendUvarint(b, uint64(len(a.Batches)))
			parts = append(parts, b, a.Batches)
			b = b[len(b):]
		}
		b = wire.AppendBytes(b, a.Snapshot)
	}
	return append(parts, b)
}

// decodeFetchResult reads a reply; positions, batches and snapshots are views of b.
func decodeFetchResult(b []byte) (*FetchResult, error) {
	r := open(b)
	res := &FetchResult{}
	if n := r.Count(MaxFetchPartitions, minFetchAnswer); n > 0 {
		res.Partitions = make([]FetchAnswer, n)
	}
	last := -1
	for i := range res.Partitions {
		if r.Bad() {
			break
		}
		a := &res.Partitions[i]
		*a = FetchAnswer{
			Index: int(r.Uvarint(MaxFetchPartitions - 1)), Status: FetchStatus(r.U8()), Epoch: topic.Epoch(r.U32()),
			HWM: r.Int64(), LogStart: r.Int64(), Diverge: topic.Epoch(r.U32()), DivergeEnd: r.Int64(), Round: r.Uvarint(1<<64 - 1),
			PositionVersion: r.Uvarint(1<<64 - 1), PositionGeneration: r.Uvarint(1<<64 - 1), Position: readPosition(&r),
			Batches: r.Bytes(maxBatches), Snapshot: r.Bytes(maxSnapshot),
		}
		if a.Index <= last || a.Status > lastFetchStatus {
			r.Fail()
		}
		last = a.Index
	}
	return res, done(&r, "fetch reply")
}

func appendFenceRequest(b []byte, req *FenceRequest) []byte {
	b = appendFlag(append(b, version), req.WithPositions)
	b = binary.AppendUvarint(b, uint64(len(req.Items)))
	for _, it := range req.Items {
		b = appendTarget(b, it)
	}
	return b
}

func decodeFenceRequest(b []byte) (*FenceRequest, error) {
	r := open(b)
	req := &FenceRequest{WithPositions: readFlag(&r)}
	if n := r.Count(MaxFenceItems, minTarget); n > 0 {
		req.Items = make([]FenceItem, n)
	}
	for i := range req.Items {
		if r.Bad() {
			break
		}
		req.Items[i] = readTarget(&r)
	}
	return req, done(&r, "fence request")
}

func appendFenceResult(b []byte, res *FenceResult) []byte {
	b = binary.AppendUvarint(append(b, version), uint64(len(res.Answers)))
	for i := range res.Answers {
		a := &res.Answers[i]
		b = binary.BigEndian.AppendUint32(append(b, byte(a.Status)), uint32(a.PromisedEpoch))
		b = binary.BigEndian.AppendUint32(b, uint32(a.LastEpoch))
		b = binary.AppendUvarint(b, uint64(a.LEO))
		b = binary.AppendUvarint(b, uint64(a.HWM))
		b = binary.BigEndian.AppendUint32(b, uint32(a.Settled))
		b = binary.BigEndian.AppendUint64(b, uint64(a.CopyID))
		b = appendFlag(b, a.PositionLeft)
		b = binary.AppendUvarint(b, a.PositionGeneration)
		b = appendPosition(b, a.Position)
	}
	return b
}

// decodeFenceResult reads a reply; positions are views of b.
func decodeFenceResult(b []byte) (*FenceResult, error) {
	r := open(b)
	res := &FenceResult{}
	if n := r.Count(MaxFenceItems, minFenceAnswer); n > 0 {
		res.Answers = make([]FenceAnswer, n)
	}
	for i := range res.Answers {
		if r.Bad() {
			break
		}
		a := &res.Answers[i]
		*a = FenceAnswer{
			Status: FenceStatus(r.U8()), PromisedEpoch: topic.Epoch(r.U32()), LastEpoch: topic.Epoch(r.U32()),
			LEO: r.Int64(), HWM: r.Int64(), Settled: topic.Epoch(r.U32()), CopyID: topic.ID64(r.U64()),
			PositionLeft: readFlag(&r), PositionGeneration: r.Uvarint(1<<64 - 1), Position: readPosition(&r),
		}
		if a.Status > lastFenceStatus {
			r.Fail()
		}
	}
	return res, done(&r, "fence reply")
}
