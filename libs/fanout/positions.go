package fanout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"

	"github.com/narad-mq/narad/libs/topic"
)

// Positions are stored in the state of a partition, beside those of its
// consumers, so that they are in the same two slots and go the same ways to
// followers and new leaders.
//
//	offset size  field (big-endian)
//	0      4     magic "NPE1" (the last character is the format version)
//	4      4     length of the consumer positions
//	8      ..    consumer positions (opaque, owned by package lease)
//	..     4     number of cursors
//	..     24    per cursor, ascending by attach epoch: u64 attach epoch, i64 next offset,
//	             i64 records that retention took before they were copied
//	..     4     CRC-32C of everything before
//
// Without cursors it is the consumer positions alone, as they were before there
// was fan-out.
const (
	positionsMagic = "NPE1"
	positionsFixed = 4 + 4 + 4 + 4
	positionSize   = 24
)

// MaxPositions bounds the cursors of one partition: those of all children that a
// topic can have, and many more that have ended and are not confirmed yet.
const MaxPositions = 4096

// ErrPositions is below every error of ParsePositions.
var ErrPositions = errors.New("damaged positions")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Position is where one cursor stands.
type Position struct {
	Next    int64 // everything below it is in the child, or was gone
	Dropped int64 // records that retention took before they were copied
}

// AppendPositions appends the stored form to dst. Of more than MaxPositions
// cursors those with the highest epochs are left out: they begin anew, and the
// child drops what it has.
func AppendPositions(dst, consumer []byte, cursors map[topic.ID64]Position) []byte {
	if len(cursors) == 0 {
		return append(dst, consumer...)
	}
	at := len(dst)
	epochs := slices.Sorted(maps.Keys(cursors))
	epochs = epochs[:min(len(epochs), MaxPositions)]
	dst = append(dst, positionsMagic...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(consumer)))
	dst = append(dst, consumer...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(epochs)))
	for _, e := range epochs {
		dst = binary.BigEndian.AppendUint64(dst, uint64(e))
		dst = binary.BigEndian.AppendUint64(dst, uint64(cursors[e].Next))
		dst = binary.BigEndian.AppendUint64(dst, uint64(cursors[e].Dropped))
	}
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[at:], castagnoli))
}

// ParsePositions reads either form; consumer aliases data. Errors wrap
// ErrPositions, and nothing of damaged ones is returned.
func ParsePositions(data []byte) (consumer []byte, cursors map[topic.ID64]Position, err error) {
	if len(data) < 4 || string(data[:4]) != positionsMagic {
		return data, nil, nil
	}
	if len(data) < positionsFixed {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrPositions, len(data))
	}
	body, sum := data[:len(data)-4], binary.BigEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, nil, fmt.Errorf("%w: checksum differs", ErrPositions)
	}
	n := uint64(binary.BigEndian.Uint32(body[4:]))
	if uint64(len(body)) < 12+n {
		return nil, nil, fmt.Errorf("%w: %d bytes of consumer positions", ErrPositions, n)
	}
	consumer, body = body[8:8+n:8+n], body[8+n:]
	count := uint64(binary.BigEndian.Uint32(body))
	if body = body[4:]; count > MaxPositions || uint64(len(body)) != count*positionSize {
		return nil, nil, fmt.Errorf("%w: %d cursors in %d bytes", ErrPositions, count, len(body))
	}
	cursors = make(map[topic.ID64]Position, count)
	for ; len(body) > 0; body = body[positionSize:] {
		p := Position{Next: int64(binary.BigEndian.Uint64(body[8:])), Dropped: int64(binary.BigEndian.Uint64(body[16:]))}
		if p.Next < 0 || p.Dropped < 0 {
			return nil, nil, fmt.Errorf("%w: a negative offset", ErrPositions)
		}
		cursors[topic.ID64(binary.BigEndian.Uint64(body))] = p
	}
	return consumer, cursors, nil
}

// MergePositions adds to have what another copy of the partition knows: each of
// them was true when it was stored, so the highest is.
func MergePositions(have, other map[topic.ID64]Position) {
	for e, o := range other {
		p := have[e]
		have[e] = Position{Next: max(p.Next, o.Next), Dropped: max(p.Dropped, o.Dropped)}
	}
}
