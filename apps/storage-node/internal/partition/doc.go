// Package partition is one partition as its leader runs it: the log of
// libs/partlog, the commit rule of libs/quorum, and the consume side above them.
//
// # Commit
//
//	under the append lock: epoch and incarnation are checked again, records that
//	    the partition already has are dropped, the rest is appended, and the end
//	    of the log is remembered
//	outside of it: one of those who wait runs the fsync, for all of them; what
//	    is appended meanwhile waits for the next one
//	then: the high watermark moves by the rule, and whoever waits for an end at or
//	    below it is answered, a duplicate as a first copy
//
// Invariants: success is answered only when the high watermark has passed the end
// that the log had after the append, under the same epoch; commit times never
// decrease; nothing above the high watermark is shown; after a failed write or
// sync nothing is appended before a new epoch, and everybody who waits hears that
// the outcome is unknown. A partition has no goroutine and no timer of its own:
// it works on the goroutines of its callers.
//
// It does not decide who leads (package node, from the metastore replica) and
// does not look into messages. TestDuplicateWaitsLikeAFirstCopy and
// TestEverySyncPoint explain it.
package partition
