// Package batches keeps batches of partition logs in decoded form, so that
// consuming a batch record by record decompresses and checks it once.
//
// Invariant: a Batch is immutable and owns its bytes; whoever holds one may use
// it, and slices of it, for as long as it likes, also after the cache has let
// go of it. The cache holds a bounded number of bytes (TestCacheIsBounded) and
// has no lock that all partitions share. What was asked for last is always kept
// (TestTheBatchInUseStays), and decoded once (TestRawIsDecodedOnce).
//
// It reads no file: the partition loads, the cache remembers.
package batches

import (
	"fmt"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Batch is one decoded batch of a partition log.
type Batch struct {
	Base     int64 // offset of the first record
	Count    int   // offsets that it takes
	CommitMS int64
	Epoch    topic.Epoch
	Control  bool // takes its offset and delivers nothing

	stream   record.Stream
	numEpoch uint32
	seqs     []uint64
	ends     []uint32 // end of each body in data
	data     []byte   // bodies, one after another
}

// End is the offset after the last one that the batch takes.
func (b *Batch) End() int64 { return b.Base + int64(b.Count) }

// Body is the encoded message of the record at off, which must lie in a batch
// that is no control batch. It must not be changed.
func (b *Batch) Body(off int64) []byte {
	i := off - b.Base
	start := uint32(0)
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.data[start:b.ends[i]:b.ends[i]]
}

// MessageID is the id of the record at off, as users see it.
func (b *Batch) MessageID(off int64) string {
	return record.MessageID(b.stream, record.Number{Epoch: b.numEpoch, Seq: b.seqs[off-b.Base]})
}

// overhead is what a kept batch costs beside its records, in bytes.
const overhead = 240

// size is what the batch costs in memory, in bytes.
func (b *Batch) size() int { return overhead + len(b.data) + 12*len(b.ends) }

// Decode decodes one placed and verified batch. It keeps nothing of raw, and
// does not put the batch into the cache.
func (c *Cache) Decode(raw []byte) (*Batch, error) {
	d, ok := c.decoders.Get().(*record.Decoder)
	if !ok {
		d = new(record.Decoder)
	}
	defer c.decoders.Put(d)
	if err := d.Reset(raw); err != nil {
		return nil, fmt.Errorf("decode batch: %w", err)
	}
	h := d.Header()
	b := &Batch{
		Base: h.BaseOffset, Count: h.Count, CommitMS: h.CommitMS, Epoch: h.LeaderEpoch,
		Control: h.Control, stream: h.Stream, numEpoch: h.NumEpoch,
	}
	if h.Control {
		return b, nil
	}
	b.data = make([]byte, 0, h.RawLen)
	b.seqs, b.ends = make([]uint64, 0, h.Count), make([]uint32, 0, h.Count)
	for r, ok := d.Next(); ok; r, ok = d.Next() {
		b.data = append(b.data, r.Body...)
		b.seqs, b.ends = append(b.seqs, r.Number.Seq), append(b.ends, uint32(len(b.data)))
	}
	if err := d.Err(); err != nil {
		return nil, fmt.Errorf("decode batch at offset %d: %w", h.BaseOffset, err)
	}
	return b, nil
}
