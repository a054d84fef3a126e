package api

import (
	"encoding/binary"

	"github.com/narad-mq/narad/libs/nodeapi"
	"github.com/narad-mq/narad/libs/topic"
)

// The receipt handle, 37 bytes in base64url without padding, 50 characters:
//
//	0   1   version, 1
//	1   4   partition
//	5   8   offset
//	13  4   leader epoch
//	17  8   incarnation
//	25  12  nonce of the lease
//
// Clients treat it as opaque. Nothing in it is believed: the storage node holds
// the live lease and compares the nonce, which cannot be guessed. A handle has
// exactly one spelling; another one of the same bytes is refused.
const (
	receiptVersion = 1
	receiptBytes   = 37
	receiptChars   = 50
)

// receipt is a decoded handle.
type receipt struct {
	partition   int32
	offset      int64
	epoch       topic.Epoch
	incarnation topic.Incarnation
	nonce       nodeapi.Nonce
}

const base64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// base64Values maps a character to its six bits, 0xff for those outside the alphabet.
var base64Values = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range len(base64URL) {
		t[base64URL[i]] = byte(i)
	}
	return t
}()

// appendReceipt appends the 50 characters.
func appendReceipt(dst []byte, r *receipt) []byte {
	var b [receiptBytes + 2]byte // a whole number of triples
	b[0] = receiptVersion
	binary.BigEndian.PutUint32(b[1:], uint32(r.partition))
	binary.BigEndian.PutUint64(b[5:], uint64(r.offset))
	binary.BigEndian.PutUint32(b[13:], uint32(r.epoch))
	binary.BigEndian.PutUint64(b[17:], uint64(r.incarnation))
	copy(b[25:], r.nonce[:])
	var out [(receiptBytes + 2) / 3 * 4]byte
	for i, o := 0, 0; i < len(b); i, o = i+3, o+4 {
		v := uint32(b[i])<<16 | uint32(b[i+1])<<8 | uint32(b[i+2])
		out[o], out[o+1] = base64URL[v>>18], base64URL[v>>12&63]
		out[o+2], out[o+3] = base64URL[v>>6&63], base64URL[v&63]
	}
	return append(dst, out[:receiptChars]...)
}

// parseReceipt reads a handle; false for everything that appendReceipt would
// not have written. It looks at all characters whatever it finds, so that the
// time it takes says nothing about where a guess went wrong.
func parseReceipt(s []byte, r *receipt) bool {
	if len(s) != receiptChars {
		return false
	}
	var b [receiptBytes + 2]byte
	bad := byte(0)
	for i, o := 0, 0; i < receiptChars; i, o = i+4, o+3 {
		var v uint32
		for k := range 4 {
			var six byte
			if i+k < receiptChars {
				six = base64Values[s[i+k]]
			}
			bad |= six & 0x80
			v = v<<6 | uint32(six&63)
		}
		b[o], b[o+1], b[o+2] = byte(v>>16), byte(v>>8), byte(v)
	}
	bad |= b[receiptBytes] | b[receiptBytes+1] // bits beyond the 37 bytes
	if bad != 0 || b[0] != receiptVersion || b[1]&0x80 != 0 || b[5]&0x80 != 0 {
		return false
	}
	r.partition = int32(binary.BigEndian.Uint32(b[1:]))
	r.offset = int64(binary.BigEndian.Uint64(b[5:]))
	r.epoch = topic.Epoch(binary.BigEndian.Uint32(b[13:]))
	r.incarnation = topic.Incarnation(binary.BigEndian.Uint64(b[17:]))
	r.nonce = nodeapi.Nonce(b[25:receiptBytes])
	return true
}
