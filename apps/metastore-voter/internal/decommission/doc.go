// Package decommission takes members out of the cluster for good. It runs on the
// voter that leads the metastore, as a part of the controller.
//
//	mark      entry: draining; a gateway refuses produce, a storage node gets nothing new
//	drain     a storage node's copies move away (package moves), a gateway dispatches
//	          everything and seals its log, a leading voter hands leadership off
//	remove    RemoveServer: it is in the Raft configuration no more
//	bury      entry: the record goes, the tombstone with the disk's id stays
//
// Level-triggered: a pass looks at what the metastore shows and at what a gateway
// answers now; Judge, a pure function, says what keeps the member back, or the one
// step that follows. A leader that is lost between two steps leaves nothing half
// done: the next one sees the same and goes on.
//
// Invariants: a gateway is removed only by its own answer of this moment that its
// log is sealed and empty, or by an operator's word; a storage node only without a
// copy, or by that word while it is dead, or without those copies' disk; a voter only while 3 stay and a majority of
// those answers. What is lost by somebody's word is logged by name before it is.
//
// It moves no partition itself: package moves begins what placement.Evacuate plans.
// TestJudge has a row per reason.
package decommission
