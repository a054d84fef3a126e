package quorum

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// maxGone bounds the copies that are remembered to be gone: more changes of one set
// under one leadership are rare, and one that is forgotten can only end what another
// copy counts for until the next epoch.
const maxGone = 16

// replace takes a replica set over, keeping what is known of copies that stay.
func (l *Leader) replace(self Replica, c Config) {
	members := make([]progress, len(c.Replicas))
	for i, r := range c.Replicas {
		members[i] = progress{replica: r}
		if k := l.member(r); k >= 0 {
			members[i] = l.members[k]
		} else if k := slices.IndexFunc(l.others, func(p progress) bool { return p.replica == r }); k >= 0 {
			members[i] = l.others[k]
		}
		if r == self {
			l.self = i
		}
	}
	for _, m := range l.members {
		if !slices.Contains(c.Replicas, m.replica) && !slices.Contains(l.gone, m.replica) {
			l.gone = append(l.gone, m.replica)
		}
	}
	l.gone = l.gone[max(0, len(l.gone)-maxGone):]
	l.others = slices.DeleteFunc(l.others, func(p progress) bool {
		i := indexOfNode(c.Replicas, p.replica.Node)
		return (i >= 0 && c.Replicas[i] == p.replica) || (i < 0 && !slices.Contains(c.Observers, p.replica.Node))
	})
	l.members, l.observers, l.version = members, slices.Clone(c.Observers), c.Version
	l.scratch = make([]int64, len(members))
}

// Apply takes over the replica set that the own replica of the metastore shows;
// written is the end of the log now. It tells whether the HWM moved (a smaller
// set may need fewer). An older or the same version changes nothing. When the
// own copy is no longer in it the leadership ends: ErrEnded.
//
// Safe because: sets that follow each other differ by one replica, so each
// majority of one shares a replica with each majority of the other, and it does
// not matter when a leader switches from counting by one to the other.
func (l *Leader) Apply(c Config, written int64) (moved bool, err error) {
	if c.Version <= l.version {
		return false, l.Ended()
	}
	if err := validSet(c.Replicas); err != nil {
		return false, err
	}
	self := l.members[l.self].replica
	if !slices.Contains(c.Replicas, self) && l.Ended() == nil {
		l.ended = fmt.Errorf("epoch %d: %w: version %d of the replica set is without %s", l.epoch, ErrEnded, c.Version, self)
	}
	if err := l.Ended(); err != nil {
		return false, err
	}
	l.Appended(written)
	l.replace(self, c)
	l.settleFrom = l.written
	return l.advance(), nil
}

// Settled tells whether the current version is proven, which the next change
// waits for: a record appended after this leader applied the version is
// committed by it. A lone copy needs none: every later set holds that copy or
// takes its change back.
//
// Safe because: such a record, with everything below it, is on a majority of
// this version, which shares a replica with each majority of the next one. An
// older HWM proves nothing of the kind: it was counted by the set before.
func (l *Leader) Settled() bool {
	if len(l.members) == 1 {
		return l.CanServe()
	}
	return l.hwm > l.settleFrom
}

// NeedsBatch tells whether nothing has been appended yet that could settle the
// version or commit the tail of earlier epochs: an idle leader appends a
// leader-change batch then.
func (l *Leader) NeedsBatch() bool {
	return l.Ended() == nil && !l.Settled() && l.written <= l.settleFrom
}

// Readmissible tells whether a copy that has taken the place of a lost replica
// of the same node may be re-admitted under this leadership.
//
// Safe because: the lost copy's offset was erased by the first fetch of this
// one, so what is committed from then on is on a majority without it, and that
// shares a replica with each majority of the set with this copy in its place.
// What was committed before is below the HWM, because a record of this epoch is
// committed by this version (an inherited HWM may lie below what others
// committed), and this copy holds all of it.
func (l *Leader) Readmissible(r Replica) bool {
	i := slices.IndexFunc(l.others, func(p progress) bool { return p.replica == r })
	m := slices.IndexFunc(l.members, func(p progress) bool { return p.replica.Node == r.Node })
	return i >= 0 && m >= 0 && l.members[m].lost && l.Ended() == nil &&
		l.Settled() && l.CanServe() && l.others[i].end >= l.hwm
}

// Vouch is what a leader says about changes of the replica set. It stays true as
// long as the metastore shows that epoch, leader and version.
type Vouch struct {
	Epoch        topic.Epoch
	Version      uint64
	Settled      bool
	Near         []Replica // observers within CatchUpBytes
	Readmissible []Replica
}

// Vouch says which changes of the replica set this leader vouches for; near
// tells of an observer's synced end whether it is within CatchUpBytes of the
// own. Nothing is vouched for by a leadership that has ended.
func (l *Leader) Vouch(near func(end int64) bool) Vouch {
	if l.Ended() != nil {
		return Vouch{}
	}
	v := Vouch{Epoch: l.epoch, Version: l.version, Settled: l.Settled()}
	for _, p := range l.others {
		switch {
		case l.Readmissible(p.replica):
			v.Readmissible = append(v.Readmissible, p.replica)
		case slices.Contains(l.observers, p.replica.Node) && near(p.end):
			v.Near = append(v.Near, p.replica)
		}
	}
	return v
}
