package api

import (
	"math/rand/v2"
	"sync/atomic"
)

// idAlphabet is Crockford's base 32: no letters that are read as digits.
const idAlphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

// requestIDs makes ids of 16 characters: eight that are random per process and
// eight that count, scattered so that neighbours differ at first sight.
type requestIDs struct {
	prefix [8]byte
	next   atomic.Uint64
}

func newRequestIDs() *requestIDs {
	ids := &requestIDs{}
	r := rand.Uint64()
	for i := range ids.prefix {
		ids.prefix[i] = idAlphabet[r&31]
		r >>= 5
	}
	ids.next.Store(rand.Uint64())
	return ids
}

// appendNew appends a new id.
func (ids *requestIDs) appendNew(dst []byte) []byte {
	dst = append(dst, ids.prefix[:]...)
	// An odd multiplier is a bijection: 2^40 ids before one repeats.
	n := ids.next.Add(1) * 0x9e3779b97f4a7c15 & (1<<40 - 1)
	for range 8 {
		dst = append(dst, idAlphabet[n&31])
		n >>= 5
	}
	return dst
}

// validRequestID tells whether a caller's id may stand in answers and logs.
func validRequestID(b []byte) bool {
	if len(b) == 0 || len(b) > MaxRequestIDBytes {
		return false
	}
	for _, c := range b {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}
