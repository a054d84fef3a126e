// Package node is a storage node over all its partitions: it implements
// nodeapi.Node, opens partitions when they are first used, and follows the
// metastore replica.
//
//	view.Changed --> watch: ended topics are dropped, new epochs begun
//	Commit, Claim, Settle, Read, Details --> judge --> partition (opened once)
//	a caller that has seen more of the metastore than this node waits, or is woken (behind.go)
//	every 30 s --> retention, idle files, free space
//	Purge, or a delete that is applied here --> reaper: confirm --> purge   (reap.go)
//	start, every 60 s --> sweep: what lies here and has ended --> confirm    (sweep.go)
//	Reclaim --> confirm --> what the purge sweeper names                     (reclaim.go)
//	one alarm.Clock (lease deadlines), one Flusher (positions), one Waker (gateways)
//
// Invariants: nothing is served before the ownership latch; one function (judge)
// decides whether this node serves a partition, and the commit path asks it
// again under the append lock; an object belongs to one incarnation, so nothing
// in memory of a deleted topic can reach its successor; there is no lock that
// all partitions share on any request path (the table of partitions is a
// sync.Map). Nothing of a life is removed but after the metastore leader, asked in
// that pass, remembered its end; before its directory moves all that uses it has
// ended, and no open of the name runs (gates). What it does not do: elections,
// replication. TestDeleteAndCreateAgain, TestPurgeAgainstEverythingHeld and
// TestRefusals explain it.
package node
