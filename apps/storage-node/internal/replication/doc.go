// Package replication keeps the copies of replicated partitions of a storage node
// in their roles: it opens them, has them recorded, and fetches from the leaders
// what those copies lack.
//
//	metastore replica ──> Manager: every copy of this node is open and has its role
//	                        │  fresh copies are recorded (metaapi.RecordCopies)
//	                        │  copies that replaced lost ones are vouched for by their leader
//	                        └─> one fetcher per node that leads something:
//	                              ready partitions ──> a fetch (long poll) ──> append, sync in
//	                              parallel ──> ready again
//
// A fetch names only partitions whose bytes are synced: it says "I have everything
// below", and the leader counts it. Several fetches of one pair of nodes are under
// way, each for other partitions, so that a busy partition never waits for the long
// poll of idle ones, nor a fast one for the sync of a slow one. Of large answers with
// nothing that a majority has not, one is written and synced at a time, because live syncs
// wait for what the disk was given before them; what others get is on its way meanwhile.
//
// Invariants: a partition stands in one fetch at a time; what a leader sends is
// judged by libs/quorum and libs/partlog before a byte is written; a leader that
// does not answer is only reported (metaapi.Suspect), never replaced from here.
//
// It decides nothing about who leads or what is committed. The end-to-end tests
// of replicated topics and TestFollowerCatchesUp explain it.
package replication
