// Package raftnode runs one node of the metastore: hashicorp/raft, its log in
// one bbolt file, the state of package metastate in another. It is the only
// importer of these libraries.
//
//	Apply ──> Raft log (CRC) ──majority──> fsm ──one bbolt transaction──> state
//	                                        └── replica (metastate.View) ──> Changed
//
// Invariants. The applied index is written in the transaction that has its
// effects, so a crash neither repeats nor skips an entry. A reader of the View
// never sees an index as applied (WaitApplied) before its effects. A node that
// cannot apply an entry stops for good (Done, Err) and never skips it. The View
// answers for assignments only behind the ownership latch (see latch.go).
//
// A node that never votes counts towards no commit, so it waits for no disk: it
// writes its log behind (behind.go), and after a crash it drops its state and makes
// it again from the newest snapshot and the log (unsynced.go).
//
// What a leading voter asks of all partitions together it asks the Index, which
// follows each publication; no create looks at every topic. Followers are told of a
// change as soon as it is committed, without another entry (see spread.go).
//
// It does not decide who may join, who is dead or where partitions go: that is
// the voter's controller, which uses Lead, Apply, Barrier and Read.
//
// TestThreeNodesFormApplyAndSurviveACrash shows a cluster's life; the tests in
// caughtup_test.go show why each of the four conditions is there.
package raftnode
