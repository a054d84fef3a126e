package nodeapi

import (
	"encoding/binary"
	"fmt"

	"github.com/narad-mq/narad/libs/rpc/wire"
	"github.com/narad-mq/narad/libs/topic"
)

// Bodies of the data operations, version 1. Integers are big-endian or varints
// as package wire says: u8, u32, u64 fixed, uv unsigned varint, v zigzag
// varint, str and bytes a uv length and the bytes.
//
//	ref       str topic, u64 incarnation, uv partition
//	target    ref, u64 disk id, u32 leader epoch
//
//	commit    request  u8 1, target, then the batch up to the end
//	          reply    u8 1, u32 epoch, v high watermark, v base offset, uv appended, uv duplicates
//
//	claim     request  u8 1, str gateway, uv n, n claims:
//	                     str topic, u64 incarnation, u8 arm (0, 1),
//	                     uv n, n times: uv partition, u64 disk id, u32 epoch
//	                     uv n, n times: uv max, uv max bytes, uv visibility ms
//	          reply    u8 1, ids, uv deliveries in total, uv n, n answers:
//	                     uv n, n times: u8 status
//	                     uv takers, each: uv n, n deliveries:
//	                       uv partition, uv offset, u32 epoch, 12 bytes nonce, v commit ms,
//	                       uv delivery count, uv lease ms, uv id length, bytes body
//
//	settle    request  u8 1, uv n, n refs, uv n, n ops:
//	                     uv ref (index), u8 kind, uv offset, u32 epoch, 12 bytes nonce, v argument ms
//	          reply    u8 1, uv n, n times: u8 status
//
//	read      request  u8 1, target, v offset, v since ms, uv limit, uv max bytes, u8 confirmed (0, 1)
//	          reply    u8 1, v log start, v next offset, v high watermark, ids, uv n, n records:
//	                     uv offset, v commit ms, uv id length, bytes body
//
// ids is a bytes with every message id of the body back to back, in the order
// of the records; each record says how many of the bytes are its own. So all
// ids of an answer are one string, cut up. TestGolden holds the bytes.
const version = 1

// Bounds of the requests that only this package knows; the storage node and the
// gateway keep below them by their own limits.
const (
	// MaxClaims is how many topics one call may ask about.
	MaxClaims = 4096
	// MaxTakers is how many consumers may wait for one topic in one call: as
	// many as a gateway parks.
	MaxTakers = 10_000
	// MaxSettleOps is how many settlements one call may carry: 16 batch requests of 1,000.
	MaxSettleOps = 16_000
	// MaxAnswerBytes is where a node stops filling a claim or read answer: payload
	// bytes after which no further taker is served. The last one may go past it
	// by what it asked for (16 MiB at most).
	MaxAnswerBytes = 32 << 20

	maxNodeID    = 253     // a DNS name
	maxMessageID = 128     // package record writes at most 48
	maxTake      = 1000    // records per taker
	maxBody      = 8 << 20 // one encoded message: 4 MiB of payload and its attributes
)

func appendRef(b []byte, r topic.Ref) []byte {
	b = wire.AppendString(b, r.Topic)
	b = binary.BigEndian.AppendUint64(b, uint64(r.Incarnation))
	return binary.AppendUvarint(b, uint64(r.Partition))
}

func readRef(r *wire.Reader) topic.Ref {
	return topic.Ref{
		Topic: r.String(topic.MaxNameLength), Incarnation: topic.Incarnation(r.U64()), Partition: int32(r.Int()),
	}
}

func appendTarget(b []byte, t Target) []byte {
	b = appendRef(b, t.Ref)
	b = binary.BigEndian.AppendUint64(b, uint64(t.DiskID))
	return binary.BigEndian.AppendUint32(b, uint32(t.Epoch))
}

func readTarget(r *wire.Reader) Target {
	return Target{Ref: readRef(r), DiskID: topic.ID64(r.U64()), Epoch: topic.Epoch(r.U32())}
}

// open starts a body and checks its version.
func open(b []byte) wire.Reader {
	r := wire.NewReader(b)
	if r.U8() != version {
		r.Fail()
	}
	return r
}

func done(r *wire.Reader, what string) error {
	if err := r.Done(); err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

// appendCommitHead appends what stands before the batch.
func appendCommitHead(b []byte, req *CommitRequest) []byte {
	return appendTarget(append(b, version), req.Target)
}

// decodeCommit reads a request; Batch is a view of b.
func decodeCommit(b []byte) (*CommitRequest, error) {
	r := open(b)
	req := &CommitRequest{Target: readTarget(&r)}
	req.Batch = r.Rest()
	return req, done(&r, "commit request")
}

func appendCommitResult(b []byte, res *CommitResult) []byte {
	b = binary.BigEndian.AppendUint32(append(b, version), uint32(res.Epoch))
	b = binary.AppendVarint(b, res.HighWatermark)
	b = binary.AppendVarint(b, res.BaseOffset)
	b = binary.AppendUvarint(b, uint64(res.Appended))
	return binary.AppendUvarint(b, uint64(res.Duplicates))
}

func decodeCommitResult(b []byte) (*CommitResult, error) {
	r := open(b)
	res := &CommitResult{
		Epoch: topic.Epoch(r.U32()), HighWatermark: r.Varint(), BaseOffset: r.Varint(),
		Appended: r.Int(), Duplicates: r.Int(),
	}
	return res, done(&r, "commit reply")
}

func appendReadRequest(b []byte, req *ReadRequest) []byte {
	b = appendTarget(append(b, version), req.Target)
	b = binary.AppendVarint(b, req.Offset)
	b = binary.AppendVarint(b, req.SinceMS)
	b = binary.AppendUvarint(b, uint64(req.Limit))
	return appendFlag(binary.AppendUvarint(b, uint64(req.MaxBytes)), req.Confirmed)
}

func decodeReadRequest(b []byte) (*ReadRequest, error) {
	r := open(b)
	req := &ReadRequest{
		Target: readTarget(&r), Offset: r.Varint(), SinceMS: r.Varint(), Limit: r.Int(), MaxBytes: r.Int(), Confirmed: readFlag(&r),
	}
	return req, done(&r, "read request")
}

func appendReadResult(b []byte, res *ReadResult) []byte {
	b = binary.AppendVarint(append(b, version), res.LogStart)
	b = binary.AppendVarint(b, res.NextOffset)
	b = binary.AppendVarint(b, res.HighWatermark)
	total := 0
	for i := range res.Records {
		total += len(res.Records[i].ID)
	}
	b = binary.AppendUvarint(b, uint64(total))
	for i := range res.Records {
		b = append(b, res.Records[i].ID...)
	}
	b = binary.AppendUvarint(b, uint64(len(res.Records)))
	for i := range res.Records {
		rec := &res.Records[i]
		b = binary.AppendUvarint(b, uint64(rec.Offset))
		b = binary.AppendVarint(b, rec.CommitMS)
		b = binary.AppendUvarint(b, uint64(len(rec.ID)))
		b = wire.AppendBytes(b, rec.Body)
	}
	return b
}

// minRecord is the fewest bytes of a record in a read reply.
const minRecord = 4

// decodeReadResult reads a reply; the bodies are views of b.
func decodeReadResult(b []byte) (*ReadResult, error) {
	r := open(b)
	res := &ReadResult{LogStart: r.Varint(), NextOffset: r.Varint(), HighWatermark: r.Varint()}
	ids := newIDs(&r)
	n := r.Count(maxTake, minRecord)
	if n > 0 {
		res.Records = make([]ReadRecord, n)
	}
	for i := range res.Records {
		res.Records[i] = ReadRecord{Offset: r.Int64(), CommitMS: r.Varint(), ID: ids.next(&r), Body: r.Bytes(maxBody)}
	}
	ids.done(&r)
	return res, done(&r, "read reply")
}

// ids cuts one string of all message ids into the single ones.
type ids struct{ rest string }

func newIDs(r *wire.Reader) ids { return ids{rest: r.String(maxRequestTakes * maxMessageID)} }

func (s *ids) next(r *wire.Reader) string {
	n := int(r.Uvarint(maxMessageID))
	if n > len(s.rest) {
		r.Fail()
		return ""
	}
	id := s.rest[:n]
	s.rest = s.rest[n:]
	return id
}

// done refuses ids that belong to no record.
func (s *ids) done(r *wire.Reader) {
	if s.rest != "" {
		r.Fail()
	}
}
