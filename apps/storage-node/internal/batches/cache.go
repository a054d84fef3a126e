package batches

import (
	"container/list"
	"slices"
	"sort"
	"sync"

	"github.com/narad-mq/narad/libs/record"
)

// shards is how many locks the cache has: partitions that are consumed at the
// same moment rarely meet in one.
const shards = 16

// Cache remembers batches by partition and offset, the ones used last. What was
// put in encoded is decoded when it is first asked for: compressed batches are
// much smaller than what is in them, and most of what is read ahead or committed
// is not asked for before others have made it leave. Safe for concurrent use.
type Cache struct {
	shards [shards]shard
	// decoders holds *record.Decoder: each keeps some megabytes once it has
	// decompressed, so that a pool lets go of them.
	decoders sync.Pool
}

type shard struct {
	mu    sync.Mutex // guards all below, not the content of a kept
	parts map[uint64][]*kept
	// What is decoded never pushes out what is still encoded: that is small, and
	// mostly what is asked for next.
	encoded, decoded order
}

// order is batches by use, and what they may take together.
type order struct {
	list  list.List // of *kept, most recently used first
	used  int       // bytes
	limit int
	least int // batches that stay whatever their size
}

// rawShare is the part of the limit that encoded batches have: one in rawShare.
const rawShare = 4

// kept is one batch. Whoever asks first decodes it; others wait for that.
type kept struct {
	part      uint64
	base, end int64
	size      int           // guarded by the shard
	at        *list.Element // guarded by the shard; nil: it has left
	in        *order        // guarded by the shard

	once  sync.Once // guards below
	raw   []byte
	batch *Batch // nil after once: raw cannot be decoded
}

// NewCache returns a cache of about limit bytes. Of each shard the batch used
// last is kept whatever its size, so that a batch is never decoded for each
// record of it: the cache may hold one largest batch per shard instead.
func NewCache(limit int) *Cache {
	c := &Cache{}
	for i := range c.shards {
		s := &c.shards[i]
		s.parts = map[uint64][]*kept{}
		s.encoded.limit = limit / shards / rawShare
		s.decoded.limit, s.decoded.least = limit/shards-s.encoded.limit, 1
	}
	return c
}

func (c *Cache) of(part uint64) *shard { return &c.shards[part%shards] }

// Get returns the batch of the partition that holds off, or nil.
func (c *Cache) Get(part uint64, off int64) *Batch {
	s := c.of(part)
	k := s.get(part, off)
	if k == nil {
		return nil
	}
	k.once.Do(func() { // outside of the lock: it may take milliseconds
		k.batch, _ = c.Decode(k.raw) // an error is told to who decodes what the disk has
		k.raw = nil
		s.grown(k)
	})
	return k.batch
}

func (s *shard) get(part uint64, off int64) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.parts[part]
	i := find(list, off)
	if i == len(list) || list[i].base > off {
		return nil
	}
	k := list[i]
	k.in.list.MoveToFront(k.at)
	return k
}

// grown accounts for what a batch has become; one that cannot be decoded leaves.
func (s *shard) grown(k *kept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case k.at == nil:
	case k.batch == nil:
		s.dropLocked(k)
	default:
		k.leave()
		k.size = k.batch.size()
		s.enterLocked(k, &s.decoded)
	}
}

// find is the index of the first kept batch that ends above off.
func find(list []*kept, off int64) int {
	return sort.Search(len(list), func(i int) bool { return list[i].end > off })
}

// Put remembers a decoded batch of a partition.
func (c *Cache) Put(part uint64, b *Batch) {
	k := &kept{part: part, base: b.Base, end: b.End(), size: b.size(), batch: b}
	k.once.Do(func() {})
	s := c.of(part)
	s.put(k, &s.decoded)
}

// PutRaw remembers an encoded batch, placed and verified, and keeps raw, which
// must not change any more.
func (c *Cache) PutRaw(part uint64, h *record.Header, raw []byte) {
	s := c.of(part)
	s.put(&kept{part: part, base: h.BaseOffset, end: h.EndOffset(), size: overhead + len(raw), raw: raw}, &s.encoded)
}

func (s *shard) put(k *kept, o *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.parts[k.part]
	i := find(list, k.base)
	if i < len(list) && list[i].base < k.end {
		return // somebody else has loaded it meanwhile
	}
	s.parts[k.part] = slices.Insert(list, i, k)
	s.enterLocked(k, o)
}

// enterLocked makes k the one used last of o, and lets go of what was not used for longest.
func (s *shard) enterLocked(k *kept, o *order) {
	k.in, k.at = o, o.list.PushFront(k)
	o.used += k.size
	for o.used > o.limit && o.list.Len() > o.least {
		old, _ := o.list.Back().Value.(*kept)
		s.dropLocked(old)
	}
}

// leave takes k out of its order. The caller holds the shard's lock.
func (k *kept) leave() {
	k.in.list.Remove(k.at)
	k.in.used -= k.size
	k.in, k.at = nil, nil
}

func (s *shard) dropLocked(k *kept) {
	k.leave()
	list := s.parts[k.part]
	i := find(list, k.base)
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(s.parts, k.part)
		return
	}
	s.parts[k.part] = list
}

// Forget drops everything of a partition: its object has ended, or its log was cut.
func (c *Cache) Forget(part uint64) {
	s := c.of(part)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.parts[part] {
		k.leave()
	}
	delete(s.parts, part)
}
