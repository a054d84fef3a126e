package fanout

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/topic"
)

// Record is one committed record of the parent.
type Record struct {
	Offset int64
	Epoch  topic.Epoch // of the leader that committed it
	Body   []byte      // encoded message
}

// Slab is what was read for one round: all records of [Round.From, To), in order,
// but for those that hold no message.
type Slab struct {
	To      int64
	Records []Record
	// Unreadable counts records whose content is no message: no consumer of the
	// parent gets them either.
	Unreadable int64
}

// group sorts the records of members by bucket, each from where the bucket stands.
func (s *Slab) group(c *Cursor, members []bool) [][]Record {
	groups := make([][]Record, len(members))
	for i := range s.Records {
		r := &s.Records[i]
		v, err := record.ParseBody(r.Body)
		if err != nil {
			s.Unreadable++
			continue
		}
		b := Bucket(v.Key, c.cfg.Partition, r.Offset, c.cfg.Count)
		if members[b] && r.Offset >= c.buckets[b].done {
			groups[b] = append(groups[b], *r)
		}
	}
	return groups
}

// maxBatch is where a batch for a child ends, in bytes of messages: it shares the
// child's disk and the way there with what gateways send. One message always fits.
const maxBatch = 1 << 20

// Build encodes as many of the records as go into one batch: one leader epoch, up to
// maxBatch bytes. n is how many; the rest goes into others. b holds the batch.
func (w *Work) Build(b *record.Builder, s record.Stream) (n int, err error) {
	epoch := w.Records[0].Epoch
	b.Reset(s, uint32(epoch), record.Oldest{})
	for i := range w.Records {
		r := &w.Records[i]
		if r.Epoch != epoch || i > 0 && b.Size()+len(r.Body) > maxBatch {
			return i, nil
		}
		err := b.Add(uint64(r.Offset), r.Body)
		if errors.Is(err, record.ErrFull) && i > 0 {
			return i, nil
		}
		if err != nil {
			return 0, fmt.Errorf("build a batch for a child at offset %d: %w", r.Offset, err)
		}
	}
	return len(w.Records), nil
}

// Rest takes the first n records off, which are committed, and returns where the
// bucket stands then.
func (w *Work) Rest(n int) (done int64) {
	w.Records = w.Records[n:]
	if len(w.Records) == 0 {
		return w.Until
	}
	return w.Records[0].Offset
}
