package quorum

// CanServe tells whether the HWM is known to cover everything that earlier
// epochs committed, which is when reads, leases and positions may be served:
// once a record of this epoch is committed, or from the start for a lone copy
// without a tail.
func (l *Leader) CanServe() bool { return l.change != AtOnce || l.hwm > l.start }

// MayServe tells whether a read, a claim or an attach point may be answered now:
// the leadership goes on, CanServe, and a majority, itself included, has fetched
// within the last LeaseMS. To be looked at when the answer is given.
//
// Safe because: a newer leader needs the promises of a majority, and none of
// those fetches here afterwards, so this one falls silent at most LeaseMS after
// it was replaced (and what a fetch was under way). That bounds how stale a read
// can be; only a confirm round excludes it.
func (l *Leader) MayServe(nowMS int64) bool {
	if l.Ended() != nil || !l.CanServe() {
		return false
	}
	return l.majority(func(p *progress) bool { return p.heard && nowMS-p.heardMS < LeaseMS })
}

// Confirm begins a confirm round: fetch answers carry its number from now on, and
// once it is Confirmed, a read up to hwm misses nothing that was committed before
// this call. ok is false when CanServe is: then the HWM may be an inherited one
// that lies below what others committed.
func (l *Leader) Confirm() (round uint64, hwm int64, ok bool) {
	if l.Ended() != nil || !l.CanServe() {
		return 0, 0, false
	}
	l.round++
	return l.round, l.hwm, true
}

// Confirmed tells whether a majority, itself included, has fetched again since
// the round began. Safe because: a fetch names a round only when it was sent
// after an answer that carried it, so at some moment after Confirm that copy had
// promised nothing newer; a majority of such copies means that no newer leader
// had been elected when the round began, so the HWM of then covered everything
// committed.
func (l *Leader) Confirmed(round uint64) bool {
	return l.Ended() == nil && l.majority(func(p *progress) bool { return p.round >= round })
}

// majority counts the own copy and the others for which ok holds.
func (l *Leader) majority(ok func(*progress) bool) bool {
	n := 0
	for i := range l.members {
		if i == l.self || ok(&l.members[i]) {
			n++
		}
	}
	return n >= Majority(len(l.members))
}

// HasAll tells whether a replica has synced everything that is written here, as
// has this leader: then an election may choose it (planned hand-over). The
// caller appends nothing meanwhile.
func (l *Leader) HasAll(r Replica) bool {
	i := l.member(r)
	return i >= 0 && l.members[i].end == l.written && l.LEO() == l.written
}

// Progress is what a leader shows of a copy.
type Progress struct {
	Replica Replica
	End     int64 // synced end as last reported; 0: not known
	Counts  bool  // false: an observer, or lost, or waiting to be re-admitted
	Heard   bool  // it has fetched under this leadership
	Placed  bool  // and from End: it has nothing above that
	HeardMS int64
}

// Progress lists the replicas in the order of the set, then the others.
func (l *Leader) Progress() []Progress {
	out := make([]Progress, 0, len(l.members)+len(l.others))
	for _, p := range l.members {
		out = append(out, Progress{p.replica, p.end, !p.lost, p.heard, p.placed, p.heardMS})
	}
	for _, p := range l.others {
		out = append(out, Progress{p.replica, p.end, false, p.heard, p.placed, p.heardMS})
	}
	return out
}
