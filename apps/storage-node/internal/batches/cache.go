package batches

import (
	"container/list"
	"slices"
	"sort"
	"sync"
)

// shards is how many locks the cache has: partitions that are consumed at the
// same moment rarely meet in one.
const shards = 16

// Cache remembers decoded batches by partition and offset, the ones used last.
// Safe for concurrent use.
type Cache struct {
	shards [shards]shard
	// decoders holds *record.Decoder: each keeps some megabytes once it has
	// decompressed, so that a pool lets go of them.
	decoders sync.Pool
}

type shard struct {
	mu    sync.Mutex // guards all below
	limit int        // bytes
	used  int
	order *list.List // of *kept, most recently used first
	parts map[uint64][]*kept
}

type kept struct {
	part  uint64
	batch *Batch
	at    *list.Element
}

// NewCache returns a cache of about limit bytes. A batch larger than a shard's
// part of it is not kept.
func NewCache(limit int) *Cache {
	c := &Cache{}
	for i := range c.shards {
		c.shards[i] = shard{limit: limit / shards, order: list.New(), parts: map[uint64][]*kept{}}
	}
	return c
}

func (c *Cache) of(part uint64) *shard { return &c.shards[part%shards] }

// Get returns the batch of the partition that holds off, or nil.
func (c *Cache) Get(part uint64, off int64) *Batch {
	s := c.of(part)
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.parts[part]
	i := find(list, off)
	if i == len(list) || list[i].batch.Base > off {
		return nil
	}
	s.order.MoveToFront(list[i].at)
	return list[i].batch
}

// find is the index of the first kept batch that ends above off.
func find(list []*kept, off int64) int {
	return sort.Search(len(list), func(i int) bool { return list[i].batch.End() > off })
}

// Put remembers a batch of a partition.
func (c *Cache) Put(part uint64, b *Batch) {
	s := c.of(part)
	size := b.size()
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > s.limit {
		return
	}
	list := s.parts[part]
	i := find(list, b.Base)
	if i < len(list) && list[i].batch.Base < b.End() {
		return // somebody else has loaded it meanwhile
	}
	k := &kept{part: part, batch: b}
	k.at = s.order.PushFront(k)
	s.parts[part] = slices.Insert(list, i, k)
	s.used += size
	for s.used > s.limit {
		s.dropLocked(s.order.Back())
	}
}

func (s *shard) dropLocked(e *list.Element) {
	k, _ := s.order.Remove(e).(*kept)
	s.used -= k.batch.size()
	list := s.parts[k.part]
	i := find(list, k.batch.Base)
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(s.parts, k.part)
		return
	}
	s.parts[k.part] = list
}

// Forget drops everything of a partition: its object has ended.
func (c *Cache) Forget(part uint64) {
	s := c.of(part)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.parts[part] {
		s.order.Remove(k.at)
		s.used -= k.batch.size()
	}
	delete(s.parts, part)
}
