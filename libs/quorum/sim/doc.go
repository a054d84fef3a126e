// Package sim runs the replicas of one partition against everything that can
// happen to them, by a seed: messages lost, repeated, delayed and reordered,
// crashes that take the unsynced tail, failed syncs, lost disks and directories, damage,
// fences, elections, changes of the replica set, and old leaders that come back.
//
// What decides is package quorum, unchanged. Around it stands a shell like the
// one of a storage node (node.go, follow.go, lead.go), a model of the metastore
// and its controller (meta.go, controller.go), clients that repeat what was not
// answered (client.go) and a checker that looks at everything after every step
// (check.go):
//
//   - a committed record is never lost or changed: every majority that could
//     elect would find it, every leader begins with it;
//   - the HWM of a process never falls and never exceeds the synced end, and a
//     stored one never falls;
//   - at most one leader commits per epoch;
//   - equal (epoch, offset) means equal bytes, and equal bytes before;
//   - everything acknowledged is committed, once and in order;
//   - a confirmed read never misses what was committed before it began, and a
//     leader that was replaced falls silent in time;
//   - when all faults end, the partition serves and every copy is whole again.
//
// A run is a list of choices, one number per step, and each step makes sense
// whatever went before: a failing run is shrunk by leaving steps out, and its
// trace is printed (Shrink). The shell can be told to make a known mistake (Bug);
// TestEveryBugIsCaught shows that each is found.
//
// What it does not model: bytes and files (package partlog), more than one
// partition, and the Raft of the metastore, whose log is one list here that the
// nodes apply late.
package sim
