// Package commit is ack=committed: messages go straight to the leaders of their
// partitions, without the write-ahead log, and are answered when they are committed
// there.
//
//	Commit: plan (one unit per partition) --> lane of the partition --> one call for all units that wait
//	refused for sure: again, elsewhere when the unit may go anywhere, until its time is over
//	unknown: 504; again only with a number of the client's own, which the partition judges
//
// Invariants: a unit is stored as a whole or not at all; what may have been stored is
// never said to be refused, and is sent again only under a client's number; a lone unit
// waits for nothing. Units of one partition share a call, callsPerLane at once,
// so that many small produces cost one append and one sync.
//
// It keeps nothing: a unit lives as long as its request, or the call that carries it.
// It does not decide who leads, and does not know the order of a client's numbers
// (the partition does). commit_test.go goes through the outcomes.
package commit
