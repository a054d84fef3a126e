package dispatch

import (
	"sync"

	"github.com/narad-mq/narad/libs/dispatchq"
)

// Window is how many bytes of bodies are kept in memory behind the reader: eight
// of the largest batches. What is committed at once, as most is, is never read
// twice; a chunk whose records are all done goes at once, so that a gateway
// without a backlog holds nothing.
const Window = 64 << 20

// chunkBytes is how much the reader gathers for one report: large enough to share
// an allocation, small enough that the first record is not held up.
const chunkBytes = 256 << 10

// chunk holds the bodies of records that were read together.
type chunk struct {
	id   uint64
	buf  []byte // nil: all its records are done
	left int    // records not done
}

// chunks is the window: the newest chunks, oldest first.
type chunks struct {
	mu    sync.Mutex // guards what follows
	list  []chunk
	bytes int
	last  uint64
}

// keep adds a chunk of some records and forgets the oldest ones beyond the window.
func (c *chunks) keep(buf []byte, records int) (id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.list = append(c.list, chunk{c.last, buf, records})
	c.bytes += cap(buf)
	for c.bytes > Window && len(c.list) > 1 {
		c.popLocked()
	}
	return c.last
}

func (c *chunks) popLocked() {
	c.bytes -= cap(c.list[0].buf)
	c.list[0] = chunk{}
	c.list = c.list[1:]
}

// done gives up the memory of chunks of which no record is needed any more. Each
// record is told once.
func (c *chunks) done(items []dispatchq.Item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		if len(c.list) == 0 || items[i].Chunk < c.list[0].id {
			continue // beyond the window
		}
		k := &c.list[items[i].Chunk-c.list[0].id]
		if k.left--; k.left == 0 {
			c.bytes -= cap(k.buf)
			k.buf = nil
		}
	}
	for len(c.list) > 0 && c.list[0].left <= 0 {
		c.popLocked()
	}
}

// bodies returns what is still in memory of the items; nil for the others.
func (c *chunks) bodies(items []dispatchq.Item) [][]byte {
	out := make([][]byte, len(items))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		it := &items[i]
		if len(c.list) == 0 || it.Chunk < c.list[0].id {
			continue
		}
		if buf := c.list[it.Chunk-c.list[0].id].buf; buf != nil {
			out[i] = buf[it.At : it.At+it.Size]
		}
	}
	return out
}
