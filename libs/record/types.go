package record

import (
	"strconv"

	"github.com/narad-mq/narad/libs/topic"
)

// StreamKind says what draws the numbers of a producer stream.
type StreamKind uint8

// The kinds, fixed for ever: they are in every batch on disk.
const (
	StreamNone       StreamKind = 0 // control batches: never deduplicated
	StreamWAL        StreamKind = 1 // a gateway's WAL; A = partition accepted for
	StreamWALPinned  StreamKind = 2 // the same, records that the client pinned
	StreamFanout     StreamKind = 3 // ID = attach epoch; A = parent partition; B = partition count of the child
	StreamDeadLetter StreamKind = 4 // ID = log id
	StreamClient     StreamKind = 5 // a Narad-Producer of a client at one partition: every number is the last plus one
	// StreamOnce is a gateway's committed produces that no client numbered. ID is of
	// one start of the gateway. A batch of it is sent to a leader again only after a
	// definite refusal, several are under way at once and overtake each other, so
	// they are judged by no order, and nothing is remembered of them.
	StreamOnce StreamKind = 6
)

// Stream names one producer stream: a source of numbers that only grow, so that
// a partition can drop what it already has. Comparable, usable as a map key.
type Stream struct {
	Kind StreamKind
	ID   topic.ID64 // WAL identity, attach epoch or log id
	A, B uint32     // meaning by kind
}

// Number is a record's place in its stream. Epoch is 0 but for fan-out, where
// it is the parent record's leader epoch. Numbers grow, with gaps.
type Number struct {
	Epoch uint32
	Seq   uint64
}

// Less orders numbers of one stream.
func (n Number) Less(o Number) bool {
	return n.Epoch < o.Epoch || n.Epoch == o.Epoch && n.Seq < o.Seq
}

// MessageID is the opaque id that users see: the same in every delivery and in
// every copy that a redelivery, move, election or reroute makes.
func MessageID(s Stream, n Number) string {
	b := make([]byte, 0, 48)
	b = append(b, s.ID.String()...)
	switch s.Kind {
	case StreamFanout:
		b = append(b, '-')
		b = strconv.AppendUint(b, uint64(s.A), 10)
		b = append(b, '.')
		b = strconv.AppendUint(b, uint64(n.Epoch), 10)
	case StreamDeadLetter, StreamClient, StreamOnce:
		b = append(b, '.')
		b = strconv.AppendUint(b, uint64(s.Kind), 10)
	}
	b = append(b, '-')
	return string(strconv.AppendUint(b, n.Seq, 10))
}

// Attr is one attribute of a message.
type Attr struct {
	Name, Value string
}

// Message is what a user sent: the content of a record. The encoded form of a
// Message (AppendBody, ParseBody) is the same in the WAL, in batches and in
// node RPC, so that it is encoded once at accept and copied from then on.
type Message struct {
	Key         []byte // nil: none; else 1..1024 bytes
	ContentType string // "": none
	Attrs       []Attr // ascending by name
	Payload     []byte // 1 byte or more
}
