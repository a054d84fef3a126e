// Package backup is the format of a metastore backup: one file with the metadata
// of a cluster at one moment. It has no messages: they stay where they are, on the
// disks of storage nodes and in the write-ahead logs of gateways.
//
//	offset    size  what
//	0         8     magic "NARADBK1"; the last character is the format's version
//	8         4     length H of the header, big-endian, at most MaxHeaderBytes
//	12        H     header: a JSON object (Header); unknown members are an error
//	12+H      4     CRC-32C (Castagnoli) of everything before, big-endian
//	16+H      S     the state: a database file as a metastore node keeps it,
//	                S = state_bytes of the header
//	16+H+S    32    SHA-256 of everything before; nothing after it
//
// Invariant: a Reader answers io.EOF of the state only when the whole file is what
// was written; whoever has read it to the end without an error needs no other check
// of the bytes.
//
// The package knows nothing of what the state contains: package raftnode makes and
// reads it. TestGolden has the bytes of a file.
package backup
