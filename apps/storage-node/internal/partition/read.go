package partition

import (
	"errors"
	"fmt"

	"github.com/narad-mq/narad/apps/storage-node/internal/batches"
	"github.com/narad-mq/narad/apps/storage-node/internal/queue"
	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/partlog"
	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
)

// readAhead is what one read of the log takes at once: with a warm cache most
// records of a backlog cost no system call of their own.
const readAhead = 256 << 10

var errLostOffsets = errors.New("no intact batch holds these offsets")

// Batch implements queue.Source.
func (p *Partition) Batch(off int64) (*batches.Batch, error) {
	p.used.Store(true)
	if off > p.asked.Load() {
		p.asked.Store(off) // a hint: of two at once either will do
	}
	hwm := p.hwm.Load()
	if b := p.s.Cache.Get(p.id, off); b != nil && b.End() <= hwm {
		return b, nil
	}
	buf, ok := p.s.buffers.Get().(*[]byte)
	if !ok {
		b := make([]byte, readAhead)
		buf = &b
	}
	defer p.s.buffers.Put(buf)
	chunk, err := p.log.Read(off, hwm, readAhead, *buf)
	switch {
	case errors.Is(err, partlog.ErrClosed):
		return nil, fmt.Errorf("read %s at %d: %w: %w", p.ref, off, queue.ErrClosed, err)
	case err != nil:
		return nil, err
	case chunk.Skipped > 0:
		if p.damagedAt(off, off+chunk.Skipped) {
			return nil, fmt.Errorf("read %s at %d: %w", p.ref, off, errDamaged)
		}
		return nil, &queue.Unreadable{Next: off + chunk.Skipped, Err: errLostOffsets}
	case len(chunk.Batches) == 0:
		return nil, fmt.Errorf("read %s at %d: nothing below the high watermark %d", p.ref, off, hwm)
	}
	return p.decode(chunk)
}

// decode decodes the first batch of a chunk. The others go into the cache as they
// are: decoded they may be a hundred times as large, and would push each other
// and the first one out before anybody has asked for them.
func (p *Partition) decode(chunk partlog.Chunk) (*batches.Batch, error) {
	h, err := record.ParseHeader(chunk.Batches)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", p.ref, err)
	}
	first, err := p.s.Cache.Decode(chunk.Batches[:h.Size()])
	if err != nil {
		// Its checksum holds and its content does not: no other try will help.
		return nil, &queue.Unreadable{Next: h.EndOffset(), Err: err}
	}
	for rest := chunk.Batches[h.Size():]; len(rest) > 0; {
		h, err := record.ParseHeader(rest)
		if err != nil {
			break // whoever asks for that one hears it
		}
		p.s.Cache.PutRaw(p.id, &h, append([]byte(nil), rest[:h.Size()]...))
		rest = rest[h.Size():]
	}
	p.s.Cache.Put(p.id, first) // last, so that it counts as the one used last
	return first, nil
}

// tailing is how many records a consumer may be behind for the batches that are
// committed to be kept for it: about what the cache holds of one partition.
const tailing = 16 << 10

// neverAsked is far behind every offset.
const neverAsked = -1 << 60

// keepLocked puts a batch that was just appended into the cache, if somebody is
// close behind: who reads the tail never reads the disk. It is asked for only
// once it is committed, and everything is forgotten when the log is cut.
func (p *Partition) keepLocked(batch []byte, base int64) {
	if base-p.asked.Load() > tailing {
		return
	}
	if h, err := record.ParseHeader(batch); err == nil { // as Append did
		p.s.Cache.PutRaw(p.id, &h, append([]byte(nil), batch...))
	}
}

// Read returns a page of committed records. Errors are problems.
func (p *Partition) Read(req *nodeapi.ReadRequest) (*nodeapi.ReadResult, error) {
	res := &nodeapi.ReadResult{LogStart: p.LogStart(), HighWatermark: p.hwm.Load()}
	off, err := p.startOfRead(req, res)
	if err != nil {
		return nil, err
	}
	left := req.MaxBytes
	for off < res.HighWatermark && len(res.Records) < req.Limit {
		b, err := p.Batch(off)
		var damage *queue.Unreadable
		switch {
		case errors.As(err, &damage):
			off = max(damage.Next, off+1)
			continue
		case errors.Is(err, partlog.ErrGone):
			return nil, problem.New(problem.OffsetGone, "offset %d of %s is gone", off, p.ref).With("log_start", p.LogStart())
		case errors.Is(err, queue.ErrClosed): // the caller judges anew what became of the topic
			return nil, problem.New(problem.PartitionUnavailable, "%s was closed", p.ref)
		case err != nil:
			p.s.Log.Warn("read failed", "partition", p.ref.String(), "offset", off, "error", err)
			return nil, problem.New(problem.PartitionUnavailable, "%s cannot be read now", p.ref)
		}
		if b.Control {
			off = b.End()
			continue
		}
		for off = max(off, b.Base); off < b.End() && len(res.Records) < req.Limit; off++ {
			rec, size := page(b, off)
			if size > left && len(res.Records) > 0 {
				res.NextOffset = off
				return res, nil
			}
			left -= size
			if rec != nil {
				res.Records = append(res.Records, *rec)
			}
		}
	}
	res.NextOffset = min(off, res.HighWatermark)
	return res, nil
}

// page makes the record at off and its payload size; nil for one whose content
// is no message.
func page(b *batches.Batch, off int64) (*nodeapi.ReadRecord, int) {
	body := b.Body(off)
	v, err := record.ParseBody(body)
	if err != nil {
		return nil, 0
	}
	return &nodeapi.ReadRecord{Offset: off, CommitMS: b.CommitMS, ID: b.MessageID(off), Body: body}, len(v.Payload)
}

func (p *Partition) startOfRead(req *nodeapi.ReadRequest, res *nodeapi.ReadResult) (int64, error) {
	off := req.Offset
	switch {
	case off < 0 && req.SinceMS != 0:
		at, err := p.log.OffsetAt(req.SinceMS, res.HighWatermark)
		if err != nil {
			p.s.Log.Warn("look-up by time failed", "partition", p.ref.String(), "error", err)
			return 0, problem.New(problem.PartitionUnavailable, "%s cannot be read now", p.ref)
		}
		return max(at, res.LogStart), nil
	case off < 0:
		return res.LogStart, nil
	case off < res.LogStart:
		return 0, problem.New(problem.OffsetGone, "offset %d of %s is gone", off, p.ref).With("log_start", res.LogStart)
	case off > res.HighWatermark:
		return 0, problem.New(problem.OffsetOutOfRange, "offset %d of %s is above the high watermark", off, p.ref).
			With("high_watermark", res.HighWatermark)
	}
	return off, nil
}
