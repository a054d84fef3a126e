// Package dispatch carries records from the ingress WAL to the leaders of their
// partitions. What to send where and when is decided by libs/dispatchq; this
// package does the reading, the calls, the parked logs and the checkpoint.
//
// One goroutine (loop) owns the machine. A reader gives it records in WAL order;
// every order runs in a goroutine of its own and reports back. A record is done in
// the WAL only after its batch was committed or it was synced into a parked log.
//
// Memory: the machine holds positions, at most dispatchq.Config.MaxItems; bodies
// stay in the chunks that they were read into, of which the newest Window bytes are
// kept; an older one is read again by its position. Batches in flight are bounded
// by slots and by the overdue ones per node.
//
// Records of a life that the view does not show are held (and parked), and
// discarded only when the metastore leader, asked then, calls it gone (discard.go).
// dispatch_test.go runs it over a real WAL and a storage node that fails in every
// way; libs/dispatchq and e2e/sim test the decisions.
package dispatch
