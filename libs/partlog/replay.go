package partlog

import (
	"errors"
	"io"
	"math"

	"github.com/narad-mq/narad/libs/record"
	"github.com/narad-mq/narad/libs/seglog"
	"github.com/narad-mq/narad/libs/topic"
)

// walk judges the frames of a log in order: a frame that does not follow the
// one before (an old or foreign batch that stands in damaged bytes, or one that
// a failed file still holds above where its successor begins) is none.
type walk struct {
	next  int64       // end of the last batch taken
	epoch topic.Epoch // of it
	bound int64       // base of the next segment: nothing of this one reaches above
}

// take parses a frame; ok is false when it must be passed over.
func (w *walk) take(b []byte) (h record.Header, ok bool) {
	h, err := record.ParseHeader(b)
	if err != nil || h.BaseOffset < w.next || h.EndOffset() > w.bound || h.LeaderEpoch < w.epoch {
		return h, false
	}
	w.next, w.epoch = h.EndOffset(), h.LeaderEpoch
	return h, true
}

// replay rebuilds what follows from the log, while and after seglog opens it.
type replay struct {
	l      *Log
	snapAt int64
	walk   walk
	began  bool // a segment was entered
	last   int64
	behind bool // a damaged range was passed: batches do not raise numbers
	direct bool // the active segment alone was enough, or is all there is
	active walk // of the last segment
}

func newReplay(l *Log, snap *producers) *replay {
	l.track = newTracked(snap)
	l.track.committed(l.state.HWM)
	return &replay{l: l, snapAt: snap.at}
}

// visitActive is called by seglog with each frame of the last segment. When the
// snapshot reaches into that segment nothing else has to be read.
func (r *replay) visitActive(f seglog.Frame) error {
	base := int64(f.Header.Base)
	if r.active.bound == 0 {
		r.active = walk{next: base, bound: math.MaxInt64}
	}
	r.active.take(f.Bytes)
	if r.snapAt >= base {
		r.direct = true
		r.frame(f, math.MaxInt64)
	}
	return nil
}

// unpromised is asked by seglog about batches that were never written, and others
// behind them. A power cut leaves that of a sync that had not returned: so none of them was
// reported, nor counted by a leader. Below the high watermark, which is durable, it is
// damage all the same.
func (r *replay) unpromised(h *seglog.Header) bool {
	return r.l.recovery.StateFound && max(r.active.next, int64(h.Base)) >= r.l.state.HWM
}

// finish reads what the visits did not cover and sets the ends of the log.
func (r *replay) finish() error {
	l := r.l
	if len(l.bases) == 0 {
		l.written, l.synced = r.walk.next, r.walk.next
		return nil
	}
	active := l.bases[len(l.bases)-1]
	if !r.direct && r.snapAt < active {
		if err := r.scan(); err != nil {
			return err
		}
	}
	// An active segment without a batch says by its name where the log goes on.
	end := max(r.walk.next, active)
	l.written, l.synced = end, end
	l.writtenPos, l.syncedPos = l.seg.End(), l.seg.End()
	l.epochs = l.epochs.trim(l.bases[0])
	if r.behind {
		l.wantSnap = true
	}
	return nil
}

// scan replays every segment that holds something at or above the snapshot.
func (r *replay) scan() error {
	bases := r.l.bases
	first := 0
	for first+1 < len(bases) && bases[first+1] <= r.snapAt {
		first++
	}
	for i := first; i < len(bases); i++ {
		bound := int64(math.MaxInt64)
		if i+1 < len(bases) {
			bound = bases[i+1]
		}
		rd := r.l.seg.NewReader(seglog.Pos{Segment: uint64(bases[i])})
		for {
			f, err := rd.Next(seglog.Pos{Segment: uint64(bases[i]), Offset: math.MaxInt64})
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			r.frame(f, bound)
		}
	}
	return nil
}

// frame applies one frame of the log.
func (r *replay) frame(f seglog.Frame, bound int64) {
	l, base := r.l, int64(f.Header.Base)
	if !r.began || base != r.last {
		r.enter(f.Header)
	}
	r.walk.bound = bound
	expect := r.walk.next
	h, ok := r.walk.take(f.Bytes)
	if !ok {
		// What reaches above the next segment's base was given up after a
		// failure and is no damage.
		r.behind = r.behind || h.EndOffset() <= bound
		return
	}
	if h.BaseOffset > expect {
		r.behind = true
		l.recovery.GapOffsets += h.BaseOffset - expect
	}
	l.index.add(base, &h, f.Pos.Offset)
	if h.BaseOffset < r.snapAt {
		return
	}
	l.epochs = l.epochs.add(h.LeaderEpoch, h.BaseOffset)
	e := entryOf(&h)
	e.raise = e.raise && !r.behind
	l.track.apply(&e)
	l.sinceSnap += int64(len(f.Bytes))
}

// enter moves to another segment. Offsets that its header says were skipped on
// purpose are no damage: what they held was committed, so it is not sent again.
func (r *replay) enter(h *seglog.Header) {
	base := int64(h.Base)
	if !r.began {
		r.began, r.walk.next = true, base
	}
	r.last = base
	if base > r.walk.next {
		meta, ok := parseMeta(h)
		r.l.recovery.GapOffsets += base - r.walk.next
		if !ok || meta.prevEnd != r.walk.next {
			r.behind = true
		}
		r.walk.next = base
	}
}

func entryOf(h *record.Header) entry {
	return entry{
		stream: h.Stream, last: h.Last(), oldest: h.Oldest, base: h.BaseOffset, end: h.EndOffset(),
		commitMS: h.CommitMS, raise: !h.Control && h.Stream.Kind != record.StreamOnce,
	}
}
