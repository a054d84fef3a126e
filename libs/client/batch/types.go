package batch

import "errors"

// ContentType is the media type of the format.
const ContentType = "application/vnd.narad.batch"

// Limits of the format.
const (
	// MaxRecords bounds a batch: one answer or request settles in one piece, and
	// a thousand already makes the cost of the request itself small.
	MaxRecords = 1000
	// HeaderSize is the length of the fixed header in bytes.
	HeaderSize = 12
	// CRCSize is the length of the trailer in bytes.
	CRCSize = 4

	recordHeaderSize = 6     // L and F
	fieldHeaderSize  = 3     // tag and length
	maxFields        = 65535 // what the u16 F can say
)

// Kind says what a batch carries.
type Kind uint8

// The kinds.
const (
	Produce  Kind = 1
	Delivery Kind = 2
	Replay   Kind = 3
)

// The tags of fields.
const (
	tagKey         = 0x01
	tagContentType = 0x02
	tagAttr        = 0x03
	tagPartition   = 0x04
	tagOffset      = 0x10
	tagCommitted   = 0x11
	tagID          = 0x12
	tagDeliveries  = 0x18
	tagLease       = 0x19
	tagReceipt     = 0x1a

	tagIncarnation = 0x40
	tagNextOffset  = 0x41
	tagHWM         = 0x42
	tagLogStart    = 0x43
)

const flagCRC = 1

var magic = [4]byte{'N', 'R', 'B', '1'}

// Attr is one attribute of a message.
type Attr struct {
	Name, Value []byte
}

// NoPartition is the Partition of a produced record that pins none.
const NoPartition int64 = -1

// Record is one message. Slices of a decoded record alias the decoded bytes.
type Record struct {
	Key         []byte // nil: none
	ContentType []byte // nil: none
	Attrs       []Attr // ascending by name, each name once
	Partition   int64  // NoPartition in a produce that pins none
	Payload     []byte // 1 byte or more

	// Delivery and Replay only.
	Offset      int64
	CommittedMS int64 // Unix milliseconds
	ID          []byte

	// Delivery only.
	DeliveryCount uint32
	LeaseMS       uint32
	ReceiptHandle []byte
}

// Meta describes a whole batch. A produce has none.
type Meta struct {
	Incarnation uint64 // Delivery and Replay

	// Replay only.
	NextOffset    int64
	HighWatermark int64
	LogStart      int64
}

// Batch is a decoded body.
type Batch struct {
	Kind    Kind
	Meta    Meta
	Records []Record
}

// ErrMalformed is below every refusal of bytes that are not a batch.
var ErrMalformed = errors.New("malformed batch")

// ErrTooMany is below the refusal of a produce of more than MaxRecords.
var ErrTooMany = errors.New("batch of too many records")

// Error is a refusal. It wraps ErrMalformed or ErrTooMany.
type Error struct {
	// Index is the record that was refused, from 0; -1 when the fault is not one record's.
	Index  int
	Reason string
	err    error
}

// Error gives "malformed batch: reason".
func (e *Error) Error() string { return e.err.Error() + ": " + e.Reason }

// Unwrap gives ErrMalformed or ErrTooMany.
func (e *Error) Unwrap() error { return e.err }

func malformed(index int, reason string) *Error {
	return &Error{Index: index, Reason: reason, err: ErrMalformed}
}
