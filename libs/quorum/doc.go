// Package quorum is what a replicated partition decides: what is committed, who
// may lead, what a copy that fell behind or went astray does, and which change of
// the replica set is safe. It is KRaft's high watermark as pure state machines:
// inputs are what happened, outputs are what to do.
//
// A partition with one replica is the same rule with a majority of one; there
// is one commit path, not two.
//
// Invariants, for every sequence of inputs (package quorum/sim runs millions):
//   - the HWM of a copy never moves back and never exceeds its synced end (LEO);
//   - a leader moves it only to an offset that a majority of the replicas, the
//     leader included, has synced, and only when the record just below that
//     offset is of the leader's own epoch (TestFigure8);
//   - what was committed is in the log of every later leader, and no copy ever
//     cuts below its HWM;
//   - one leader per epoch, so equal (epoch, offset) means equal bytes.
//
// All offsets are exclusive ends: 100, 100, 95 on three replicas give HWM 100,
// so 99 is the last committed record (TestWorkedExample). Times are ms of the
// caller's monotonic clock.
//
// It has no I/O, no clock, no goroutine and no lock: the owner of a partition
// calls it under its own. It does not move bytes, does not know how an epoch is
// written to the metastore, and believes what it is told about the own disk.
//
// # Who is who
//
// A Replica is one directory on one disk of one node. What comes back without
// its data (another disk, a missing directory, a log that ends below its HWM, no
// valid fence) is judged by JudgeCopy, draws a new copy id, and so is another
// Replica: nothing that the old one said counts for it, and it counts, fences
// and leads only when the set in the metastore names it.
//
// # On a storage node, per copy
//
//	fence := NewFence(self, promised)   // promised: from the fence file
//	fence.Recorded(set)                 // whenever the assignment changes
//
// A fence call of the controller:
//
//	fence.Promise(epoch, lead)          // at once: fetching and committing stop
//	...write and sync the fence file...
//	fence.Stored(epoch)
//	fence.Answer(epoch, history, leo, hwm, gen) // what Elect takes
//
// As a follower (NewFollower; Follow for each leader epoch of the metastore):
//
//	req, ok := f.Request()              // only when everything written is synced
//	step, err := f.Take(answer, history)
//	step.Do == Append:   check f.MayAppend(base, epoch) per batch, write it, then
//	                     f.Appended(end, epoch); sync; f.Synced(leo)
//	step.Do == Truncate: cut the log at step.To, then f.Truncated(to, lastEpoch)
//	step.Do == Install:  put the leader's snapshot in place of the log, then
//	                     f.Installed(start, lastEpoch)
//	f.HWM()                             // min(told, own LEO)
//
// As a leader (Lead; BecomeLeader is Lead without fence and version):
//
//	l.LeaderChange(), l.NeedsBatch()    // when a control batch is due
//	l.Appended(written)                 // fetchable
//	l.Synced(leo)                       // true: the HWM moved
//	l.Fetch(req, view, now)             // answers a fetch and counts it
//	l.MayServe(now), l.Confirm(), l.Confirmed(n)
//	l.Apply(config, written)            // the replica set of the metastore changed
//	l.Vouch()                           // what the controller needs for NextSet
//	l.HasAll(replica)                   // planned hand-over
//	l.Failed(), l.StepDown(epoch)       // end it; so does a promise of its fence
//
// # In the controller
//
//	Elect(epoch, answers, set, wanted)  // after a majority was fenced
//	NextSet(set, lead, to, vouch)       // a change of the replica set
package quorum
