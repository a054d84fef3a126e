package seglog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Verdict is a Format's judgement of some bytes.
type Verdict uint8

// The verdicts.
const (
	NotFrame Verdict = iota // no frame starts here
	NeedMore                // the start of a plausible frame; n bytes are needed to tell
	Whole                   // an intact frame of n bytes
)

// Format says what a caller's frames look like.
type Format interface {
	// Magic is how every frame starts; the search after damage looks for it.
	Magic() [4]byte
	// Parse judges the bytes at a place where a frame of the segment h may
	// start. It checks the checksum and that the frame belongs to h: when h is
	// Damaged only h.Base is known. Content of users may look like frames, so
	// it should refuse by a few bytes of head before it asks for more. For
	// NeedMore n must exceed len(b), and never MaxFrame.
	Parse(h *Header, b []byte) (n int, v Verdict)
}

// HeaderSize is where the first frame of a segment starts.
const HeaderSize = 128

// MaxMeta is the room for a caller's own fields in a header, in bytes.
const MaxMeta = 88

const (
	headerMagic   = "NARADSEG"
	headerVersion = 1
	crcAt         = HeaderSize - 4
)

// Header stands at the start of a segment, little-endian:
//
//	0    8  "NARADSEG"
//	8    2  version, 1
//	10   2  length of meta
//	12   4  zero
//	16   8  base
//	24   8  nonce
//	32  88  meta, padded with zeros
//	120  4  zero
//	124  4  CRC-32C of bytes 0..124
type Header struct {
	Base    uint64 // the number in the name
	Nonce   uint64 // random per segment: tells its frames from those of a recycled file
	Meta    []byte // the caller's fields, at most MaxMeta bytes
	Damaged bool   // the header is missing, short or broken: only Base is known, from the name
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errHeader = errors.New("segment header is broken")

func (h *Header) encode() ([]byte, error) {
	if len(h.Meta) > MaxMeta {
		return nil, fmt.Errorf("segment header: meta of %d bytes, at most %d", len(h.Meta), MaxMeta)
	}
	b := make([]byte, HeaderSize)
	copy(b, headerMagic)
	binary.LittleEndian.PutUint16(b[8:], headerVersion)
	binary.LittleEndian.PutUint16(b[10:], uint16(len(h.Meta)))
	binary.LittleEndian.PutUint64(b[16:], h.Base)
	binary.LittleEndian.PutUint64(b[24:], h.Nonce)
	copy(b[32:], h.Meta)
	binary.LittleEndian.PutUint32(b[crcAt:], crc32.Checksum(b[:crcAt], castagnoli))
	return b, nil
}

func parseHeader(b []byte) (*Header, error) {
	if len(b) < HeaderSize || string(b[:8]) != headerMagic ||
		binary.LittleEndian.Uint32(b[crcAt:]) != crc32.Checksum(b[:crcAt], castagnoli) {
		return nil, errHeader
	}
	n := int(binary.LittleEndian.Uint16(b[10:]))
	if v := binary.LittleEndian.Uint16(b[8:]); v != headerVersion || n > MaxMeta {
		return nil, fmt.Errorf("%w: version %d", errHeader, v)
	}
	return &Header{
		Base:  binary.LittleEndian.Uint64(b[16:]),
		Nonce: binary.LittleEndian.Uint64(b[24:]),
		Meta:  append([]byte(nil), b[32:32+n]...),
	}, nil
}
