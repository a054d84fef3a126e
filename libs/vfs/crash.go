package vfs

import "math/rand/v2"

// sector is the unit in which a torn write is kept or lost.
const sector = 512

// CrashClone gives the file system as a disk may hold it after a power cut at
// this moment: everything synced, and of what changed since then any names and sizes,
// and in each sector what the file held at some moment since, as rng chooses: disks
// write whole sectors, in any order. With a nil rng everything that was not synced is
// gone. The original goes on.
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
	moments := c.moments(len(n.pending))
	for i, w := range n.pending {
		if w.data == nil { // a size
			if c.keep() {
				data = w.apply(data)
			}
			continue
		}
		for at := int64(0); at < int64(len(w.data)); {
			end := min((w.off+at)/sector*sector+sector-w.off, int64(len(w.data)))
			if i < moments((w.off+at)/sector) {
				data = writeAt(data, w.data[at:end], w.off+at)
			}
			at = end
		}
	}
	out.data = data
	out.synced = append([]byte(nil), data...)
}

// moments chooses how many of n writes each sector of a file has seen: for one file in
// two all sectors the same number, as when the kernel writes in order.
func (c *cloner) moments(n int) func(sector int64) int {
	if c.rng == nil || n == 0 {
		return func(int64) int { return 0 }
	}
	if c.keep() {
		all := c.rng.IntN(n + 1)
		return func(int64) int { return all }
	}
	chosen := map[int64]int{}
	return func(sector int64) int {
		at, ok := chosen[sector]
		if !ok {
			switch at = c.rng.IntN(n + 1); {
			case c.keep():
			case c.keep():
				at = n
			default:
				at = 0
			}
			chosen[sector] = at
		}
		return at
	}
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
