// Package queue is the consume side of one partition: it puts the pure lease
// table of libs/lease together with records, wake-ups, deadlines and the disk.
//
// Invariants:
//
//   - reserve before read: a record is leased under the lock, then read outside
//     of it, and given back (not counted) when it cannot be handed out after all;
//   - whoever armed the queue is told as soon as there is something to give,
//     whatever made it so: a commit, an expiry, a nack, a release or a cap that
//     was freed. Arm looks at the high watermark again after it has armed, and
//     Committed stores it before it looks at who armed, so that nothing falls
//     between (TestArmRacesCommit);
//   - a closed queue changes nothing any more, on disk neither: the object
//     belongs to one life of a topic and one opening of its directory.
//
// One alarm.Clock and one Flusher serve all queues of a node; an idle queue has no
// goroutine and no timer of its own. What is persisted and when: see Flusher.
// It does not know epochs of others, topics' settings or requests: the node
// package checks and passes them.
package queue
