package quorum

import (
	"errors"
	"fmt"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

const (
	// MaxReplicas bounds a replica set: the largest replication factor and one
	// more while a replica is being exchanged.
	MaxReplicas = 6
	// LeaseMS: a leader that no majority has fetched from for so long serves
	// nothing, because another one may have been elected. Long against a fetch
	// that waits 500 ms, short against a reader's patience.
	LeaseMS = 3000
	// CatchUpBytes: an observer that lacks more is not made a replica yet, since
	// every commit might wait for it: at 4 MiB for less than a second.
	CatchUpBytes = 4 << 20
)

// Errors of this package.
var (
	// ErrInvalidSet: the replica set is empty, too large, names a node twice, or
	// lacks the copy that is to lead.
	ErrInvalidSet = errors.New("invalid replica set")
	// ErrStaleEpoch: the epoch named is below what was seen or promised, or not
	// above what was led before. Someone else may lead under a newer one.
	ErrStaleEpoch = errors.New("stale leader epoch")
	// ErrNewerEpoch: somebody knows a newer epoch; a leader has stepped down, a
	// follower asks the metastore.
	ErrNewerEpoch = errors.New("a newer leader epoch exists")
	// ErrBelowHWM: the log ends, or would be cut, below what is committed. A copy
	// must not lead or count so; a follower that is told to stops and reports it.
	ErrBelowHWM = errors.New("log ends below its high watermark")
	// ErrNotReplica: the copy is not in the replica set, so it does not count,
	// fence or lead; a fetcher that is no observer either gets nothing.
	ErrNotReplica = errors.New("not a replica of this partition")
	// ErrBeyondEnd: an offset that the leader's log does not have.
	ErrBeyondEnd = errors.New("offset beyond the leader's log end")
	// ErrInvalidFetch: a fetch that no honest copy sends.
	ErrInvalidFetch = errors.New("fetch names a position that cannot exist")
	// ErrEnded: the leadership has ended (a failed sync, a newer epoch, removed
	// from the set); another one begins with another epoch.
	ErrEnded = errors.New("this leadership has ended")
	// ErrEpochHasLeader: the fence came for an epoch whose election is over.
	ErrEpochHasLeader = errors.New("the epoch has a leader already")
	// ErrNotStored: the promise is not on the disk yet.
	ErrNotStored = errors.New("the promise is not durable")
	// ErrNoEpoch: the log has records and the history does not tell the epoch of
	// the last one: it was trimmed too far.
	ErrNoEpoch = errors.New("epoch of the last record unknown")
	// ErrNoMajority: too few replicas answered; nobody may be elected.
	ErrNoMajority = errors.New("no majority of the replicas answered")
	// ErrOnlyDamaged: a majority answered, and only a damaged copy is known to have
	// everything committed; another answer may help.
	ErrOnlyDamaged = errors.New("only a damaged copy is known to have everything committed")
	// ErrNotSettled: the current set is not proven by a committed record, so the
	// next change has to wait.
	ErrNotSettled = errors.New("the last change of the replica set is not settled")
	// ErrNotCaughtUp: the copy lacks too much to become a replica.
	ErrNotCaughtUp = errors.New("the copy has not caught up")
	// ErrInvalidChange: not one replica added, taken away or re-admitted.
	ErrInvalidChange = errors.New("not a change of one replica")
)

// Replica is one copy: a directory (Copy, drawn with it) on a disk of a node. A
// node that comes back with another disk or another directory is another
// replica, so that what the lost one had synced stops counting.
type Replica struct {
	Node string
	Disk topic.ID64
	Copy topic.ID64 // 0 everywhere until the metastore records it
}

// String is the form for errors: s1 (disk 000000000000000a, copy 000000000000000b).
func (r Replica) String() string { return fmt.Sprintf("%s (disk %s, copy %s)", r.Node, r.Disk, r.Copy) }

// Log is what the copy that is to lead has on its disk.
type Log struct {
	LEO       int64       // synced end
	HWM       int64       // stored high watermark
	LastEpoch topic.Epoch // of the last batch; 0: the log never had one
}

// Leadership is who leads, as the metastore has it.
type Leadership struct {
	Epoch  topic.Epoch
	Leader string // node; empty: none
}

// Config is the replica set as the metastore has it. A change of the observers is
// a new version too, with the same Replicas, and the same Before and Since in Set.
type Config struct {
	Version   uint64
	Replicas  []Replica
	Observers []string // nodes that may fetch and never count
}

// Majority is how many of n replicas make one: 4 need 3, so they tolerate no
// more losses than 3 do.
func Majority(n int) int { return n/2 + 1 }

// validSet refuses sets that are empty, too large or name a node twice: two
// copies on one node are lost together.
func validSet(set []Replica) error {
	if len(set) == 0 || len(set) > MaxReplicas {
		return fmt.Errorf("%w: %d replicas", ErrInvalidSet, len(set))
	}
	for i, r := range set {
		if indexOfNode(set[:i], r.Node) >= 0 {
			return fmt.Errorf("%w: node %s twice", ErrInvalidSet, r.Node)
		}
	}
	return nil
}

func indexOfNode(set []Replica, node string) int {
	return slices.IndexFunc(set, func(r Replica) bool { return r.Node == node })
}
