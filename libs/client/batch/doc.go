// Package batch is the codec of application/vnd.narad.batch: many messages in
// one body of a produce request, a consume answer or a replay answer. The
// gateway, the client and the command line share it.
//
// Layout, big-endian, no padding:
//
//	offset size  header
//	0      4     magic "NRB1" (the last character is the format version)
//	4      1     kind: 1 produce, 2 delivery, 3 replay
//	5      1     flags: bit 0, a CRC trailer follows; other bits 0
//	6      2     meta length M
//	8      4     record count N
//	12     M     meta fields
//	then N records, then, with flag bit 0, the CRC-32C of everything before it
//
//	record
//	0      4     length L of the rest (>= 3)
//	4      2     length F of the fields (<= L - 3)
//	6      F     fields
//	6+F    L-2-F payload (1 byte or more)
//
//	field: tag u8, length u16, value; tags ascending, each once; only the
//	attribute tag 0x03 repeats, ascending by name
//
// Invariant: what DecodeProduce accepts has exactly one encoding, so encoding
// the decoded records again gives the same bytes. Decode, for answers, is
// tolerant instead: it skips tags that it does not know, so that a newer gateway
// can add some. Both return views: every slice aliases the input.
//
// The package knows lengths and order, not meaning: whether a key is too long or
// an attribute name allowed is the gateway's to say, with its own code. It does
// not compress and does not stream: the API bounds a body to 16 MiB.
// TestGolden shows the bytes, FuzzDecodeProduce the invariant.
package batch
