package lease

import "encoding/binary"

// How long and how many settled leases are remembered (api.md, section 5): a
// repeat of the same operation within that is answered OK.
const (
	RememberMS    = 10 * 60 * 1000
	MaxRemembered = 4096
	firstMemos    = 16 // what a partition with little traffic pays
)

// memo is one settled lease. The nonce is kept as a 64-bit fingerprint: a false
// match would answer OK to a lost operation that changes nothing, once in 2^64.
type memo struct {
	print uint64
	at    uint32 // seconds
	op    op
}

// memory is a ring of memos, oldest first; it grows to MaxRemembered and then
// overwrites the oldest. Look-ups scan it: only repeats and lost leases get here.
type memory struct {
	ring    []memo
	head, n int
}

func fingerprint(offset int64, n Nonce) uint64 {
	return (binary.LittleEndian.Uint64(n[:]) ^ uint64(offset)) + uint64(binary.LittleEndian.Uint32(n[8:]))*0x9e3779b97f4a7c15
}

func (m *memory) add(now, offset int64, n Nonce, o op) {
	m.forget(now)
	if m.n == len(m.ring) {
		m.grow()
	}
	if m.n == len(m.ring) {
		m.head = (m.head + 1) % len(m.ring)
		m.n--
	}
	m.ring[(m.head+m.n)%len(m.ring)] = memo{fingerprint(offset, n), uint32(now / 1000), o}
	m.n++
}

func (m *memory) grow() {
	if len(m.ring) == MaxRemembered {
		return
	}
	next := make([]memo, max(firstMemos, 2*len(m.ring)))
	for i := range m.n {
		next[i] = m.ring[(m.head+i)%len(m.ring)]
	}
	m.ring, m.head = next, 0
}

// forget drops what is too old, and the ring itself once it is empty.
func (m *memory) forget(now int64) {
	for m.n > 0 && int64(m.ring[m.head].at)*1000 <= now-RememberMS {
		m.head = (m.head + 1) % len(m.ring)
		m.n--
	}
	if m.n == 0 && len(m.ring) > firstMemos {
		m.ring, m.head = nil, 0
	}
}

// did tells whether the lease was settled by this very operation.
func (m *memory) did(now, offset int64, n Nonce, o op) bool {
	print := fingerprint(offset, n)
	for i := m.n - 1; i >= 0; i-- {
		e := &m.ring[(m.head+i)%len(m.ring)]
		if int64(e.at)*1000 <= now-RememberMS {
			return false // older ones are older still
		}
		if e.print == print {
			return e.op == o
		}
	}
	return false
}
