package partition

import (
	"errors"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
)

// judged is what a batch is against what the partition has.
type judged struct {
	rest     []byte // to be appended; nil: nothing
	dropped  int    // records that the partition has
	base     int64  // offset of the first record appended, or of a client's record that it has; -1: of none
	expected int64  // the number that a client has to send now; -1: the batch is in order
}

var errNumbered = errors.New("a client numbers its records one by one, without an epoch")

// judgeLocked holds a batch against the numbers of its stream, by its kind.
func (p *Partition) judgeLocked(in *Incoming) (judged, error) {
	j := judged{rest: in.Batch, base: -1, expected: -1}
	switch in.Header.Stream.Kind {
	case record.StreamOnce: // sent again only after a refusal: there is nothing to compare
		return j, nil
	case record.StreamClient:
		if in.Header.Count != 1 || in.Header.NumEpoch != 0 {
			return j, errNumbered
		}
		j.judgeClient(in.Header.FirstSeq, p.lastOfLocked(in.Header.Stream))
		return j, nil
	}
	var err error
	j.rest, j.dropped, err = p.dropKnown(in)
	return j, err
}

// last is the last record of a client's stream.
type last struct {
	seq   uint64
	base  int64
	known bool
}

func (p *Partition) lastOfLocked(s record.Stream) (l last) {
	l.seq, l.base, l.known = p.log.Client(s, p.clockLocked())
	return l
}

// judgeClient is the rule of Narad-Producer: the last number repeated is the record
// that is there, the next one is new, everything else is out of sequence.
func (j *judged) judgeClient(seq uint64, have last) {
	next := uint64(0)
	if have.known {
		next = have.seq + 1
	}
	switch {
	case seq == next:
	case have.known && seq == have.seq:
		j.rest, j.dropped, j.base = nil, 1, have.base
	default:
		j.rest, j.expected = nil, int64(next)
	}
}

// outOfSequence refuses a number for good, if this leader is the one to say so: one
// that was replaced without knowing it would tell of an end that is long past.
func (p *Partition) outOfSequence(seq uint64, expected int64) *problem.Problem {
	if p.s.Mono() >= p.serves.Load() {
		return p.undecided()
	}
	return problem.New(problem.OutOfSequence, "number %d is not the next one of this producer at partition %d", seq, p.ref.Partition).
		With("expected", expected)
}

// undecided is for a number that seems to be out of sequence while what it was
// compared with may not stand, or this leader may be none. Nothing was appended.
func (p *Partition) undecided() *problem.Problem {
	return problem.New(problem.PartitionUnavailable, "%s cannot tell yet what is committed", p.ref)
}

type codec struct {
	dec record.Decoder
	bld record.Builder
}

// dropKnown leaves out what the partition has. The result does not alias the
// pool: it is the batch itself, nil, or a copy.
func (p *Partition) dropKnown(in *Incoming) (rest []byte, dropped int, err error) {
	have, known := p.log.Producer(in.Header.Stream)
	if !known {
		return in.Batch, 0, nil
	}
	if have.Less(in.Header.First()) {
		return in.Batch, 0, nil
	}
	c, ok := p.s.codecs.Get().(*codec)
	if !ok {
		c = new(codec)
	}
	defer p.s.codecs.Put(c)
	rest, dropped, err = record.DropUntil(in.Batch, have, &c.dec, &c.bld, record.CodecZstd)
	if err != nil || rest == nil {
		return nil, dropped, err
	}
	return append([]byte(nil), rest...), dropped, nil
}
