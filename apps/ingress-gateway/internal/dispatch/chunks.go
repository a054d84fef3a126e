package dispatch

import (
	"sync"

	"github.com/narad-mq/narad/libs/dispatchq"
)

// Window is how many bytes of bodies are kept in memory behind the reader: eight
// of the largest batches. What is committed at once, as most is, is never read twice.
const Window = 64 << 20

// chunkBytes is how much the reader gathers for one report: large enough to share
// an allocation, small enough that the first record is not held up.
const chunkBytes = 256 << 10

// chunk holds the bodies of records that were read together.
type chunk struct {
	id  uint64
	buf []byte
}

// chunks is the window: the newest chunks, oldest first.
type chunks struct {
	mu    sync.Mutex // guards what follows
	list  []chunk
	bytes int
	last  uint64
}

// keep adds a chunk and forgets the oldest ones beyond the window.
func (c *chunks) keep(buf []byte) (id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	c.list = append(c.list, chunk{c.last, buf})
	c.bytes += cap(buf)
	for c.bytes > Window && len(c.list) > 1 {
		c.bytes -= cap(c.list[0].buf)
		c.list[0] = chunk{}
		c.list = c.list[1:]
	}
	return c.last
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
		out[i] = c.list[it.Chunk-c.list[0].id].buf[it.At : it.At+it.Size]
	}
	return out
}
