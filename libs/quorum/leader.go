package quorum

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// LeaderChange tells when a leader has to append its leader-change batch.
type LeaderChange uint8

// The answers.
const (
	// NotNeeded: nothing of an earlier epoch exists, so every record is of this one.
	NotNeeded LeaderChange = iota
	// BeforeFirstAppend: all there is was committed already; the batch only
	// marks where the new epoch begins, and an idle partition costs no write.
	BeforeFirstAppend
	// AtOnce: there is a tail of earlier epochs (or may be one on others) that
	// only a record of this epoch can commit.
	AtOnce
)

// progress is what a leader knows of a copy.
type progress struct {
	replica Replica
	end     int64 // synced end: own, or the last fetch offset; unknown is 0
	heardMS int64 // of the last fetch that counted
	heard   bool  // heardMS holds
	placed  bool  // it has fetched, from end, which lies on this leader's history
	round   uint64
	// lost: another copy of that node has fetched, so this one's data is gone. It
	// never counts again under this leadership, whatever arrives late.
	lost bool
}

// Leader is the state of one leadership: one epoch of one partition. It ends
// with the epoch; another one begins with Lead.
type Leader struct {
	fence      *Fence // nil: nobody fences this copy
	epoch      topic.Epoch
	start      int64 // offset of the first record of this epoch, existing or next
	hwm        int64 // hwm <= own synced end, but for a lone copy's gap: hwm <= max(synced, start)
	written    int64 // fetchable end; at least the synced one
	change     LeaderChange
	ended      error
	round      uint64
	version    uint64 // of the replica set
	settleFrom int64  // a committed record from here on settles the version
	self       int    // index in members
	members    []progress
	observers  []string
	others     []progress // observers, and copies that wait to be re-admitted
	gone       []Replica  // that the set named before: what they say comes late, at most maxGone
	scratch    []int64
}

// BecomeLeader is Lead for a copy without fence and without changes of the
// replica set.
func BecomeLeader(self Replica, set []Replica, epoch topic.Epoch, log Log) (*Leader, error) {
	return lead(nil, self, Config{Replicas: set}, epoch, log)
}

// Lead begins a leadership that the metastore gave to the fence's copy.
//
// Safe because: the epoch must be above that of every batch in the log and of
// every leadership of this process, so no two leaderships write records of one
// epoch (a restarted leader, or one whose sync failed, cannot go on in its old
// epoch, where followers may hold what it lost). Among several replicas only a
// copy that promised this very epoch can have been elected. The HWM starts at the
// stored one, which was committed when it was stored and so still is. The first
// record of this epoch goes to start, the end of the log: nothing below start is
// of this epoch, so the restriction in advance is one comparison.
//
// A log that ends below its HWM must not lead a replicated partition
// (ErrBelowHWM): another replica has what is missing. A lone copy leads with
// what it has and goes on from the stored HWM, so that no offset that was ever
// exposed is used for other bytes; the offsets between are a gap.
func Lead(fence *Fence, c Config, epoch topic.Epoch, log Log) (*Leader, error) {
	if epoch < fence.promised || epoch <= fence.led || (len(c.Replicas) > 1 && fence.stored != epoch) {
		return nil, fmt.Errorf("lead under %d: %w: promised %d, stored %d, led %d",
			epoch, ErrStaleEpoch, fence.promised, fence.stored, fence.led)
	}
	l, err := lead(fence, fence.self, c, epoch, log)
	if err == nil {
		fence.led = epoch
	}
	return l, err
}

func lead(fence *Fence, self Replica, c Config, epoch topic.Epoch, log Log) (*Leader, error) {
	if err := validSet(c.Replicas); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains(c.Replicas, self):
		return nil, fmt.Errorf("%w: %s is not in it", ErrInvalidSet, self)
	case epoch <= log.LastEpoch:
		return nil, fmt.Errorf("%w: %d, the log has %d", ErrStaleEpoch, epoch, log.LastEpoch)
	case log.LEO < log.HWM && len(c.Replicas) > 1:
		return nil, fmt.Errorf("%w: end %d, high watermark %d", ErrBelowHWM, log.LEO, log.HWM)
	}
	start := max(log.LEO, log.HWM)
	l := &Leader{
		fence: fence, epoch: epoch, start: start, hwm: log.HWM, written: start,
		change: changeNeeded(len(c.Replicas), log), settleFrom: start,
	}
	l.replace(self, c)
	l.members[l.self].end = log.LEO
	l.settle()
	return l, nil
}

// settle lets the fence remember that the HWM of this epoch covers everything.
func (l *Leader) settle() {
	if l.fence != nil && l.CanServe() {
		l.fence.settled = l.epoch
	}
}

// changeNeeded is the leader-change rule. Among several replicas another one
// may hold committed records that this HWM does not know of, so only a committed
// record of the own epoch tells where committed ends. A lone copy knows it: what
// it has synced is what is committed, and only a tail that it never counted
// needs the batch.
func changeNeeded(replicas int, log Log) LeaderChange {
	switch {
	case replicas > 1 || log.LEO > log.HWM:
		return AtOnce
	case log.LastEpoch == 0 && log.HWM == 0:
		return NotNeeded
	}
	return BeforeFirstAppend
}

// Epoch is the epoch of this leadership.
func (l *Leader) Epoch() topic.Epoch { return l.epoch }

// Start is the offset at which this epoch begins: its first batch must go there.
func (l *Leader) Start() int64 { return l.start }

// HWM is the high watermark: everything below it is committed.
func (l *Leader) HWM() int64 { return l.hwm }

// LEO is the leader's own synced end.
func (l *Leader) LEO() int64 { return l.members[l.self].end }

// Version is that of the replica set which this leader counts by.
func (l *Leader) Version() uint64 { return l.version }

// LeaderChange tells when the leader-change batch has to be appended.
func (l *Leader) LeaderChange() LeaderChange { return l.change }

// Ended tells whether and why this leadership is over: nil while it goes on. A
// promise of the copy's fence ends it without a call.
func (l *Leader) Ended() error {
	if l.ended == nil && l.fence != nil && l.fence.promised > l.epoch {
		l.ended = fmt.Errorf("epoch %d: %w: %d is promised", l.epoch, ErrEnded, l.fence.promised)
	}
	return l.ended
}

// StepDown ends the leadership because a newer epoch exists; an older one
// changes nothing. Safe because: ending is always safe; what was synced here is
// still in the log for the fence answer.
func (l *Leader) StepDown(epoch topic.Epoch) {
	if l.Ended() == nil && epoch > l.epoch {
		l.ended = fmt.Errorf("epoch %d: %w: %w: %d", l.epoch, ErrEnded, ErrNewerEpoch, epoch)
	}
}

// Failed ends the leadership because a write or sync failed. Safe because: what
// was written and not synced may be with followers already, under this epoch, so
// other bytes at those offsets need another one.
func (l *Leader) Failed() {
	if l.Ended() == nil {
		l.ended = fmt.Errorf("epoch %d: %w: a write or sync failed", l.epoch, ErrEnded)
	}
}

// Appended reports that the log is written, not yet synced, up to end: so far
// followers may fetch, sync and report before the own sync has returned.
func (l *Leader) Appended(end int64) { l.written = max(l.written, end) }

// Synced reports that the leader's log is synced up to leo, and tells whether
// the HWM moved. Safe because: only fsynced bytes count, the leader counts as
// any replica does, and within an epoch its log only grows (a failed sync ends
// the leadership), so a lower value is the late answer of an earlier sync and
// changes nothing.
func (l *Leader) Synced(leo int64) bool {
	own := &l.members[l.self]
	if leo <= own.end || l.Ended() != nil {
		return false
	}
	own.end = leo
	l.written = max(l.written, leo)
	return l.advance()
}

// Fetched reports that a replica fetches from offset under the leader epoch that
// it believes in, which says that it has synced everything below offset, and
// tells whether the HWM moved. The caller has checked before that the replica's
// last (epoch, offset) lies on this leader's history, which Fetch does: an
// offset on a diverged log must not be counted.
//
// Safe because: an observer or another copy of a node is ErrNotReplica and never
// counts; a fetch of another epoch does not count, since the replica may have
// promised itself to another leader; and the last report replaces the one
// before even when it is lower, so that a copy that lost something stops
// counting with what it lost. That never takes the HWM back. A copy may be ahead
// of the own synced end, in what is written here: the HWM is bounded by it.
func (l *Leader) Fetched(r Replica, epoch topic.Epoch, offset int64) (bool, error) {
	if err := l.current(epoch); err != nil {
		return false, err
	}
	if offset < 0 || offset > l.written {
		return false, fmt.Errorf("%w: %d, end is %d", ErrBeyondEnd, offset, l.written)
	}
	i := l.member(r)
	if i < 0 || i == l.self || l.members[i].lost {
		return false, fmt.Errorf("%w: %s", ErrNotReplica, r)
	}
	l.members[i].end = offset
	return l.advance(), nil
}

// current refuses fetches of another epoch.
func (l *Leader) current(epoch topic.Epoch) error {
	switch {
	case epoch < l.epoch:
		return fmt.Errorf("%w: fetch under %d, current is %d", ErrStaleEpoch, epoch, l.epoch)
	case epoch > l.epoch:
		return fmt.Errorf("%w: fetch under %d, own is %d", ErrNewerEpoch, epoch, l.epoch)
	}
	return l.Ended()
}

func (l *Leader) member(r Replica) int {
	return slices.IndexFunc(l.members, func(p progress) bool { return p.replica == r })
}

// advance moves the HWM to the highest end that a majority has reached, if the
// record just below it is of this epoch.
//
// Safe because: two majorities share a replica, and an election takes the
// longest log of a majority, so what a majority has synced is in every later
// leader's log, provided that no other log can count as newer. Records of
// earlier epochs can lose against a log with a newer last epoch although a
// majority has them (Figure 8); records of this epoch cannot, and they take
// everything below them along, because logs that agree on one (epoch, offset)
// agree on everything before it.
func (l *Leader) advance() bool {
	for i, m := range l.members {
		l.scratch[i] = m.end
	}
	slices.Sort(l.scratch)
	// The majority-th highest: with n replicas in ascending order, floor(n/2)+1
	// of them are at or above index (n-1)/2.
	end := min(l.scratch[(len(l.scratch)-1)/2], l.LEO())
	if end <= l.start || end <= l.hwm {
		return false
	}
	l.hwm = end
	l.settle()
	return true
}
