// Package accept takes messages into the gateway's ingress WAL: the `202` of a
// produce.
//
// Invariants: what Accept answered with an id is on disk; a refusal that says
// applied "no" left nothing behind; a record carries the incarnation of the topic
// record that the caller had checked it against, and is encoded once, here. No
// topic holds more than a quarter of the space that the WAL may use, so that one
// dead topic does not close the gateway for the others.
//
// It needs no leader, no quorum and no owner: only a replica that was caught up
// once, and a disk. It sends nothing: package dispatch reads what lies in the WAL.
// accept_test.go goes through the refusals.
package accept
