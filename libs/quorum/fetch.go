package quorum

import (
	"fmt"
	"slices"
)

// LogView is the leader's log at the moment of a fetch.
type LogView struct {
	Start   int64        // log start
	Written int64        // end of what is written, synced or not
	History []EpochStart // ascending
}

// Fetch judges a fetch and counts it; nowMS is when it arrived. moved tells
// whether the HWM moved. The caller adds the bytes from the fetch offset on, up
// to what is written, or the snapshot at log start.
//
// Errors, after which nothing was counted: ErrStaleEpoch (tell the fetcher the
// own epoch), ErrNewerEpoch (this leader has stepped down), ErrEnded,
// ErrNotReplica (nothing is given to a stranger), ErrInvalidFetch and
// ErrBeyondEnd (forged: refused, logged and counted).
//
// Safe because: an offset counts only when it lies on this leader's history
// within what it has written; the log of a copy that diverged, or that ends
// below the log start, counts for nothing.
func (l *Leader) Fetch(f Fetch, view LogView, nowMS int64) (a Answer, moved bool, err error) {
	l.Appended(view.Written)
	if err := l.current(f.Epoch); err != nil {
		l.StepDown(f.Epoch)
		return Answer{}, false, err
	}
	p, counts, err := l.sender(f.From)
	if err != nil {
		return Answer{}, false, err
	}
	if err := l.plausible(f, view); err != nil {
		return Answer{}, false, err
	}
	a = Answer{Epoch: l.epoch, Offset: f.Offset, LastEpoch: f.LastEpoch, LogStart: view.Start}
	toEpoch, toEnd, diverged := Diverging(view.History, view.Written, f.LastEpoch, f.Offset)
	switch {
	case f.Offset < view.Start || (diverged && toEnd <= view.Start && view.Start > 0):
		a.Kind, p.end = Snapshot, 0
	case diverged:
		a.Kind, a.ToEpoch, a.ToEnd, p.end = Diverged, toEpoch, toEnd, 0
	default:
		p.end = f.Offset
	}
	p.placed = a.Kind == Records && !f.More
	p.round, p.heard, p.heardMS = max(p.round, f.Round), true, nowMS
	if counts {
		moved = l.advance()
	}
	a.HWM, a.Round = l.hwm, l.round
	return a, moved, nil
}

// plausible refuses positions that no honest copy can be at: no record of this
// epoch lies beyond what its leader has written or before it began, and none is
// of a later one.
func (l *Leader) plausible(f Fetch, view LogView) error {
	switch {
	case f.Offset < 0 || (f.LastEpoch == l.epoch && f.Offset > view.Written):
		return fmt.Errorf("fetch from %d by %s: %w: end is %d", f.Offset, f.From, ErrBeyondEnd, view.Written)
	case f.LastEpoch > l.epoch, (f.LastEpoch == 0) != (f.Offset == 0), f.Round > l.round:
		return fmt.Errorf("fetch from %d after epoch %d, round %d by %s: %w", f.Offset, f.LastEpoch, f.Round, f.From, ErrInvalidFetch)
	}
	for _, e := range view.History {
		if e.Epoch == f.LastEpoch && f.Offset <= e.Start {
			return fmt.Errorf("fetch from %d after epoch %d by %s: %w: it begins at %d", f.Offset, e.Epoch, f.From, ErrInvalidFetch, e.Start)
		}
	}
	return nil
}

// sender finds what is known of the copy that fetches, and whether it counts.
// Another copy of a replica's node says that the replica is lost: its offset is
// erased, and it waits among the others to be re-admitted. One that the set named
// before says nothing: the metastore has put this one in its place since.
func (l *Leader) sender(r Replica) (p *progress, counts bool, err error) {
	i := slices.IndexFunc(l.members, func(p progress) bool { return p.replica.Node == r.Node })
	switch {
	case i < 0 && !slices.Contains(l.observers, r.Node), i == l.self:
		return nil, false, fmt.Errorf("fetch by %s: %w", r, ErrNotReplica)
	case i >= 0 && l.members[i].replica == r:
		if l.members[i].lost {
			return nil, false, fmt.Errorf("fetch by %s: %w: another copy took its place", r, ErrNotReplica)
		}
		return &l.members[i], true, nil
	case i >= 0 && slices.Contains(l.gone, r):
		return nil, false, fmt.Errorf("fetch by %s: %w: another copy took its place", r, ErrNotReplica)
	case i >= 0:
		l.members[i] = progress{replica: l.members[i].replica, lost: true}
	}
	k := slices.IndexFunc(l.others, func(p progress) bool { return p.replica.Node == r.Node })
	if k < 0 {
		l.others = append(l.others, progress{})
		k = len(l.others) - 1
	}
	if l.others[k].replica != r {
		l.others[k] = progress{replica: r}
	}
	return &l.others[k], false, nil
}
