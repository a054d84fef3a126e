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
// Error: ErrNoMajority.
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
		if i := bestOf(answers, epoch, r); i >= 0 {
			counted = append(counted, answers[i])
		}
	}
	if len(counted) < Majority(len(set)) {
		return Elected{}, fmt.Errorf("elect under %d: %w: %d of %d", epoch, ErrNoMajority, len(counted), len(set))
	}
	best := counted[0]
	generation := uint64(0)
	for _, a := range counted {
		if compareEnds(a, best) > 0 || (compareEnds(a, best) == 0 && a.Replica == wanted) {
			best = a
		}
		generation = max(generation, a.Generation)
	}
	out := Elected{Leader: best.Replica}
	for _, a := range counted {
		if a.Generation == generation {
			out.Positions = append(out.Positions, a.Replica)
		}
	}
	return out, nil
}

// bestOf is the largest answer of a replica for the epoch, or -1: a copy that
// answered twice may have finished a sync between.
func bestOf(answers []FenceAnswer, epoch topic.Epoch, r Replica) int {
	best := -1
	for i, a := range answers {
		if a.Replica == r && a.Epoch == epoch && (best < 0 || compareEnds(a, answers[best]) > 0) {
			best = i
		}
	}
	return best
}

// compareEnds orders logs by (last epoch, end).
func compareEnds(a, b FenceAnswer) int {
	return slices.Compare([]int64{int64(a.LastEpoch), a.LEO}, []int64{int64(b.LastEpoch), b.LEO})
}
