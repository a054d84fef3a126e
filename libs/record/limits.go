package record

import "errors"

// Limits of a message. They bound what a parser believes, and equal or exceed
// what a gateway accepts.
const (
	MaxPayload     = 4 << 20 // the highest --max-message-bytes
	MaxKey         = 1 << 10
	MaxContentType = 256
	MaxAttrs       = 16
	MaxAttrName    = 64
	MaxAttrValue   = 1 << 10
	MaxAttrBytes   = 4 << 10 // names and values together

	// MaxBody is the longest encoded message that the limits allow.
	MaxBody = 1 + 2 + MaxKey + 2 + MaxContentType + 1 + 3*MaxAttrs + MaxAttrBytes + MaxPayload
)

// Limits of a batch.
const (
	// MaxRaw bounds the uncompressed body, and so what a decoder allocates: a
	// batch request of the API at its largest still fits into one batch.
	MaxRaw = 16 << 20
	// MaxRecords bounds the offsets that one batch takes, and with it the work
	// that one batch makes for an index, a lease table or a read.
	MaxRecords = 1 << 16
	// MaxBatch is the longest batch.
	MaxBatch = HeaderSize + MaxRaw
	// HeaderSize is the length of every batch header in bytes.
	HeaderSize = 100
)

// Errors of the codec. Each is wrapped with what was found.
var (
	// ErrBody: bytes that are no encoded message.
	ErrBody = errors.New("malformed message body")
	// ErrShort: the bytes end before the batch does; more may follow.
	ErrShort = errors.New("batch is cut short")
	// ErrNotBatch: what stands here is not a batch of this version.
	ErrNotBatch = errors.New("not a batch")
	// ErrDamaged: a batch whose checksum, length or content does not hold.
	ErrDamaged = errors.New("damaged batch")
	// ErrFull: the record does not fit into this batch; begin another.
	ErrFull = errors.New("batch is full")
	// ErrOrder: sequences of a batch must grow.
	ErrOrder = errors.New("sequence does not grow")
)
