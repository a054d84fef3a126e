package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/topic"
	"github.com/narad-mq/narad/libs/wal"
)

// readRetry is the pause after a read error of the disk: such an error is not
// damage, and the same read is tried again.
const readRetry = time.Second

// added is one record read, for the machine.
type added struct {
	key  dispatchq.Key
	item dispatchq.Item
}

func keyOf(rec *wal.Record) dispatchq.Key {
	return dispatchq.Key{Topic: rec.Topic, Incarnation: rec.Incarnation, Partition: rec.Partition, Pinned: rec.Pinned}
}

// gather collects records whose bodies share a chunk.
type gather struct {
	buf  []byte
	list []added
}

func (g *gather) add(rec *wal.Record) {
	if g.buf == nil {
		g.buf = make([]byte, 0, max(len(rec.Body), 4<<10))
	}
	at := len(g.buf)
	g.buf = append(g.buf, rec.Body...)
	g.list = append(g.list, added{keyOf(rec), dispatchq.Item{
		Pos: dispatchq.Pos(rec.Position), WAL: rec.Identity, Seq: rec.Seq,
		At: uint32(at), Size: uint32(len(rec.Body)),
	}})
}

// finish puts the bodies into the window and returns the records.
func (g *gather) finish(c *chunks) []added {
	id := c.keep(g.buf, len(g.list))
	for i := range g.list {
		g.list[i].item.Chunk = id
	}
	list := g.list
	g.buf, g.list = nil, nil
	return list
}

// read gives every durable record of the WAL to the loop, in order.
func (d *Dispatcher) read(ctx context.Context) error {
	r := d.deps.WAL.Reader()
	current := d.deps.WAL.Identity()
	var g gather
	for {
		rec, more, err := r.TryNext()
		if !more && err == nil {
			d.recovered.Store(true) // all that stood here at the start has been read
			rec, err = r.Next(ctx)
			more = true
		}
		for err == nil && more {
			if rec.Identity != current {
				d.deps.Space.Recovered(rec.Topic, rec.Incarnation, len(rec.Body))
			}
			g.add(&rec)
			if len(g.buf) >= chunkBytes {
				break
			}
			rec, more, err = r.TryNext()
		}
		if len(g.list) > 0 {
			select {
			case d.records <- g.finish(&d.chunks):
			case <-ctx.Done():
				return nil
			}
		}
		switch {
		case ctx.Err() != nil || errors.Is(err, wal.ErrClosed):
			return nil
		case err != nil:
			d.deps.Log.Error("reading the write-ahead log failed; it is tried again", "error", err)
			if !pause(ctx, readRetry) {
				return nil
			}
		}
	}
}

// pause waits; false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Space counts what each life of a topic holds of the WAL's space.
type Space interface {
	// Recovered counts a record of an earlier start; bytes is its body's length.
	Recovered(name string, id topic.Incarnation, bytes int)
	// Dispatched takes records off that are done for good.
	Dispatched(id topic.Incarnation, bytes int)
}
