package partlog

import (
	"slices"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
)

const (
	// indexEvery: one entry per so many bytes, so that finding a batch reads at
	// most that much more, and a full segment costs 50 KiB of memory.
	indexEvery = 32 << 10
	// maxIndexes bounds the segments with an index in memory, per log.
	maxIndexes = 8
	// maxHints bounds the places remembered for readers that go on where they
	// were, which then need no index at all.
	maxHints = 16
)

type indexEntry struct {
	offset   int64
	pos      int64 // in the file
	commitMS int64
}

type hint struct {
	offset int64
	pos    seglog.Pos
}

// indexes are the sparse indexes of some segments, by base. Not safe for
// concurrent use.
type indexes struct {
	bySegment map[int64][]indexEntry
	recent    []int64 // bases, the one added last at the end
	hints     []hint
	nextHint  int
}

func newIndexes() indexes { return indexes{bySegment: map[int64][]indexEntry{}} }

// add indexes a batch of the segment that is being appended to or replayed.
func (x *indexes) add(base int64, h *record.Header, pos int64) {
	entries, known := x.bySegment[base]
	if !known {
		x.put(base, nil)
	}
	x.bySegment[base] = addEntry(entries, h, pos)
}

func addEntry(entries []indexEntry, h *record.Header, pos int64) []indexEntry {
	if n := len(entries); n > 0 && pos-entries[n-1].pos < indexEvery {
		return entries
	}
	return append(entries, indexEntry{h.BaseOffset, pos, h.CommitMS})
}

// put stores the index of a segment and forgets the one that was put first, but
// not that of the last segment, which only appending can extend.
func (x *indexes) put(base int64, entries []indexEntry) {
	if _, known := x.bySegment[base]; !known {
		x.recent = append(x.recent, base)
	}
	x.bySegment[base] = entries
	if len(x.recent) > maxIndexes {
		i := 0
		if x.recent[0] == slices.Max(x.recent) {
			i = 1
		}
		delete(x.bySegment, x.recent[i])
		x.recent = slices.Delete(x.recent, i, i+1)
	}
}

// find returns the last indexed place at or below offset; false when the segment
// has no index.
func (x *indexes) find(base, offset int64) (indexEntry, bool) {
	entries, known := x.bySegment[base]
	if !known {
		return indexEntry{}, false
	}
	i, exact := slices.BinarySearchFunc(entries, offset, func(e indexEntry, o int64) int {
		return int(min(max(e.offset-o, -1), 1))
	})
	if !exact {
		i--
	}
	if i < 0 {
		return indexEntry{offset: base, pos: seglog.HeaderSize}, true
	}
	return entries[i], true
}

// remember notes where the batch at offset stands.
func (x *indexes) remember(offset int64, pos seglog.Pos) {
	if len(x.hints) < maxHints {
		x.hints = append(x.hints, hint{offset, pos})
		return
	}
	x.hints[x.nextHint] = hint{offset, pos}
	x.nextHint = (x.nextHint + 1) % maxHints
}

func (x *indexes) hinted(offset int64) (seglog.Pos, bool) {
	for _, h := range x.hints {
		if h.offset == offset {
			return h.pos, true
		}
	}
	return seglog.Pos{}, false
}

// truncate forgets what lies at or above to.
func (x *indexes) truncate(to int64) {
	x.hints, x.nextHint = nil, 0
	for base, entries := range x.bySegment {
		for len(entries) > 0 && entries[len(entries)-1].offset >= to {
			entries = entries[:len(entries)-1]
		}
		x.bySegment[base] = entries
	}
	x.drop(func(base int64) bool { return base > to })
}

// drop forgets whole segments.
func (x *indexes) drop(gone func(base int64) bool) {
	x.recent = slices.DeleteFunc(x.recent, func(base int64) bool {
		if gone(base) {
			delete(x.bySegment, base)
			return true
		}
		return false
	})
	x.hints, x.nextHint = nil, 0
}
