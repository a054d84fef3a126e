package metastate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/go-json-experiment/json"
)

// An entry on the Raft log:
//
//	offset  size  what
//	0       1     type, a number of the entry table
//	1       n     the entry as JSON; an unknown or repeated member is an error
//	1+n     4     CRC-32C (Castagnoli) of the 1+n bytes before it, little-endian
//
// The checksum is there because neither Raft log store checks what it returns.

// MaxEntryBytes bounds an encoded entry: twice what a topic of 1,024
// partitions with 5 replicas each takes.
const MaxEntryBytes = 2 << 20

const (
	typeBytes = 1
	crcBytes  = 4
)

// Errors of Decode. All of them are fatal to a node that meets them on its log.
var (
	// ErrDamagedEntry is a wrong checksum, or too few bytes for one.
	ErrDamagedEntry = errors.New("damaged entry")
	// ErrUnknownEntryType is a type that this release does not apply.
	ErrUnknownEntryType = errors.New("unknown entry type")
	// ErrEntryTooLarge is returned by Encode above MaxEntryBytes.
	ErrEntryTooLarge = errors.New("entry too large")
)

// Encode gives the bytes of an entry for the Raft log. It refuses what this
// release does not apply itself: its own log would stop it.
func Encode(e Entry) ([]byte, error) {
	if newEntry(e.EntryType()) == nil {
		return nil, fmt.Errorf("encode entry: %w: %d", ErrUnknownEntryType, e.EntryType())
	}
	body, err := json.Marshal(e, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("encode entry of type %d: %w", e.EntryType(), err)
	}
	n := typeBytes + len(body) + crcBytes
	if n > MaxEntryBytes {
		return nil, fmt.Errorf("encode entry of type %d: %w: %d bytes", e.EntryType(), ErrEntryTooLarge, n)
	}
	out := make([]byte, 0, n)
	out = append(out, byte(e.EntryType()))
	out = append(out, body...)
	return binary.LittleEndian.AppendUint32(out, checksum(out)), nil
}

// Decode reads what Encode wrote. It keeps nothing of b.
func Decode(b []byte) (Entry, error) {
	if err := Verify(b); err != nil {
		return nil, err
	}
	e := newEntry(Type(b[0]))
	if e == nil {
		return nil, fmt.Errorf("%w: %d", ErrUnknownEntryType, b[0])
	}
	body := b[typeBytes : len(b)-crcBytes]
	if err := json.Unmarshal(body, e, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("%w: type %d: %w", ErrDamagedEntry, b[0], err)
	}
	return e, nil
}

// Verify checks the checksum only.
func Verify(b []byte) error {
	if len(b) < typeBytes+crcBytes {
		return fmt.Errorf("%w: %d bytes", ErrDamagedEntry, len(b))
	}
	at := len(b) - crcBytes
	if got, want := checksum(b[:at]), binary.LittleEndian.Uint32(b[at:]); got != want {
		return fmt.Errorf("%w: checksum %08x, stored %08x", ErrDamagedEntry, got, want)
	}
	return nil
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }
