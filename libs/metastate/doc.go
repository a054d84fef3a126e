// Package metastate is the metadata of a cluster as a function: an entry applied
// to a state transaction gives a result, the same on every node.
//
// An entry carries every random or clock value that it needs (incarnations,
// nonces, `now`), so Apply draws none. What cannot be carried out is refused,
// and the refusal is a result like any other: the same on every node. What
// cannot be understood (an unknown type, a wrong checksum, an unknown field) or
// not be written is an error: the caller must stop applying for good, because
// to skip an entry is to become another cluster.
//
// The package holds no file, network, clock or goroutine; package raftnode puts
// it on a Raft log and a database. Settings of a topic are checked where they
// are proposed, not here: their limits may differ between releases, and two
// releases must apply one log alike. Names are checked here as well, because
// directories are named by them.
//
// TestRandomHistoryKeepsInvariants explains what always holds between records.
package metastate
