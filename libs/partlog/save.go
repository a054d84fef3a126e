package partlog

import "fmt"

// snapEvery: a snapshot is taken anew after so many bytes, so that an open after
// a crash replays about that much, and saving ten times a second stays cheap.
const snapEvery = 4 << 20

// fewStreams: so few cost less to encode than a sync takes, so that every synced
// state has a snapshot of its time.
const fewStreams = 256

// SaveState writes the state, with sync durably, to the slot that is not the
// durable one. The HWM and the position generation never go back: a lower HWM, or
// a position of a lower generation, than before is not stored.
// A position longer than MaxPosition is an error. After another error the state
// on disk is an earlier one, and the call may be repeated.
func (l *Log) SaveState(st State, sync bool) error {
	if len(st.Position) > MaxPosition {
		return fmt.Errorf("save state of %s: position of %d bytes, at most %d", l.dir, len(st.Position), MaxPosition)
	}
	return l.save(&st, sync, -1)
}

// save stores st, or the state as it was saved last when st is nil. A start
// other than -1 is a new log start, stored with a new snapshot.
func (l *Log) save(st *State, sync bool, start int64) error {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	if l.closed.Load() {
		return fmt.Errorf("save state of %s: %w", l.dir, ErrClosed)
	}
	l.mu.Lock()
	next := l.state
	if st != nil {
		next = *st
	}
	if next.PositionGeneration < l.state.PositionGeneration {
		next.PositionGeneration, next.Position = l.state.PositionGeneration, l.state.Position
	}
	l.track.committed(max(next.HWM, l.state.HWM))
	next.HWM = l.track.hwm
	few := sync && len(l.track.now.streams) <= fewStreams
	if start >= 0 || few || l.wantSnap || l.sinceSnap >= snapEvery || l.segmentPassedLocked() {
		l.snapLocked()
	}
	l.savedStart = max(l.savedStart, start)
	start = l.savedStart
	l.state, l.recovery.StateFound = next, true
	l.mu.Unlock()
	return l.slots.save(&next, start, l.encoded, sync)
}

// segmentPassedLocked tells that the HWM has reached the active segment while
// the snapshot has not: with a new one an open needs to read that segment only.
func (l *Log) segmentPassedLocked() bool {
	n := len(l.bases)
	return n > 0 && l.encodedAt < l.bases[n-1] && l.track.hwm >= l.bases[n-1]
}

// snapLocked takes a snapshot at or below the HWM. The caller holds stateMu too.
func (l *Log) snapLocked() {
	l.track.fold()
	base := l.track.base
	if base.at > l.track.hwm {
		return
	}
	l.encoded = appendSnapshot(l.encoded[:0], snapshot{producers: base, epochs: l.epochs.truncate(base.at)})
	l.encodedAt, l.sinceSnap, l.wantSnap = base.at, 0, false
}
