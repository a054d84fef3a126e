// Package partlog is the log of one partition copy: batches in segment files,
// and what follows from them (epoch history, highest producer numbers, a sparse
// index), the small state file beside them, retention and recovery.
//
// Invariants:
//   - Offsets only grow. An offset that was ever below the stored high watermark
//     (HWM) is never given to other bytes.
//   - LEO is the end of what was fsynced. Nothing above it is believed after a
//     failed write or sync: the log is cut there and takes nothing until
//     BeginEpoch.
//   - Producer numbers and epoch history are functions of the log: rebuilt from
//     a snapshot at or below the HWM and the batches behind it, and taken back by
//     a truncation (TestRebuiltEqualsBeforeCrash).
//   - Valid batches behind damage are never cut; the offsets between are a gap
//     that reads skip and count. Batches above the stored HWM that a power cut left
//     unwritten in the middle of a sync are no damage: the log ends before them.
//   - Nothing is removed above the HWM, nor before a snapshot of what it stands
//     for is synced.
//
// It does not decide what is committed (package quorum), does not look into
// message bodies, and does not know who leads. An idle log has no goroutine, no
// timer and, after ReleaseFiles, no open file.
//
// # Replicas
//
// A leader appends (BeginEpoch, Append), a follower copies byte for byte what the
// leader's Read gave (BeginFollow, AppendCopied); each begins by ending the other
// mode. A follower whose history left the leader's is truncated; one that lies
// below the leader's log start is replaced by it (ExportStart, Replace); one with
// damage below the HWM gets it again (Gaps, Repair). TestCopyIsTheSame and
// TestReplacedCopyKnowsTheSameNumbers explain it.
//
// # Damage
//
// Of damage that a log meets in its segments, it keeps the bytes (Pieces). A copy that is
// made of one with a gap notes that it awaits them before it appends what lies behind the
// gap (AwaitPieces), and keeps those that the leader has, byte for byte (KeepPiece): then
// the other copy has nothing that is nowhere else. TestPiecesOfACopy explains it.
//
// # Directory
//
//	<20 digits>.log   segments (package seglog), named by their first offset
//	state.0, state.1  the two state slots
//	fence             the leader epoch promised, see Fence
//	replace           a state slot: the log is to begin anew with that state; gone
//	                  when that is done
//	damaged/          copies of damaged bytes (package seglog), see Damage
//
// Segment frames are batches exactly as package record describes them. The meta
// of a segment header, big-endian:
//
//	 0  i64  end of the log when the segment was begun; lower than the segment's
//	         base when offsets were skipped on purpose (they are a gap)
//	 8  i64  latest commit time before the segment, Unix ms
//	16  u32  latest leader epoch before the segment
//
// # State slot
//
// Big-endian:
//
//	 0  8    "NARADPS2" ("NARADPS1": the same without the position generation)
//	 8  u64  generation; the valid slot with the higher one counts
//	16  u32  length of the payload
//	20  payload
//	    u32  CRC-32C of everything before it
//
// Payload:
//
//	u64 copy id, u64 disk id, u64 log id
//	i64 HWM
//	i64 log start: what lies below may be removed
//	i64 records dropped unsettled
//	u64 position generation
//	u32 length, consumer position (opaque, owned by package lease)
//	snapshot of producers, at or below the HWM:
//	  i64 offset, i64 latest commit time, i64 commit time of the last sweep
//	  u32 count, per stream: u8 kind, u64 id, u32 a, u32 b, u32 number epoch,
//	      u64 number, i64 base offset and i64 commit time of its last batch,
//	      u64 identity of the oldest record told last, i64 commit time of the
//	      sweep that found it passed (0: not yet)
//	  u32 count, per WAL identity: u64 identity, u64 oldest number told, u8 1: gone
//	epoch history: u32 count, per epoch: u32 epoch, i64 its first offset
//
// Of the streams that clients number exactly those used last are remembered (see
// clients), and a repeat of the last number is answered with the base offset kept here.
//
// TestTwoSlots, TestStateGolden and TestAllCopiesForgetTheSameClients explain it.
//
// # Exported start
//
//	8 "NARADPX1", a snapshot of producers and an epoch history as in a state slot
//	(the offset of the snapshot is the log start), u32 CRC-32C of everything before it
//
// TestStartGolden and TestFenceGolden hold the bytes.
package partlog
