package partlog

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/narad-mq/narad/libs/seglog"
)

// Retained tells what Retain did.
type Retained struct {
	Segments int
	Bytes    int64
	LogStart int64 // after it; what lies below is gone, settled or not
}

// Retain removes whole segments from the start: those whose records are all
// older than retentionMS on the partition clock (nowMS), and those beyond
// retentionBytes; 0 means no bound. It never removes what is at or above hwm,
// nor the active segment, which it seals when it holds records too old or is
// much of the bound, so that a later call can. What is removed is covered by a
// synced snapshot before. Errors: of the file system; it may be repeated.
func (l *Log) Retain(nowMS, retentionMS, retentionBytes, hwm int64) (Retained, error) {
	l.Committed(hwm)
	if err := l.rollAged(nowMS, retentionMS, retentionBytes); err != nil {
		return Retained{LogStart: l.LogStart()}, fmt.Errorf("retain: %w", err)
	}
	segs := l.seg.Segments()
	start, out, err := l.expired(segs, nowMS, retentionMS, retentionBytes, hwm)
	if err != nil || out.Segments == 0 {
		return out, err
	}
	if !l.covers(start) {
		return Retained{LogStart: l.LogStart()}, nil
	}
	// The state on disk names the new start, and has a snapshot of what goes,
	// before the first file does.
	if err := l.save(nil, true, start); err != nil {
		return Retained{LogStart: l.LogStart()}, fmt.Errorf("retain: %w", err)
	}
	if err := l.removeBelow(start); err != nil {
		return Retained{LogStart: l.LogStart()}, fmt.Errorf("retain: %w", err)
	}
	return out, nil
}

// covers tells whether a snapshot at or below the HWM can stand for everything
// below start.
func (l *Log) covers(start int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.track.fold()
	return l.track.base.at >= start && l.track.base.at <= l.track.hwm
}

func (l *Log) removeBelow(start int64) error {
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.closed.Load() {
		return ErrClosed
	}
	// Readers see the new start before the first file goes, so that they report
	// what is gone as gone.
	l.mu.Lock()
	i, _ := slices.BinarySearch(l.bases, start)
	l.bases = slices.Delete(l.bases, 0, i)
	l.epochs = l.epochs.trim(start)
	l.index.drop(func(base int64) bool { return base < start })
	l.mu.Unlock()
	return l.seg.RemoveBelow(uint64(start))
}

// expired finds the base up to which segments may go.
func (l *Log) expired(segs []seglog.SegmentInfo, nowMS, retentionMS, retentionBytes, hwm int64) (int64, Retained, error) {
	total := int64(0)
	for _, s := range segs {
		total += s.Size
	}
	out := Retained{LogStart: l.LogStart()}
	start := out.LogStart
	for i := 0; i+1 < len(segs); i++ {
		end := int64(segs[i+1].Base)
		if end > hwm {
			break
		}
		tooMuch := retentionBytes > 0 && total > retentionBytes
		if !tooMuch {
			if retentionMS <= 0 {
				break
			}
			last, err := l.lastCommitIn(int64(segs[i].Base), end)
			if err != nil {
				return 0, Retained{LogStart: out.LogStart}, fmt.Errorf("retain: age of segment %d: %w", segs[i].Base, err)
			}
			if last > nowMS-retentionMS {
				break
			}
		}
		total -= segs[i].Size
		out.Segments++
		out.Bytes += segs[i].Size
		start = end
	}
	out.LogStart = start
	return start, out, nil
}

// lastCommitIn is an upper bound of the commit times in the segment at base,
// whose successor is at next: from the successor's header, or by reading.
func (l *Log) lastCommitIn(base, next int64) (int64, error) {
	ms, err := l.commitBefore(next)
	if err != nil || ms != math.MaxInt64 {
		return ms, err
	}
	rd := l.seg.NewReader(seglog.Pos{Segment: uint64(base)})
	w := walk{next: base, bound: next}
	last := int64(0)
	for {
		f, err := rd.Next(seglog.Pos{Segment: uint64(base), Offset: math.MaxInt64})
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return 0, err
		}
		if h, ok := w.take(f.Bytes); ok {
			last = max(last, h.CommitMS)
		}
	}
}

// rollAged seals the active segment when its first record is older than the age,
// or when it alone is half of the bytes allowed and the log is above them. Only
// a synced log is rolled, and only one that has not failed.
func (l *Log) rollAged(nowMS, retentionMS, retentionBytes int64) error {
	bytes := l.Bytes()
	l.appendMu.Lock()
	defer l.appendMu.Unlock()
	if l.closed.Load() {
		return ErrClosed
	}
	l.mu.Lock()
	ready := l.failed == nil && len(l.bases) > 0 && l.written == l.synced && l.seg.Appendable()
	size, end := l.writtenPos.Offset, l.written
	var first int64
	if ready {
		if entries := l.index.bySegment[l.bases[len(l.bases)-1]]; len(entries) > 0 {
			first = entries[0].commitMS
		} else {
			ready = false
		}
	}
	l.mu.Unlock()
	if !ready || size <= seglog.HeaderSize {
		return nil
	}
	aged := retentionMS > 0 && first <= nowMS-retentionMS
	large := retentionBytes > 0 && bytes > retentionBytes && size > retentionBytes/2
	if !aged && !large {
		return nil
	}
	return l.rollLocked(end)
}
