package batch

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// castagnoli is read-only after initialisation.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrUnencodable is returned for a record that the format cannot hold: an empty
// payload, fields above 65,535 bytes, attributes that do not ascend.
var ErrUnencodable = errors.New("record does not fit into the batch format")

// Writer builds one batch. The zero value is not usable; call NewWriter. After
// an error of Add the batch is as it was before that call.
type Writer struct {
	buf   []byte
	start int
	count uint32
	kind  Kind
}

// NewWriter begins a batch at the end of dst, which Bytes returns extended.
// meta is ignored for Produce.
func NewWriter(dst []byte, kind Kind, meta Meta) Writer {
	w := Writer{start: len(dst), kind: kind}
	dst = append(dst, magic[:]...)
	dst = append(dst, byte(kind), 0, 0, 0, 0, 0, 0, 0)
	metaStart := len(dst)
	if kind == Delivery || kind == Replay {
		dst = appendU64(dst, tagIncarnation, meta.Incarnation)
	}
	if kind == Replay {
		dst = appendU64(dst, tagNextOffset, uint64(meta.NextOffset))
		dst = appendU64(dst, tagHWM, uint64(meta.HighWatermark))
		dst = appendU64(dst, tagLogStart, uint64(meta.LogStart))
	}
	binary.BigEndian.PutUint16(dst[w.start+6:], uint16(len(dst)-metaStart))
	w.buf = dst
	return w
}

// Add appends one record; r is not kept. It fails with ErrUnencodable.
func (w *Writer) Add(r *Record) error {
	at := len(w.buf)
	buf := append(w.buf, 0, 0, 0, 0, 0, 0)
	if len(r.Key) > 0 {
		buf = appendField(buf, tagKey, r.Key)
	}
	if len(r.ContentType) > 0 {
		buf = appendField(buf, tagContentType, r.ContentType)
	}
	for i := range r.Attrs {
		a := &r.Attrs[i]
		if len(a.Name) == 0 || len(a.Name) > 255 || len(a.Value) > maxFields-256 ||
			i > 0 && string(r.Attrs[i-1].Name) >= string(a.Name) {
			return ErrUnencodable
		}
		buf = appendAttr(buf, a.Name, a.Value)
	}
	if r.Partition >= 0 {
		buf = append(buf, tagPartition, 0, 4)
		buf = binary.BigEndian.AppendUint32(buf, uint32(r.Partition))
	}
	buf = w.appendPlace(buf, r)
	fields := len(buf) - at - recordHeaderSize
	if fields > maxFields || len(r.Payload) == 0 || len(r.Key) > maxFields || len(r.ContentType) > maxFields {
		return ErrUnencodable
	}
	buf = append(buf, r.Payload...)
	binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	binary.BigEndian.PutUint16(buf[at+4:], uint16(fields))
	w.buf = buf
	w.count++
	return nil
}

// appendPlace appends the fields that only answers have.
func (w *Writer) appendPlace(buf []byte, r *Record) []byte {
	if w.kind == Produce {
		return buf
	}
	buf = appendU64(buf, tagOffset, uint64(r.Offset))
	buf = appendU64(buf, tagCommitted, uint64(r.CommittedMS))
	buf = appendField(buf, tagID, r.ID)
	if w.kind != Delivery {
		return buf
	}
	buf = append(buf, tagDeliveries, 0, 4)
	buf = binary.BigEndian.AppendUint32(buf, r.DeliveryCount)
	buf = append(buf, tagLease, 0, 4)
	buf = binary.BigEndian.AppendUint32(buf, r.LeaseMS)
	return appendField(buf, tagReceipt, r.ReceiptHandle)
}

// Len is the size of the batch so far in bytes, without a trailer.
func (w *Writer) Len() int { return len(w.buf) - w.start }

// Count is the number of records so far.
func (w *Writer) Count() int { return int(w.count) }

// Bytes ends the batch and returns dst with the batch at its end. The Writer
// must not be used afterwards.
func (w *Writer) Bytes(withCRC bool) []byte {
	binary.BigEndian.PutUint32(w.buf[w.start+8:], w.count)
	if withCRC {
		w.buf[w.start+5] = flagCRC
		w.buf = binary.BigEndian.AppendUint32(w.buf, crc32.Checksum(w.buf[w.start:], castagnoli))
	}
	return w.buf
}

// Encode is NewWriter, Add for each record, Bytes.
func Encode(dst []byte, b *Batch, withCRC bool) ([]byte, error) {
	w := NewWriter(dst, b.Kind, b.Meta)
	for i := range b.Records {
		if err := w.Add(&b.Records[i]); err != nil {
			return nil, err
		}
	}
	return w.Bytes(withCRC), nil
}

// appendAttr appends one attribute field. name is 1..255 bytes long.
func appendAttr(dst, name, value []byte) []byte {
	dst = append(dst, tagAttr)
	dst = binary.BigEndian.AppendUint16(dst, uint16(1+len(name)+len(value)))
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, value...)
}

func appendField(dst []byte, tag byte, value []byte) []byte {
	dst = append(dst, tag)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(value)))
	return append(dst, value...)
}

func appendU64(dst []byte, tag byte, v uint64) []byte {
	dst = append(dst, tag, 0, 8)
	return binary.BigEndian.AppendUint64(dst, v)
}
