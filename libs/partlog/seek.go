package partlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/narad-mq/narad/libs/seglog"
)

// locateCut returns where the log is cut so that nothing at or above offset is left,
// and where it ends then: the start of the batch that holds offset or, when none
// does, the end of the one before.
func (l *Log) locateCut(offset int64) (seglog.Pos, int64, error) {
	l.mu.Lock()
	p, ok := l.locateLocked(offset)
	l.mu.Unlock()
	if !ok {
		if err := l.buildIndex(p.base, p.bound); err != nil {
			return seglog.Pos{}, 0, err
		}
		l.mu.Lock()
		p, _ = l.locateLocked(offset)
		l.mu.Unlock()
	}
	rd := l.seg.NewReader(seglog.Pos{Segment: uint64(p.base), Offset: p.pos})
	w := walk{next: p.at, bound: p.bound}
	end, pos := p.at, rd.Pos()
	for {
		f, err := rd.Next(seglog.Pos{Segment: uint64(p.base), Offset: math.MaxInt64})
		if errors.Is(err, io.EOF) {
			return pos, end, nil
		}
		if err != nil {
			return seglog.Pos{}, 0, fmt.Errorf("look for the batch at %d: %w", offset, err)
		}
		h, ok := w.take(f.Bytes)
		if !ok {
			continue
		}
		if h.EndOffset() > offset {
			if h.BaseOffset <= offset {
				return f.Pos, h.BaseOffset, nil
			}
			return pos, end, nil
		}
		end, pos = h.EndOffset(), rd.Pos()
	}
}

// OffsetAt returns the offset of the first batch below limit whose commit time is
// at or after sinceMS, or limit when there is none.
func (l *Log) OffsetAt(sinceMS, limit int64) (int64, error) {
	l.mu.Lock()
	bases := slices.Clone(l.bases)
	limit = min(limit, l.written)
	l.mu.Unlock()
	// Everything in segment i was committed by what the header of i+1 says.
	i := 0
	for i+1 < len(bases) {
		ms, err := l.commitBefore(bases[i+1])
		if err != nil {
			return 0, fmt.Errorf("find the offset at %d ms: %w", sinceMS, err)
		}
		if ms >= sinceMS {
			break
		}
		i++
	}
	for ; i < len(bases); i++ {
		at, found, err := l.offsetIn(bases[i], sinceMS)
		if err != nil {
			return 0, fmt.Errorf("find the offset at %d ms: %w", sinceMS, err)
		}
		if found {
			return min(at, limit), nil
		}
	}
	return limit, nil
}

// commitBefore is the latest commit time before the segment at base; 0 when its
// header does not tell.
func (l *Log) commitBefore(base int64) (int64, error) {
	h, err := l.seg.Header(uint64(base))
	if err != nil {
		return 0, err
	}
	if meta, ok := parseMeta(h); ok {
		return meta.commitMS, nil
	}
	return math.MaxInt64, nil
}

func (l *Log) offsetIn(base, sinceMS int64) (at int64, found bool, err error) {
	l.mu.Lock()
	p := l.startOfLocked(base)
	for _, e := range l.index.bySegment[base] {
		if e.commitMS >= sinceMS {
			break
		}
		p.at, p.pos = e.offset, e.pos
	}
	l.mu.Unlock()
	rd := l.seg.NewReader(seglog.Pos{Segment: uint64(base), Offset: p.pos})
	w := walk{next: p.at, bound: p.bound}
	for {
		f, err := rd.Next(seglog.Pos{Segment: uint64(base), Offset: math.MaxInt64})
		if errors.Is(err, io.EOF) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, err
		}
		if h, ok := w.take(f.Bytes); ok && h.CommitMS >= sinceMS {
			return h.BaseOffset, true, nil
		}
	}
}
