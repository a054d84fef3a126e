// Package moves takes copies of partitions from one storage node to another. It
// runs on the voter that leads the metastore, as a part of the controller.
//
//	Begin        1 entry: the destination is an observer and fetches
//	it is near   2 entry: it is a replica (quorum.NextSet, by the leader's word)
//	source leads 3 planned election of the destination (package election)
//	settled      4 entry: the source is a replica no more
//	             5 entry: the move is forgotten
//
// A move without a source gives a partition one replica more (grow.go): entry 1 and 2,
// and 5 once the larger set has committed a record. Every 10 s partitions that have fewer
// replicas than their topic is to have, after a reset, or one whose node was removed with
// what it had, begin to get them (complete.go).
//
// Level-triggered: a pass reads what the metastore shows of a move and asks the
// partition's leader; next, a pure function, says the one step that follows. Every
// step is an entry that compares what was read, so a pass that is lost, repeated
// or made by two controllers does no harm, and a controller that begins its term in
// the middle of a move goes on with it.
//
// Invariants: a set of replicas is changed only as quorum.NextSet allows, one
// replica at a time; a silent source never makes a destination lead that may lack
// what the source committed: it is waited for, and said so; a destination that is
// dead for lifecycle.DeadMoveAfter is taken back, and one beside a lone copy at
// once, because no commit goes on without it; what waits for something that does not
// come by itself is blocked, and keeps no other move back.
//
// It does not copy (the destination fetches), does not elect, and reclaims no copy
// (the node that has it asks for that itself). TestNext explains it.
package moves
