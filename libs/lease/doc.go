// Package lease holds the consumer state of one partition: which records are
// settled, which are leased to whom and until when, and which may be handed out
// next. It is a pure state machine: time and randomness are arguments, it does
// no I/O, starts nothing and locks nothing; the owner calls it under its own lock.
//
// Invariants, checked by Table.Check and by the model test:
//
//   - the frontier is the longest settled prefix: every offset below it is
//     settled, the offset at it is not; it never moves back and never passes the
//     high watermark that the caller names;
//   - an offset at or above the frontier is in exactly one state: settled ahead,
//     leased, delayed (nacked with a delay), returned (deliverable again) or
//     untouched; leased and delayed ones stand in the deadline heap once, returned
//     ones in the offset heap once, and no third structure repeats either;
//   - only the live lease with the same nonce can be settled; a lease is live
//     while now < its deadline, whether or not Expire has run;
//   - memory is bounded: leases by MaxInFlight, settled and delayed records above
//     the frontier by MaxAckedAhead (plus what is in flight), remembered
//     settlements by MaxRemembered.
//
// It does not read records, know their sizes or persist anything: the owner
// stores AppendSnapshot where it likes and gives it back to Restore. Offsets
// that hold nothing to deliver (control batches, gaps) are told by Skip.
//
// TestAgainstOracle explains it best: the same random steps on the table and on
// a slow map of offsets must agree on everything.
package lease
