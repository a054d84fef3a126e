// Package controller is what a metastore voter does for others: the Voter of
// package metaapi, and the loops that run on the Raft leader.
//
//	elected ──> barrier ──> cluster id ──> term: stamps every 2 s, judge every 1 s ──> revoked
//
// Invariants. Everything that decides runs inside a term: it begins after the
// barrier of one leadership and ends with that leadership, exactly paired
// (TestFlapsPairTerms); nothing in memory outlives it. Silence is measured with
// the leader's monotonic clock from the beginning of the term, so that a new
// leader gives every member the whole time, whatever wall clocks do. The
// verdict itself is the pure function judge, with the breaker in it.
//
// A voter that does not lead answers 421 with the leader's address, one without
// a Raft configuration 412. An outcome that is unknown is said to be unknown.
//
// It elects no partition leader and takes no step of a decommission itself: packages
// election and decommission do, within its terms.
package controller
