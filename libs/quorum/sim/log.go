package sim

import (
	"slices"

	"github.com/narad-mq/narad/libs/quorum"
	"github.com/narad-mq/narad/libs/topic"
)

// clients is how many clients produce; each is one stream of numbers 1, 2, ...
const clients = 6

// control marks a leader-change record.
const control = -1

// rec is a record, and a batch of one.
type rec struct {
	epoch  topic.Epoch
	client int8
	seq    int32
	hash   uint64 // of this record and all before it: equal hashes, equal logs
}

// chain is the hash of a log after a record was added to one of hash prev.
func chain(prev uint64, r rec) uint64 {
	return mix(prev ^ mix(uint64(r.epoch)<<40^uint64(uint8(r.client))<<32^uint64(uint32(r.seq))))
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// numbers are the highest producer numbers per client.
type numbers [clients]int32

// base is what a log knows of the records below its start.
type base struct {
	start   int64
	hash    uint64
	numbers numbers
	history []quorum.EpochStart
}

// plog is the log of a copy with what follows from it.
type plog struct {
	base    base
	recs    []rec
	history []quorum.EpochStart
	numbers numbers
}

func logFrom(b base) plog {
	return plog{base: b, history: slices.Clone(b.history), numbers: b.numbers}
}

func (l *plog) end() int64 { return l.base.start + int64(len(l.recs)) }

// hashAt is the hash of everything below end, which is not below the log start.
func (l *plog) hashAt(end int64) uint64 {
	if end == l.base.start {
		return l.base.hash
	}
	return l.recs[end-l.base.start-1].hash
}

func (l *plog) at(offset int64) rec { return l.recs[offset-l.base.start] }

func (l *plog) lastEpoch() topic.Epoch { return quorum.EpochAt(l.history, l.end()) }

// append adds a record, sealing its hash.
func (l *plog) append(r rec) {
	r.hash = chain(l.hashAt(l.end()), r)
	if r.epoch > l.lastEpoch() {
		l.history = append(l.history, quorum.EpochStart{Epoch: r.epoch, Start: l.end()})
	}
	l.recs = append(l.recs, r)
	if r.client != control {
		l.numbers[r.client] = max(l.numbers[r.client], r.seq)
	}
}

// cut ends the log at to; what follows from it goes back too.
func (l *plog) cut(to int64) {
	l.recs = l.recs[:to-l.base.start]
	for n := len(l.history); n > 0 && l.history[n-1].Start >= to; n-- {
		l.history = l.history[:n-1]
	}
	l.numbers = l.numbersAt(to)
}

func (l *plog) numbersAt(end int64) numbers {
	n := l.base.numbers
	for _, r := range l.recs[:end-l.base.start] {
		if r.client != control {
			n[r.client] = max(n[r.client], r.seq)
		}
	}
	return n
}

// retain moves the log start up to to.
func (l *plog) retain(to int64) {
	b := base{start: to, hash: l.hashAt(to), numbers: l.numbersAt(to)}
	l.recs = slices.Clone(l.recs[to-l.base.start:])
	for len(l.history) > 1 && l.history[1].Start < to {
		l.history = l.history[1:]
	}
	if to > 0 {
		b.history = l.history[:1:1]
	}
	l.base = b
}
