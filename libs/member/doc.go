// Package member is what the three daemons share: a process that belongs to a
// cluster. It owns the identity of the data directory, the Raft node with its
// metastore replica, the node RPC plane, the join loop, the registration of
// this start, and heartbeats.
//
//	Open:  identity + lock ──> raft node ──> RPC listener, client, Leader
//	Run:   RPC server ──> form or join ──> register ──> heartbeats
//
// A role opens a Member, adds its operations to Server, runs Run as its first
// actor (so that it stops last) and reads View.
//
// Invariants. A data directory serves one node id, one role and one process at
// a time. A member whose record in its own replica carries another boot nonce,
// after its own was applied, has been replaced: Run ends with ErrSuperseded.
// Nothing here decides who is admitted, promoted or dead: the leader does.
//
// The package forms no cluster unless it is given Initial, and then only on an
// empty disk after no peer answered as configured. TestJoinLoop shows how it
// asks, identity_test.go the directory, and the tests of the voter role the life
// of members in a real cluster.
package member
