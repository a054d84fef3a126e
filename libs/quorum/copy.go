package quorum

import "github.com/narad-mq/narad/libs/topic"

// Found is what a node finds of its copy when it opens it.
type Found struct {
	Disk       topic.ID64 // of the data directory, and the one that the copy was made on
	Directory  bool       // the copy's directory exists
	Copy       topic.ID64 // its id
	FenceValid bool       // a slot of the fence file is valid
	LEO, HWM   int64      // of the log after recovery, and stored
}

// Verdict is what a copy found on a disk is good for.
type Verdict uint8

// The verdicts.
const (
	// Whole: it is the replica that the metastore records, with all it vouched for.
	Whole Verdict = iota
	// Unopened: the metastore has recorded no copy yet, so none ever counted: make
	// the directory with its copy id unless it is there, and have it recorded.
	Unopened
	// Waiting: nothing is missing, but the metastore names another copy: it
	// fetches, and counts for nothing until an entry admits it.
	Waiting
	// Lost: it may lack what it vouched for. Before anything is appended it draws
	// a new copy id, durably, and is Waiting from then on.
	Lost
)

// JudgeCopy judges what was found against what the metastore records for this
// node (zero: nothing); alone tells that the set has no other replica. A view of
// the metastore that is not current is safe but for alone, which must be judged
// by one that shows the own registration of this start.
//
// Safe because: a copy that lacks anything it once reported as synced must not
// be counted with what it reported. The new copy id makes that durable: once the
// log has grown above the stored HWM again, nothing else would tell. A lone copy
// whose log ends below its HWM stays: nobody else has what is missing.
func JudgeCopy(found Found, recorded Replica, alone bool) Verdict {
	unopened := recorded.Copy == 0 && found.Disk == recorded.Disk
	named := found.Disk == recorded.Disk && found.Copy == recorded.Copy
	switch {
	case !found.Directory && unopened:
		return Unopened
	case !found.Directory, !found.FenceValid, found.LEO < found.HWM && !(alone && (named || unopened)):
		return Lost
	case unopened:
		return Unopened
	case !named:
		return Waiting
	}
	return Whole
}
