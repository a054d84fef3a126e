package quorum

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Elected is the outcome of an election.
type Elected struct {
	Leader Replica
	// Positions are the copies that hold consumer positions of the newest
	// generation: their union is what the leader begins with.
	Positions []Replica
}

// Elect chooses the leader of an epoch among the copies that promised it, and
// of equals the wanted one (zero: the first of the set). Answers for another
// epoch, of copies that the set does not name, and repeated ones do not count.
// A damaged copy counts as any other and is never chosen. Errors: ErrNoMajority;
// ErrOnlyDamaged, until another copy answers.
//
// Safe because: the answers of a majority include a copy of every majority that
// committed something, and each can count for nothing older any more. Of two
// logs the one with the newer last epoch, then the longer one, holds everything
// committed: the current-epoch rule makes a committed record one that no log
// without it can beat. The entry that names the leader must compare the epoch,
// that it has no leader, and the version of set.
func Elect(epoch topic.Epoch, answers []FenceAnswer, set []Replica, wanted Replica) (Elected, error) {
	var counted []FenceAnswer
	for _, r := range set {
		if a, ok := answerOf(answers, epoch, r); ok {
			counted = append(counted, a)
		}
	}
	if len(counted) < Majority(len(set)) {
		return Elected{}, fmt.Errorf("elect under %d: %w: %d of %d", epoch, ErrNoMajority, len(counted), len(set))
	}
	var best *FenceAnswer
	generation := uint64(0)
	for i := range counted {
		a := &counted[i]
		generation = max(generation, a.Generation)
		if a.Damaged || !holdsAll(a, counted, Majority(len(set))) {
			continue
		}
		if best == nil || compareEnds(a, best) > 0 || (compareEnds(a, best) == 0 && a.Replica == wanted) {
			best = a
		}
	}
	if best == nil {
		return Elected{}, fmt.Errorf("elect under %d: %w: %d of %d answered", epoch, ErrOnlyDamaged, len(counted), len(set))
	}
	out := Elected{Leader: best.Replica}
	for _, a := range counted {
		if a.Generation == generation {
			out.Positions = append(out.Positions, a.Replica)
		}
	}
	return out, nil
}

// holdsAll tells whether a copy is known to have everything committed, by the
// answers of a majority or more. Without damage the largest always is. Behind a
// damaged one it is one that
//
//   - is the largest of some majority: that is an election without the others; or
//   - has the log of the last leader up to its final HWM.
//
// It is not enough that each majority of the set names the copy, as in a pair: a
// record may have been committed before the copy was a replica.
//
// Safe because, for the second: no record is committed under an epoch above all of
// the answers (the largest would have it), the last leader says that those of its
// epoch and before lie below its HWM, and logs with the same last epoch are the
// same as far as both go.
func holdsAll(c *FenceAnswer, counted []FenceAnswer, majority int) bool {
	below, newest := 0, topic.Epoch(0)
	for i := range counted {
		newest = max(newest, counted[i].LastEpoch)
		if compareEnds(&counted[i], c) <= 0 {
			below++
		}
	}
	return below >= majority || slices.ContainsFunc(counted, func(l FenceAnswer) bool {
		return l.Settled != 0 && l.Settled >= newest && l.LastEpoch == c.LastEpoch && c.LEO >= l.HWM
	})
}

// answerOf is what a replica answered for the epoch: the largest, because a copy
// that answered twice may have finished a sync between, and damaged if it ever said so.
func answerOf(answers []FenceAnswer, epoch topic.Epoch, r Replica) (best FenceAnswer, ok bool) {
	damaged := false
	for i := range answers {
		a := &answers[i]
		if a.Replica != r || a.Epoch != epoch {
			continue
		}
		if !ok || compareEnds(a, &best) > 0 {
			best, ok = *a, true
		}
		damaged = damaged || a.Damaged
	}
	best.Damaged = damaged
	return best, ok
}

// compareEnds orders logs by (last epoch, end).
func compareEnds(a, b *FenceAnswer) int {
	return slices.Compare([]int64{int64(a.LastEpoch), a.LEO}, []int64{int64(b.LastEpoch), b.LEO})
}
