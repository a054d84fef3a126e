package dispatch

import (
	"github.com/narad-mq/narad/libs/dispatchq"
	"github.com/narad-mq/narad/libs/record"
)

// marks knows the oldest record that is read from the WAL and not done, to the
// chunk: each batch names it, so that partitions may forget what has passed. The
// first record of a chunk stands for the chunk, which names an older record
// rather than a younger one. The loop owns it.
type marks struct {
	order []*mark // as read; finished ones stay until they reach the head
	chunk map[uint64]*mark
}

type mark struct {
	chunk uint64
	first record.Oldest
	left  int // records not done
}

// read notes records that were read together.
func (m *marks) read(list []added) {
	if len(list) == 0 {
		return
	}
	if m.chunk == nil {
		m.chunk = map[uint64]*mark{}
	}
	first := &list[0].item
	k := &mark{chunk: first.Chunk, first: record.Oldest{ID: first.WAL, Seq: first.Seq}, left: len(list)}
	m.order = append(m.order, k)
	m.chunk[k.chunk] = k
}

// done notes that a record of the WAL is done.
func (m *marks) done(it *dispatchq.Item) {
	if k := m.chunk[it.Chunk]; k != nil && !it.Parked {
		k.left--
	}
	for len(m.order) > 0 && m.order[0].left == 0 {
		delete(m.chunk, m.order[0].chunk)
		m.order = m.order[1:]
	}
}

// oldest is the zero value, which tells nothing, when nothing is known.
func (m *marks) oldest() record.Oldest {
	if len(m.order) == 0 {
		return record.Oldest{}
	}
	return m.order[0].first
}
