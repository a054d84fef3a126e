// Package wal is the ingress WAL of a gateway: a message is on disk here before
// its client gets `202`, and stays until it is committed elsewhere.
//
// A unit is what one Append wrote: records with consecutive numbers in one
// frame, so that it is there whole or not at all. Units that wait at the same
// moment share one write and one fdatasync; the first of them leads, on its own
// goroutine.
//
// Invariants:
//   - Append returns nil only when the unit is on disk. Only such units are read.
//   - A number (identity, sequence) names one record for ever: every Open draws
//     a new identity, and numbers of failed units are not used again. Sequences
//     go on over identities, so that segments named by them stay in order.
//   - A unit whose Append failed with ErrOutcomeUnknown is not read after a new
//     segment was started, which happens before anything else is accepted: the
//     header of that segment says what was acknowledged.
//   - The checkpoint never passes a record that is not done, and a segment goes
//     only below a checkpoint that is synced. A lost or old checkpoint repeats
//     records; it loses none.
//
// It does not know what a topic is, watch the disk's fill, or limit a topic's
// share: see Stats and vfs.FS.Usage.
//
// TestPowerCutAtEveryOperation explains it best.
package wal
