// Package record is the codec of messages and batches: the bytes that a WAL
// frame, a partition log and a node RPC share.
//
// A message is encoded once, at accept (AppendBody), and only copied from then
// on. A batch (Builder, ParseHeader, Decoder) is the unit of append, fetch,
// compression and CRC. Its header has an immutable part, which the producer
// writes and no one changes, and a placement (offset, leader epoch, commit
// time), which the leader sets with Place without touching the body or its CRC.
//
// Invariant: Verify accepts exactly what Finish, AppendLeaderChange and Place
// made; one changed bit anywhere is refused (TestEveryFlippedBitIsRefused).
// Decoders never panic and never use more memory than the limits below allow,
// whatever the bytes (FuzzDecoder, FuzzParseBody).
//
// It judges structure and sizes, not content: what a key or an attribute may
// contain is decided where a message is accepted. It does no I/O.
//
// # Message body
//
// Big-endian, one encoding per message. The enclosing frame gives the length.
//
//	0  u8   flags: 1 key, 2 content type, 4 attributes; other bits 0
//	   u16  key length 1..1024, key                        when flag 1
//	   u16  content type length 1..256, content type       when flag 2
//	   u8   attribute count 1..16, then for each           when flag 4
//	        u8 name length 1..64, name, u16 value length 0..1024, value;
//	        ascending by name, no name twice, names and values <= 4096 bytes
//	   payload: everything up to the end, 1 byte .. 4 MiB
//
// # Batch
//
// Big-endian, 100 bytes of header, then the body.
//
//	 0  4   magic "NRB1"
//	 4  u8  version 1
//	 5  u8  codec: 0 none, 1 zstd (one frame)
//	 6  u8  flags: 1 control; other bits 0
//	 7  u8  stream kind (StreamKind; 0 only with control)
//	 8  u32 body length as stored, 1..16 MiB
//	12  u32 raw (uncompressed) body length, 1..16 MiB
//	16  u32 record count, 1..65536: the offsets that the batch takes
//	20  u64 stream id
//	28  u32 stream a
//	32  u32 stream b
//	36  u32 number epoch: Number.Epoch of every record
//	40  u64 sequence of the first record
//	48  u64 sequence of the last record
//	56  u64 oldest record still in the producer's WAL: identity (0: not told)
//	64  u64 the same: sequence
//	72  u32 CRC-32C of bytes 0..71 and the body as stored
//	76  i64 base offset: of the first record; -1 until placed
//	84  u32 leader epoch
//	88  i64 commit time, Unix milliseconds, the partition clock
//	96  u32 CRC-32C of bytes 72..95 (so that a placement belongs to one batch)
//
// Records in the raw body, in order, to its end:
//
//	uvarint  sequence minus that of the record before (first: 0; later: 1 or more)
//	uvarint  body length, 2 or more
//	message body
//
// A control batch takes one offset and is never delivered. Its raw body:
//
//	0  u8   control kind: 1 leader change
//	1  u32  the epoch that begins
package record
