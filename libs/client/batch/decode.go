package batch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Decoder decodes batches and keeps its memory from one to the next. Records of
// a decode are valid until the next one, and as long as the decoded bytes are.
// The zero value is ready. Not safe for concurrent use.
type Decoder struct {
	records []Record
	attrs   []Attr
}

// DecodeProduce takes the body of a produce request apart, strictly: anything
// that a Writer would not have written is an *Error. A CRC is checked when the
// body has one.
func (d *Decoder) DecodeProduce(b []byte) ([]Record, error) {
	h, rest, err := splitHeader(b)
	if err != nil {
		return nil, err
	}
	switch {
	case h.kind != Produce:
		return nil, malformed(-1, "kind is not 1 (produce)")
	case h.meta != 0:
		return nil, malformed(-1, "a produce has no meta")
	case h.count == 0:
		return nil, malformed(-1, "it has no records")
	case h.count > MaxRecords:
		return nil, &Error{Index: -1, Reason: fmt.Sprintf("%d records, at most %d are allowed", h.count, MaxRecords), err: ErrTooMany}
	}
	if err := d.readRecords(rest, h, true); err != nil {
		return nil, err
	}
	return d.records, nil
}

// Decode takes a consume or replay answer apart. Unknown tags are skipped; what
// a reader cannot do without must be there. A CRC is checked when there is one.
func (d *Decoder) Decode(b []byte) (*Batch, error) {
	h, rest, err := splitHeader(b)
	if err != nil {
		return nil, err
	}
	if h.kind != Delivery && h.kind != Replay {
		return nil, malformed(-1, fmt.Sprintf("kind %d is neither a delivery nor a replay", h.kind))
	}
	out := &Batch{Kind: h.kind}
	if err := readMeta(rest[:h.meta], &out.Meta); err != nil {
		return nil, err
	}
	if err := d.readRecords(rest[h.meta:], h, false); err != nil {
		return nil, err
	}
	out.Records = d.records
	return out, nil
}

// Decode is Decoder.Decode with memory of its own.
func Decode(b []byte) (*Batch, error) {
	var d Decoder
	return d.Decode(b)
}

type header struct {
	kind  Kind
	meta  int
	count uint32
}

// splitHeader checks header and CRC and returns what lies between header and trailer.
func splitHeader(b []byte) (header, []byte, error) {
	if len(b) < HeaderSize {
		return header{}, nil, malformed(-1, "shorter than its header")
	}
	if [4]byte(b) != magic {
		return header{}, nil, malformed(-1, "it does not begin with NRB1")
	}
	h := header{kind: Kind(b[4]), meta: int(binary.BigEndian.Uint16(b[6:])), count: binary.BigEndian.Uint32(b[8:])}
	if b[5]&^flagCRC != 0 {
		return header{}, nil, malformed(-1, "unknown flags")
	}
	end := len(b)
	if b[5]&flagCRC != 0 {
		end -= CRCSize
		if end < HeaderSize {
			return header{}, nil, malformed(-1, "shorter than its trailer")
		}
		if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
			return header{}, nil, malformed(-1, "the CRC does not match")
		}
	}
	rest := b[HeaderSize:end]
	if h.meta > len(rest) {
		return header{}, nil, malformed(-1, "the meta is longer than the batch")
	}
	return h, rest, nil
}

// readRecords fills d.records from the bytes after the meta.
func (d *Decoder) readRecords(rest []byte, h header, strict bool) error {
	d.records, d.attrs = d.records[:0], d.attrs[:0]
	// A count that the bytes cannot hold must not reserve memory.
	if int64(h.count)*(recordHeaderSize+1) > int64(len(rest)) {
		return malformed(-1, "more records announced than the bytes can hold")
	}
	for i := range int(h.count) {
		if len(rest) < 4 {
			return malformed(i, "the batch ends before the record")
		}
		l := int64(binary.BigEndian.Uint32(rest))
		if l < 3 || l > int64(len(rest)-4) {
			return malformed(i, "the record's length does not fit")
		}
		body := rest[4 : 4+l]
		rest = rest[4+l:]
		f := int(binary.BigEndian.Uint16(body))
		if f > len(body)-3 {
			return malformed(i, "the fields' length does not fit")
		}
		r := Record{Partition: NoPartition, Payload: body[2+f:]}
		if reason := d.readFields(body[2:2+f], &r, h.kind, strict); reason != "" {
			return malformed(i, reason)
		}
		d.records = append(d.records, r)
	}
	if len(rest) != 0 {
		return malformed(-1, "bytes follow the last record")
	}
	return nil
}

// readFields reads the fields of one record; a reason refuses it.
func (d *Decoder) readFields(b []byte, r *Record, kind Kind, strict bool) string {
	firstAttr, last, seen := len(d.attrs), -1, uint32(0)
	for len(b) > 0 {
		tag, value, rest, ok := cutField(b)
		if !ok {
			return "a field's length does not fit"
		}
		b = rest
		if int(tag) < last || int(tag) == last && tag != tagAttr {
			return "tags do not ascend"
		}
		last = int(tag)
		var reason string
		switch {
		case tag == tagAttr:
			reason = d.readAttr(value, firstAttr)
		case tag != 0 && tag <= tagPartition:
			reason = readCommon(tag, value, r)
		case strict:
			return fmt.Sprintf("tag %02x is not for a produce", tag)
		default:
			reason = readPlace(tag, value, r)
		}
		if reason != "" {
			return reason
		}
		if tag < 32 {
			seen |= 1 << tag
		}
	}
	if len(d.attrs) > firstAttr {
		r.Attrs = d.attrs[firstAttr:len(d.attrs):len(d.attrs)]
	}
	if seen&required(kind) != required(kind) {
		return "a field that every such record has is missing"
	}
	return ""
}

// required is the set of tags without which a record of an answer is useless.
func required(kind Kind) uint32 {
	switch kind {
	case Delivery:
		return 1<<tagPartition | 1<<tagOffset | 1<<tagID | 1<<tagReceipt
	case Replay:
		return 1<<tagPartition | 1<<tagOffset | 1<<tagID
	default:
		return 0
	}
}

func readCommon(tag byte, value []byte, r *Record) string {
	switch tag {
	case tagKey:
		r.Key = value
	case tagContentType:
		r.ContentType = value
	case tagPartition:
		if len(value) != 4 {
			return "the partition is not 4 bytes long"
		}
		r.Partition = int64(binary.BigEndian.Uint32(value))
	default:
		return fmt.Sprintf("unknown tag %02x", tag)
	}
	if len(value) == 0 {
		return "an empty field"
	}
	return ""
}

func (d *Decoder) readAttr(value []byte, first int) string {
	if len(value) < 2 || value[0] == 0 || int(value[0]) > len(value)-1 {
		return "an attribute's name does not fit"
	}
	a := Attr{Name: value[1 : 1+value[0]], Value: value[1+value[0]:]}
	if n := len(d.attrs); n > first && bytes.Compare(d.attrs[n-1].Name, a.Name) >= 0 {
		return "attributes do not ascend by name"
	}
	d.attrs = append(d.attrs, a)
	return ""
}

// readPlace reads the fields of answers and leaves unknown ones alone.
func readPlace(tag byte, value []byte, r *Record) string {
	u32, u64, big := uint32(0), uint64(0), false
	switch tag {
	case tagOffset, tagCommitted:
		if len(value) != 8 {
			return "a number is not 8 bytes long"
		}
		u64 = binary.BigEndian.Uint64(value)
		big = u64 >= 1<<63
	case tagDeliveries, tagLease:
		if len(value) != 4 {
			return "a number is not 4 bytes long"
		}
		u32 = binary.BigEndian.Uint32(value)
	}
	if big {
		return "a number is above 2^63-1"
	}
	switch tag {
	case tagOffset:
		r.Offset = int64(u64)
	case tagCommitted:
		r.CommittedMS = int64(u64)
	case tagID:
		r.ID = value
	case tagDeliveries:
		r.DeliveryCount = u32
	case tagLease:
		r.LeaseMS = u32
	case tagReceipt:
		r.ReceiptHandle = value
	}
	return ""
}

func readMeta(b []byte, m *Meta) error {
	last := -1
	for len(b) > 0 {
		tag, value, rest, ok := cutField(b)
		if !ok {
			return malformed(-1, "a meta field's length does not fit")
		}
		if int(tag) <= last {
			return malformed(-1, "meta tags do not ascend")
		}
		last, b = int(tag), rest
		if tag < tagIncarnation || tag > tagLogStart {
			continue
		}
		if len(value) != 8 {
			return malformed(-1, "a meta number is not 8 bytes long")
		}
		v := binary.BigEndian.Uint64(value)
		switch tag {
		case tagIncarnation:
			m.Incarnation = v
		case tagNextOffset:
			m.NextOffset = int64(v)
		case tagHWM:
			m.HighWatermark = int64(v)
		case tagLogStart:
			m.LogStart = int64(v)
		}
	}
	return nil
}

func cutField(b []byte) (tag byte, value, rest []byte, ok bool) {
	if len(b) < fieldHeaderSize {
		return 0, nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b[1:]))
	if n > len(b)-fieldHeaderSize {
		return 0, nil, nil, false
	}
	return b[0], b[fieldHeaderSize : fieldHeaderSize+n], b[fieldHeaderSize+n:], true
}
