package lease

import (
	"slices"
	"sort"
)

// chunkSpans bounds what one insert moves (4 KiB): a partition may have a
// million spans above its frontier, and a flat slice would move 16 MB per ack.
const chunkSpans = 256

// span is the half-open range [lo, hi) of offsets.
type span struct{ lo, hi int64 }

// spans is a set of offsets kept as ascending spans that neither overlap nor
// touch, in chunks of at most chunkSpans. The zero value is empty.
type spans struct {
	chunks [][]span // none is empty
	total  int64    // offsets in the set
	n      int      // spans in the set
}

// find returns the place of the first span that ends at or after off; ok is
// false when there is none.
func (s *spans) find(off int64) (c, i int, ok bool) {
	c = sort.Search(len(s.chunks), func(k int) bool {
		ch := s.chunks[k]
		return ch[len(ch)-1].hi >= off
	})
	if c == len(s.chunks) {
		return 0, 0, false
	}
	ch := s.chunks[c]
	return c, sort.Search(len(ch), func(k int) bool { return ch[k].hi >= off }), true
}

// nextGap returns the first offset at or above off that is not in the set.
func (s *spans) nextGap(off int64) int64 {
	c, i, ok := s.find(off + 1)
	if ok && s.chunks[c][i].lo <= off {
		return s.chunks[c][i].hi
	}
	return off
}

func (s *spans) contains(off int64) bool { return s.nextGap(off) != off }

// add puts [lo, hi) into the set, which may hold some of it already.
func (s *spans) add(lo, hi int64) {
	if lo >= hi {
		return
	}
	c, i, ok := s.find(lo)
	if !ok {
		s.push(span{lo, hi})
		return
	}
	at := &s.chunks[c][i]
	if at.lo > hi {
		s.insert(c, i, span{lo, hi})
		return
	}
	s.total -= at.hi - at.lo
	at.lo, at.hi = min(at.lo, lo), max(at.hi, hi)
	s.absorb(c, i)
	at = &s.chunks[c][i]
	s.total += at.hi - at.lo
}

// absorb merges the spans after (c, i) that it reaches into it.
func (s *spans) absorb(c, i int) {
	at := &s.chunks[c][i]
	for {
		nc, ni := c, i+1
		if ni == len(s.chunks[c]) {
			nc, ni = c+1, 0
		}
		if nc == len(s.chunks) || s.chunks[nc][ni].lo > at.hi {
			return
		}
		next := s.chunks[nc][ni]
		at.hi = max(at.hi, next.hi)
		s.total -= next.hi - next.lo
		s.n--
		s.chunks[nc] = slices.Delete(s.chunks[nc], ni, ni+1)
		if len(s.chunks[nc]) == 0 {
			s.chunks = slices.Delete(s.chunks, nc, nc+1)
		}
	}
}

// push adds a span above all others.
func (s *spans) push(sp span) {
	if len(s.chunks) == 0 {
		s.chunks = append(s.chunks, nil)
	}
	c := len(s.chunks) - 1
	s.insert(c, len(s.chunks[c]), sp)
}

func (s *spans) insert(c, i int, sp span) {
	s.total += sp.hi - sp.lo
	s.n++
	ch := slices.Insert(s.chunks[c], i, sp)
	if len(ch) <= chunkSpans {
		s.chunks[c] = ch
		return
	}
	// Appends at the end are the common case: keep the full chunk full.
	half := len(ch) / 2
	if i == chunkSpans {
		half = chunkSpans
	}
	s.chunks[c] = ch[:half:half]
	s.chunks = slices.Insert(s.chunks, c+1, append(make([]span, 0, chunkSpans), ch[half:]...))
}

// dropBelow takes all offsets below off out of the set and returns how many.
func (s *spans) dropBelow(off int64) int64 {
	before := s.total
	for len(s.chunks) > 0 {
		ch := s.chunks[0]
		for len(ch) > 0 && ch[0].hi <= off {
			s.total -= ch[0].hi - ch[0].lo
			s.n--
			ch = ch[1:]
		}
		if len(ch) > 0 {
			if ch[0].lo < off {
				s.total -= off - ch[0].lo
				ch[0].lo = off
			}
			s.chunks[0] = ch
			break
		}
		s.chunks = s.chunks[1:]
	}
	if len(s.chunks) == 0 {
		s.chunks = nil // let go of what a burst needed
	}
	return before - s.total
}

// each calls f for every span in order until it returns false.
func (s *spans) each(f func(span) bool) {
	for _, ch := range s.chunks {
		for _, sp := range ch {
			if !f(sp) {
				return
			}
		}
	}
}
