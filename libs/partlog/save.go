package partlog

import "fmt"

// snapEvery: a snapshot is taken anew after so many bytes, so that an open after
// a crash replays about that much, and saving ten times a second stays cheap.
const snapEvery = 4 << 20

// SaveState writes the state, with sync durably, to the slot that is not the
// durable one. The HWM never goes back: a lower one than before is not stored.
// A position longer than MaxPosition is an error. After another error the state
// on disk is an earlier one, and the call may be repeated.
func (l *Log) SaveState(st State, sync bool) error {
	if len(st.Position) > MaxPosition {
		return fmt.Errorf("save state of %s: position of %d bytes, at most %d", l.dir, len(st.Position), MaxPosition)
	}
	return l.save(&st, sync, false)
}

// save stores st, or the state as it was saved last when st is nil.
func (l *Log) save(st *State, sync, fresh bool) error {
	l.stateMu.Lock()
	defer l.stateMu.Unlock()
	l.mu.Lock()
	next := l.state
	if st != nil {
		next = *st
	}
	next.HWM = max(next.HWM, l.state.HWM)
	l.track.committed(next.HWM)
	if fresh || l.wantSnap || l.sinceSnap >= snapEvery || l.segmentPassedLocked() {
		l.snapLocked()
	}
	l.state, l.recovery.StateFound = next, true
	l.mu.Unlock()
	if err := l.slots.save(&next, l.encoded, sync); err != nil {
		return err
	}
	if sync {
		l.durableSnap = l.encodedAt
	}
	return nil
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
	l.encoded = appendSnapshot(l.encoded[:0], snapshot{base, l.epochs.truncate(base.at)})
	l.encodedAt, l.sinceSnap, l.wantSnap = base.at, 0, false
}
