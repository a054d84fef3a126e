// Package seglog keeps frames in a directory of segment files: append-only,
// checksummed, recoverable. The ingress WAL and the partition log are built on
// it; what a frame holds is theirs, said by a [Format].
//
// A segment is named by its base, `<20 digits>.log`, and starts with a header
// (see [Header]) that is synced, like the name, before the segment counts.
// Frames follow without gaps. What follows the last frame of the last segment
// may be zeros (filled ahead) or old frames (a recycled file): a frame must
// prove that it belongs to its segment, by the nonce or the base.
//
// Invariants:
//   - What Sync returned success for is found by every later Open, and bytes
//     that a valid frame follows are never cut, unless they were never written and the
//     caller says that it promised nothing there (Options.Unpromised): they are
//     skipped, reported as [Damage] and copied aside to `<dir>/damaged`, with what another log had there
//     of which this one was made ([Log.KeepPiece]). An unfinished file there tells
//     of bytes that could not be kept (aside.go).
//   - A segment that has a successor was truncated to its last frame and synced
//     first, unless it was given up by [Log.Abandon].
//   - After a failed write or sync the segment takes no more frames, until
//     [Log.TruncateTo] or [Log.Abandon].
//   - A failing open or read is an error, never damage.
//
// It does not group commits, index, or know what a number means. An idle log
// keeps no goroutine, no timer and, after [Log.ReleaseFiles], no open file.
//
// A weakness of every log in a page cache: after a failed fsync and a crash of
// the process only, Open may see bytes that the disk does not hold. The WAL is
// safe from that because it never appends to a segment of an earlier open.
//
// TestPowerCutAtEveryOperation explains it best.
package seglog
