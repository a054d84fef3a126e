// Package quorum is the commit rule of a partition: KRaft's high watermark, as
// a pure state machine. Inputs are what happened (this copy synced up to here, a
// replica fetched from there), the output is the high watermark (HWM): the
// offset below which every record is committed.
//
// A partition with one replica is the same rule with a majority of one; there
// is one commit path, not two.
//
// Invariants, for every sequence of inputs (TestRuleAgainstOracle):
//   - the HWM never moves back and never exceeds the leader's synced end (LEO);
//   - it moves only to an offset that a majority of the replicas, the leader
//     included, has synced, and only when the record just below that offset is
//     of the leader's own epoch (TestFigure8).
//
// All offsets are exclusive ends: 100, 100, 95 on three replicas give HWM 100,
// so 99 is the last committed record (TestWorkedExample).
//
// It has no I/O, no clock, no goroutine and no lock: the owner of a partition
// calls it under its own. It holds the leader only; followers, observers,
// elections and changes of the replica set come with replicated partitions.
package quorum

import (
	"errors"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// MaxReplicas bounds a replica set: the largest replication factor and one more
// while a replica is being exchanged.
const MaxReplicas = 6

// Errors of this package.
var (
	// ErrInvalidSet: the replica set is empty, too large, names one twice, or
	// lacks the copy that is to lead.
	ErrInvalidSet = errors.New("invalid replica set")
	// ErrStaleEpoch: the epoch named is not above what was seen before. Someone
	// else may lead under a newer one, or led under this one.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrNewerEpoch: a replica knows a newer epoch; this leader must step down.
	ErrNewerEpoch = errors.New("a newer leader epoch exists")
	// ErrBelowHWM: the log ends below what it had committed, so this copy may
	// lack what others committed and must not lead or count.
	ErrBelowHWM = errors.New("log ends below its high watermark")
	// ErrNotReplica: the fetcher does not count toward the majority.
	ErrNotReplica = errors.New("not a replica of this partition")
	// ErrBeyondEnd: an offset that the leader's log does not have.
	ErrBeyondEnd = errors.New("offset beyond the leader's log end")
)

// Replica is one copy that counts: a node and the disk that holds the copy. A
// node that comes back with another disk is another replica, so that what the
// lost disk had synced stops counting.
type Replica struct {
	Node string
	Disk topic.ID64
}

// Log is what the copy that is to lead has on its disk.
type Log struct {
	LEO       int64       // synced end
	HWM       int64       // stored high watermark
	LastEpoch topic.Epoch // of the last batch; 0: the log never had one
}

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

type progress struct {
	replica Replica
	end     int64 // synced end: own, or the last fetch offset; unknown is 0
}

// Leader is the state of one leadership: one epoch of one partition. It ends
// with the epoch; another one begins with BecomeLeader.
type Leader struct {
	epoch   topic.Epoch
	start   int64 // offset of the first record of this epoch, existing or next
	hwm     int64 // hwm <= own synced end, but for a lone copy's gap: hwm <= max(synced, start)
	change  LeaderChange
	self    int        // index in members
	members []progress // the replica set
	scratch []int64
}

// BecomeLeader begins a leadership.
//
// Safe because: the epoch must be above that of every batch in the log, so no
// two leaderships write records of one epoch (a restarted leader cannot go on
// in its old epoch, where others may have replaced it). The HWM starts at the
// stored one, which was committed when it was stored and so still is. The first
// record of this epoch goes to start, the end of the log: nothing below start
// is of this epoch, so the restriction in advance is one comparison.
//
// A log that ends below its HWM must not lead a replicated partition
// (ErrBelowHWM): another replica has what is missing. A lone copy leads with
// what it has and goes on from the stored HWM, so that no offset that was ever
// exposed is used for other bytes; the offsets between are a gap.
func BecomeLeader(self Replica, set []Replica, epoch topic.Epoch, log Log) (*Leader, error) {
	if len(set) == 0 || len(set) > MaxReplicas {
		return nil, fmt.Errorf("%w: %d replicas", ErrInvalidSet, len(set))
	}
	l := &Leader{epoch: epoch, self: -1, start: max(log.LEO, log.HWM), hwm: log.HWM, scratch: make([]int64, len(set))}
	for i, r := range set {
		if slices.Contains(set[:i], r) {
			return nil, fmt.Errorf("%w: %s on disk %s twice", ErrInvalidSet, r.Node, r.Disk)
		}
		if r == self {
			l.self = i
		}
		l.members = append(l.members, progress{replica: r})
	}
	switch {
	case l.self < 0:
		return nil, fmt.Errorf("%w: %s on disk %s is not in it", ErrInvalidSet, self.Node, self.Disk)
	case epoch <= log.LastEpoch:
		return nil, fmt.Errorf("%w: %d, the log has %d", ErrStaleEpoch, epoch, log.LastEpoch)
	case log.LEO < log.HWM && len(set) > 1:
		return nil, fmt.Errorf("%w: end %d, high watermark %d", ErrBelowHWM, log.LEO, log.HWM)
	}
	l.members[l.self].end = log.LEO
	l.change = changeNeeded(len(set), log)
	return l, nil
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

// LeaderChange tells when the leader-change batch has to be appended.
func (l *Leader) LeaderChange() LeaderChange { return l.change }

// CanServe tells whether the HWM is known to cover everything that earlier
// epochs committed, which is when reads, leases and positions may be served:
// once a record of this epoch is committed, or from the start for a lone copy
// without a tail.
func (l *Leader) CanServe() bool { return l.change != AtOnce || l.hwm > l.start }

// Synced reports that the leader's log is synced up to leo, and tells whether
// the HWM moved. Safe because: only fsynced bytes count, the leader counts as
// any replica does, and within an epoch its log only grows (a failed sync ends
// the leadership), so a lower value is the late answer of an earlier sync and
// changes nothing.
func (l *Leader) Synced(leo int64) bool {
	own := &l.members[l.self]
	if leo <= own.end {
		return false
	}
	own.end = leo
	return l.advance()
}

// Fetched reports that a replica fetches from offset under the leader epoch that
// it believes in, which says that it has synced everything below offset, and
// tells whether the HWM moved. The caller has checked before that the replica's
// last (epoch, offset) lies on this leader's history: an offset on a diverged
// log must not be counted.
//
// Safe because: an observer or another disk of a node is ErrNotReplica and never
// counts; a fetch of another epoch does not count, since the replica may have
// promised itself to another leader; and the last report replaces the one
// before even when it is lower, so that a copy that lost something stops
// counting with what it lost. That never takes the HWM back.
func (l *Leader) Fetched(r Replica, epoch topic.Epoch, offset int64) (bool, error) {
	switch {
	case epoch < l.epoch:
		return false, fmt.Errorf("%w: fetch under %d, current is %d", ErrStaleEpoch, epoch, l.epoch)
	case epoch > l.epoch:
		return false, fmt.Errorf("%w: fetch under %d, own is %d", ErrNewerEpoch, epoch, l.epoch)
	case offset < 0 || offset > l.LEO():
		// A replica may fetch what is written and not yet synced here, and be
		// ahead of the LEO for a moment. It is asked again with its next fetch;
		// counting it now would gain nothing, as the HWM is bounded by the LEO.
		return false, fmt.Errorf("%w: %d, end is %d", ErrBeyondEnd, offset, l.LEO())
	}
	i := slices.IndexFunc(l.members, func(p progress) bool { return p.replica == r })
	if i < 0 || i == l.self {
		return false, fmt.Errorf("%w: %s on disk %s", ErrNotReplica, r.Node, r.Disk)
	}
	l.members[i].end = offset
	return l.advance(), nil
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
	for i := range l.members {
		l.scratch[i] = l.members[i].end
	}
	slices.Sort(l.scratch)
	// The majority-th highest: with n replicas in ascending order, floor(n/2)+1
	// of them are at or above index (n-1)/2.
	end := min(l.scratch[(len(l.scratch)-1)/2], l.LEO())
	if end <= l.start || end <= l.hwm {
		return false
	}
	l.hwm = end
	return true
}
