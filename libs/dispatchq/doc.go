// Package dispatchq decides, record by record, what a gateway's dispatcher may
// send where: the queues between the ingress WAL and the partition leaders.
//
// It is pure: records read, answers, view changes and the time go in, orders
// (send, probe, park, load) come out; the shell around it does the I/O and
// reports back. So e2e/sim can drive it through a million faulty schedules.
//
// Invariants:
//   - A queue is one (topic incarnation, partition accepted for, pinned) and is
//     strictly first in, first out, whatever the target: at most one batch of it
//     is in flight, and a batch is always its oldest records. A partition drops
//     numbers at or below the highest that it has of a stream, so a record that
//     another one overtook would be dropped as known, and lost.
//   - A batch carries records of one stream: one WAL identity.
//   - A batch whose outcome is unknown is repeated, unchanged, only at the
//     partition it was sent to, until that commits it or the view shows that
//     partition without a living leader.
//   - A suspicion (Suspect) changes only where a queue sends that may go elsewhere
//     and has nothing of unknown outcome.
//   - A record is done when its batch was committed, or when the end of its life
//     was confirmed (Discard), and not before.
//   - Records of a life that the view does not show are held, and hold up nobody
//     else: what a replica lacks may be what it has not heard of yet.
//   - Memory is bounded: at most Config.MaxItems records are known at a time;
//     above it queues that make no progress are parked to logs of their own, and
//     what is parked is sent before anything newer of its queue.
//
// It does not know files, sockets, clocks or goroutines, and is not safe for
// concurrent use: one goroutine owns a Machine. machine_test.go walks through the
// rules one by one; e2e/sim searches for schedules that break them.
package dispatchq
