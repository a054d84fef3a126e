package partlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// Gap is a range of offsets that no intact batch of the log holds.
type Gap struct {
	From, To int64 // To exclusive
	// Intended: it was skipped when the log went on above its end, and no replica
	// can be asked for it but one that had it before.
	Intended bool
}

// Gaps looks for gaps in the segment that holds offset from, at or above from and
// below an offset, and returns where to go on: limit (at most WrittenEnd) when that
// was the last segment. It reads and verifies the segment, which is for
// the background; a caller goes slowly from LogStart to the end, over and over. A
// log start that is higher than the recorded one is a gap too.
//
// What to do: a gap below the HWM is closed with Repair, from another replica's
// batches, before the copy counts or leads; one above it with Truncate to From,
// since the batches behind it may be no leader's; a lone copy skips it; and when
// Repair says that it cannot, Replace gets everything again.
func (l *Log) Gaps(from, limit int64) (gaps []Gap, next int64, err error) {
	l.mu.Lock()
	start, recorded := l.startLocked(), l.savedStart
	limit = min(limit, l.written)
	from = max(from, min(start, recorded))
	p := place{}
	if i, exact := slices.BinarySearch(l.bases, from); len(l.bases) > 0 {
		if !exact {
			i = max(i-1, 0)
		}
		p = l.startOfLocked(l.bases[i])
	}
	segments := len(l.bases)
	l.mu.Unlock()
	switch {
	case from >= limit:
		return nil, limit, nil
	case segments == 0 || from < start:
		return []Gap{{From: from, To: min(start, limit)}}, min(start, limit), nil
	}
	cuts := l.settledCuts()
	gaps, err = l.gapsIn(p, from, limit)
	if l.closed.Load() {
		err = ErrClosed
	}
	if err == nil && l.cuts.Load() != cuts {
		return l.Gaps(from, limit) // the log was cut meanwhile
	}
	if err != nil {
		return nil, from, fmt.Errorf("look for gaps from %d on: %w", from, err)
	}
	return gaps, min(p.bound, limit), nil
}

func (l *Log) gapsIn(p place, from, limit int64) (gaps []Gap, err error) {
	note := func(at, to int64, intended bool) {
		if at, to = max(at, from), min(to, limit); at < to {
			gaps = append(gaps, Gap{at, to, intended})
		}
	}
	end := p.base
	err = l.frames(p, func(h *record.Header, _ []byte) error {
		note(end, h.BaseOffset, false)
		end = h.EndOffset()
		return nil
	})
	if err != nil || end >= min(p.bound, limit) {
		return gaps, err
	}
	if p.bound == math.MaxInt64 {
		note(end, limit, false)
		return gaps, nil
	}
	h, err := l.seg.Header(uint64(p.bound))
	if err != nil {
		return nil, err
	}
	meta, ok := parseMeta(h)
	note(end, p.bound, ok && meta.prevEnd == end)
	return gaps, nil
}

// frames visits the batches of a segment in order.
func (l *Log) frames(p place, visit func(*record.Header, []byte) error) error {
	rd := l.seg.NewReader(seglog.Pos{Segment: uint64(p.base)})
	w := walk{next: p.base, bound: p.bound}
	for {
		f, err := rd.Next(seglog.Pos{Segment: uint64(p.base), Offset: math.MaxInt64})
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h, ok := w.take(f.Bytes); ok {
			if err := visit(&h, f.Bytes); err != nil {
				return err
			}
		}
	}
}

// Repair puts batches of another replica, byte for byte, into a gap below the HWM,
// and returns where it stopped: behind the last batch, or where the segment ends,
// and the caller goes on from there with the rest. The segment is written anew and
// takes the old one's place in one rename; this costs as much as the segment is
// large, so that a gap is best closed with few calls. Nothing may be served from
// the copy meanwhile.
//
// The batches must be whole and intact, lie in one gap with what is around them,
// in offsets and epochs, and end at or below the HWM: below it all replicas have
// the same bytes. Otherwise ErrBadCopy, and nothing was changed. Other errors:
// ErrFailed, or of the file system: look for gaps again. Producer numbers behind
// the gap stay as they are: too low costs a duplicate.
func (l *Log) Repair(batches []byte) (next int64, err error) {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	first, err := record.ParseHeader(batches)
	if err != nil {
		return 0, fmt.Errorf("repair: %w: %w", ErrBadCopy, err)
	}
	at := first.BaseOffset
	l.mu.Lock()
	hwm, failed, start, written := max(l.track.hwm, l.state.HWM), l.failed, l.startLocked(), l.written
	active := len(l.bases) > 0 && at >= l.bases[len(l.bases)-1]
	l.mu.Unlock()
	c := continuation{next: at, epoch: first.LeaderEpoch, most: math.MaxUint32}
	switch {
	case l.closed.Load():
		err = ErrClosed
	case failed != nil:
		err = fmt.Errorf("%w: %w", ErrFailed, failed)
	case at < start || at >= written:
		err = fmt.Errorf("%w: the log is from %d to %d", ErrBadCopy, start, written)
	default:
		if err = c.judge(batches); err != nil {
			err = fmt.Errorf("%w: %w", ErrBadCopy, err)
		}
	}
	if err == nil && active {
		err = l.rollLocked(written)
	}
	if err != nil {
		return at, fmt.Errorf("repair at %d: %w", at, err)
	}
	if next, err = l.rewrite(batches, at, hwm); err != nil {
		return at, fmt.Errorf("repair at %d: %w", at, err)
	}
	return next, nil
}

// rewrite merges batches into their segment. The caller holds syncMu and appendMu.
func (l *Log) rewrite(batches []byte, at, hwm int64) (next int64, err error) {
	l.mu.Lock()
	i, exact := slices.BinarySearch(l.bases, at)
	if !exact {
		i--
	}
	p := l.startOfLocked(l.bases[i])
	l.mu.Unlock()
	m := merge{rest: batches, next: p.base, most: math.MaxUint32, hwm: hwm}
	l.cuts.Add(1)
	defer l.cuts.Add(1)
	meta := segmentMeta{prevEnd: p.base}.encode()
	err = l.seg.Rewrite(uint64(p.base), meta, func(emit func([]byte) error) error {
		err := l.frames(p, func(h *record.Header, frame []byte) error {
			if err := m.before(h.BaseOffset, emit); err != nil {
				return err
			}
			if h.BaseOffset < m.next || h.LeaderEpoch < m.epoch {
				return fmt.Errorf("%w: it does not fit before %d", ErrBadCopy, h.BaseOffset)
			}
			m.next, m.epoch = h.EndOffset(), h.LeaderEpoch
			return emit(frame)
		})
		if err != nil {
			return err
		}
		if m.most, err = l.epochFrom(p.bound); err != nil {
			return err
		}
		return m.before(p.bound, emit)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.index.drop(func(base int64) bool { return base == p.base })
	if err == nil {
		l.epochs = l.epochs.merge(m.epochs)
	}
	return m.filled, err
}

var errFound = errors.New("found")

// epochFrom is the epoch of the first batch of the segments from base on.
func (l *Log) epochFrom(base int64) (epoch topic.Epoch, err error) {
	epoch = math.MaxUint32
	for base != math.MaxInt64 && err == nil {
		l.mu.Lock()
		p := l.startOfLocked(base)
		l.mu.Unlock()
		err = l.frames(p, func(h *record.Header, _ []byte) error {
			epoch = h.LeaderEpoch
			return errFound
		})
		base = p.bound
	}
	if errors.Is(err, errFound) {
		err = nil
	}
	return epoch, err
}

// merge gives the batches that go in between those of a segment.
type merge struct {
	rest   []byte
	next   int64       // end of what was given
	epoch  topic.Epoch // of it
	most   topic.Epoch // of what may be given behind the last batch of the segment
	hwm    int64
	filled int64
	epochs epochs // of what filled it
}

// before gives the batches that begin below an offset.
func (m *merge) before(offset int64, emit func([]byte) error) error {
	for len(m.rest) > 0 {
		h, batch, rest, err := record.Cut(m.rest)
		if err != nil {
			return err // cannot be: they were judged
		}
		if h.BaseOffset >= offset {
			return nil
		}
		if h.BaseOffset < m.next || h.EndOffset() > min(offset, m.hwm) || h.LeaderEpoch < m.epoch || h.LeaderEpoch > m.most {
			return fmt.Errorf("%w: %d to %d does not fit between %d and %d", ErrBadCopy, h.BaseOffset, h.EndOffset(), m.next, min(offset, m.hwm))
		}
		if err := emit(batch); err != nil {
			return err
		}
		m.next, m.epoch, m.filled, m.rest = h.EndOffset(), h.LeaderEpoch, h.EndOffset(), rest
		m.epochs = m.epochs.add(h.LeaderEpoch, h.BaseOffset)
	}
	return nil
}
