// Package fanout is the part of fan-out that decides and touches nothing: where a
// record of a parent goes in a child, what a cursor may send now, what it has
// finished, and how positions are stored.
//
//	Cursor     one parent partition, one child: what to read, what to send to
//	           which child partition, where it stands
//	Bucket     the child partition of a record
//	Positions  what survives of cursors, beside the consumer's positions
//
// Invariants:
//   - the bucket of a record is a function of the record, its place in the parent
//     and the child's partition count, and of nothing else: a record that changes
//     its bucket under one producer stream is taken for known there and lost
//     (TestBucketIsAFunctionOfTheStream);
//   - to each bucket a cursor sends one batch at a time, and the next one begins
//     where everything before it is committed: whatever is repeated or arrives
//     late, a child never has a gap (TestInterleavings);
//   - the position is the lowest offset that some bucket has not finished, so a
//     dead child leader holds up the position and its own bucket, nothing else;
//   - a record is sent only when it is due on the clock that stamped it.
//
// It knows no node, no log and no timer: package fanout of the storage node reads,
// commits and waits.
package fanout
