// Package fanout copies what the partitions led here commit to the children of
// their topics. What a cursor does next package libs/fanout decides; this one reads,
// commits, waits and starts and stops cursors.
//
//	view.Changed --> reconcile: one cursor per (parent partition, child) led here
//	commit in a parent --> Tap --> a round: read --> one batch per bucket --> commit
//	                                        at the child's leader --> position
//	not due yet, or failed --> an alarm: one timer for all (package alarm)
//
// Invariants:
//   - a position moves only behind commits of the child, and only under the
//     leadership that the cursor was started for;
//   - a cursor without a position starts at its attach point, after the metastore
//     leader said that the attachment lives; never at the tail. A position of an
//     attachment that this replica does not show is left alone until the leader
//     says that it has ended (TestStaleViewMovesNoCursor);
//   - whoever waits for a slow child leader is left behind after a moment, with
//     one batch in memory, and at most a few such per node: the parent, its
//     consumers and the other children never wait (TestSlowChildHoldsNobody);
//   - a cursor with nothing due has no goroutine, no memory of records and one
//     place among the alarms, however much waits (TestPendingCostsNothing).
//
// TestFamilyAtRandom has one node and everything that happens to attachments;
// TestKinAtRandom four nodes, elections with tails that are cut, and moves.
//
// What it does not do: leadership, leases, anything about consumers.
package fanout
