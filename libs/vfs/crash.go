package vfs

import "math/rand/v2"

// sector is the unit in which a torn write is kept or lost.
const sector = 512

// CrashClone gives the file system as a disk may hold it after a power cut at
// this moment: everything synced, and of each change since then (bytes, sizes,
// names) all, nothing or, for bytes, any of its sectors, as rng chooses. With a
// nil rng everything that was not synced is gone. The original goes on.
func (m *Mem) CrashClone(rng *rand.Rand) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.capacity = m.capacity
	cl := cloner{rng: rng, done: map[*memNode]*memNode{}}
	c.root = cl.node(m.root)
	for _, n := range cl.done {
		c.used += int64(len(n.data))
	}
	return c
}

// cloner keeps files that have two names one file.
type cloner struct {
	rng  *rand.Rand
	done map[*memNode]*memNode
}

func (c *cloner) keep() bool { return c.rng != nil && c.rng.IntN(2) == 0 }

func (c *cloner) node(n *memNode) *memNode {
	if d := c.done[n]; d != nil {
		return d
	}
	out := &memNode{}
	c.done[n] = out
	if n.entries == nil {
		c.file(n, out)
		return out
	}
	kept := map[string]*memNode{}
	for name, e := range n.onDisk {
		kept[name] = e
	}
	for _, op := range n.dirOps {
		if c.keep() {
			applyDirOp(kept, op)
		}
	}
	out.entries, out.onDisk = map[string]*memNode{}, map[string]*memNode{}
	for _, name := range names(kept) {
		e := c.node(kept[name])
		out.entries[name], out.onDisk[name] = e, e
	}
	return out
}

func (c *cloner) file(n, out *memNode) {
	data := append([]byte(nil), n.synced...)
	for _, w := range n.pending {
		switch {
		case c.keep():
			data = w.apply(data)
		case w.data != nil && c.keep():
			data = c.torn(data, w)
		}
	}
	out.data = data
	out.synced = append([]byte(nil), data...)
}

// torn keeps any sectors of a write.
func (c *cloner) torn(data []byte, w memWrite) []byte {
	for at := int64(0); at < int64(len(w.data)); {
		end := min((w.off+at)/sector*sector+sector-w.off, int64(len(w.data)))
		if c.keep() {
			data = writeAt(data, w.data[at:end], w.off+at)
		}
		at = end
	}
	return data
}

// Copy gives the file system as it is read now, all of it synced: a copied directory.
func (m *Mem) Copy() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := NewMem()
	c.capacity, c.used = m.capacity, m.used
	c.root = copyNode(m.root)
	return c
}

func copyNode(n *memNode) *memNode {
	if n.entries == nil {
		return &memNode{data: append([]byte(nil), n.data...), synced: append([]byte(nil), n.data...)}
	}
	out := newMemDir()
	for name, e := range n.entries {
		child := copyNode(e)
		out.entries[name], out.onDisk[name] = child, child
	}
	return out
}
