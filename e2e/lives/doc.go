// Package lives is a randomized test of what happens to a name that is deleted and
// created again: everything that holds something of a topic, in one process and in
// fake time, against everything that can happen to it.
//
// Real are the storage nodes (the role, on file systems in memory that know what a
// power cut leaves), the state machine of the metastore with a replica for each
// node, the decisions of the gateways' dispatch (libs/dispatchq) and the purge
// sweeper over node RPC. Modelled are Raft (one log that replicas apply when they
// are let), the gateways' WAL and parked logs (lists), the bus and the network.
//
// A seed gives a list of steps, and a step is: create, delete, produce, consume, ack
// with a handle of any life, kill a node (in the middle of a change of its disk, too),
// stop, start, restore an old snapshot of a replica (believed to be current, in some
// runs), hold a replica back, lose, repeat, delay or forge a purge, silence the
// leader, hold a node at a point between reading and storing, kill a gateway with an
// old checkpoint, restore its volume from a copy, have a gateway that lags accept
// records for a life that has ended and then for the next, sweep, sweep twice at once,
// kill a sweeper.
//
// Invariants, looked at after each step or when it happens:
//   - a claim gives records of the life that it names, and nothing of one whose end
//     the node had applied;
//   - nothing of a live life is removed, loses its name or is discarded;
//   - a record leaves a gateway because a node has it, or because the leader confirmed
//     the end of its life, and once in a process;
//   - what was committed of a live life stays readable where it was committed;
//   - a handle of an old life settles nothing of the new;
//   - a consumer position has passed only what was acked in its own life.
//
// In the end, with everybody up: while no gateway gets anything confirmed, records of
// live lives are dispatched behind those that are held; then every accepted record of
// a live life is there (but for those that were lost with a volume), and
// after the last sweep nothing is left of what has ended, on no disk and in no WAL.
//
// TestPlantedBugsAreCaught has nodes, gateways or sweepers make one mistake on
// purpose, and shows that it is seen. A failure prints its seed and the fewest steps
// that still fail. NARAD_LIVES_TIME (a duration) makes TestLives run longer.
package lives
