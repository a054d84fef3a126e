package quorum

import (
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Set is a replica set with what the metastore remembers of how it came about.
type Set struct {
	Version  uint64
	Replicas []Replica
	Before   []Replica   // the set before the last change; nil: that cannot be taken back
	Since    topic.Epoch // leader epoch of the metastore when the change was made
}

// NextSet judges a change of the replica set to the replicas to. now and lead
// are the metastore's; v is what the leader vouched for, zero when it was not
// asked. The entry that makes the change must compare now's version and lead's
// epoch. Errors: ErrInvalidSet; ErrInvalidChange, also for taking the leader
// away (hand it over first); ErrNotSettled and ErrNotCaughtUp, to be tried later.
//
// One replica is added, taken away, or re-admitted in the place of the lost one
// of its node, and only from a settled set. Three changes need no leader's word:
//
//   - Recording the copy id of a replica that had none (Unopened). Safe because:
//     it never counted, so for every majority it is the same set with a copy that
//     has nothing.
//   - Taking back the replica that the last one added, which may be all that keeps
//     the set from committing. Safe because: what was committed was committed by a
//     majority of one of two sets that differ by one replica, and the next leader is
//     elected by one of these two. A replica that was taken away comes back as any
//     other is added: by then it may lack a lot, and commits would wait for it.
//   - From two to the one that leads an epoch which began after the pair did.
//     Safe because: that election had the promise of both, so its leader has
//     everything that either ever committed, and the other one alone can commit
//     nothing.
func NextSet(now Set, lead Leadership, to []Replica, v Vouch) (Set, error) {
	if err := validSet(to); err != nil {
		return Set{}, err
	}
	next := Set{Version: now.Version + 1, Replicas: slices.Clone(to), Before: now.Replicas, Since: lead.Epoch}
	added, gone := without(to, now.Replicas), without(now.Replicas, to)
	readmission := len(added) == 1 && len(gone) == 1 && added[0].Node == gone[0].Node
	switch {
	case len(added)+len(gone) == 0, len(added)+len(gone) > 1 && !readmission:
		return Set{}, fmt.Errorf("%w: %d added, %d taken away", ErrInvalidChange, len(added), len(gone))
	case readmission && gone[0].Copy == 0 && gone[0].Disk == added[0].Disk:
		next.Before = nil
		return next, nil
	case now.Before != nil && len(added)+len(without(to, now.Before))+len(without(now.Before, to)) == 0:
		return next, nil
	case len(now.Replicas) == 2 && len(to) == 1 && lead.Leader == to[0].Node && lead.Epoch > now.Since:
		return next, nil
	case lead.Leader == "" || v.Epoch != lead.Epoch || v.Version != now.Version || !v.Settled:
		return Set{}, fmt.Errorf("%w: version %d under epoch %d, vouched for version %d under %d",
			ErrNotSettled, now.Version, lead.Epoch, v.Version, v.Epoch)
	case readmission && !slices.Contains(v.Readmissible, added[0]), !readmission && len(added) == 1 && !slices.Contains(v.Near, added[0]):
		return Set{}, fmt.Errorf("%w: %s", ErrNotCaughtUp, added[0])
	case !readmission && len(gone) == 1 && gone[0].Node == lead.Leader:
		return Set{}, fmt.Errorf("%w: %s leads", ErrInvalidChange, gone[0])
	}
	if readmission {
		next.Before = nil
	}
	return next, nil
}

// without lists the replicas of a that are not in b.
func without(a, b []Replica) []Replica {
	var out []Replica
	for _, r := range a {
		if !slices.Contains(b, r) {
			out = append(out, r)
		}
	}
	return out
}
