package lease

// item is one entry in a heap: its key beside its slot, so that comparing does
// not touch the entry.
type item struct {
	key  int64
	slot uint32
}

// heap is a binary min-heap over table entries that can remove from the middle:
// every entry knows its place in the one heap that it is in.
type heap struct{ items []item }

func (h *heap) push(es []entry, slot uint32, key int64) {
	h.items = append(h.items, item{key, slot})
	h.up(es, len(h.items)-1)
}

// remove takes the item at pos out.
func (h *heap) remove(es []entry, pos int) {
	last := len(h.items) - 1
	moved := h.items[last]
	h.items = h.items[:last]
	if pos == last {
		return
	}
	h.items[pos] = moved
	es[moved.slot].pos = int32(pos)
	h.fix(es, pos)
}

// rekey changes the key of the item at pos.
func (h *heap) rekey(es []entry, pos int, key int64) {
	h.items[pos].key = key
	h.fix(es, pos)
}

func (h *heap) fix(es []entry, pos int) {
	if pos > 0 && h.items[pos].key < h.items[(pos-1)/2].key {
		h.up(es, pos)
		return
	}
	h.down(es, pos)
}

func (h *heap) up(es []entry, pos int) {
	it := h.items[pos]
	for pos > 0 {
		parent := (pos - 1) / 2
		if h.items[parent].key <= it.key {
			break
		}
		h.items[pos] = h.items[parent]
		es[h.items[pos].slot].pos = int32(pos)
		pos = parent
	}
	h.items[pos] = it
	es[it.slot].pos = int32(pos)
}

func (h *heap) down(es []entry, pos int) {
	it := h.items[pos]
	for {
		child := 2*pos + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.items[child+1].key < h.items[child].key {
			child++
		}
		if it.key <= h.items[child].key {
			break
		}
		h.items[pos] = h.items[child]
		es[h.items[pos].slot].pos = int32(pos)
		pos = child
	}
	h.items[pos] = it
	es[it.slot].pos = int32(pos)
}
