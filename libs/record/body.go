package record

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
)

const (
	flagKey         = 1
	flagContentType = 2
	flagAttrs       = 4
	flagsKnown      = flagKey | flagContentType | flagAttrs
)

// BodySize is the length of what AppendBody appends.
func BodySize(m *Message) int {
	n := 1 + len(m.Payload)
	if len(m.Key) > 0 {
		n += 2 + len(m.Key)
	}
	if m.ContentType != "" {
		n += 2 + len(m.ContentType)
	}
	if len(m.Attrs) > 0 {
		n++
		for i := range m.Attrs {
			n += 3 + len(m.Attrs[i].Name) + len(m.Attrs[i].Value)
		}
	}
	return n
}

// AppendBody appends the encoded form of m to dst. The message must be within
// the limits and its attributes ascending by name, as whoever accepts a message
// has checked (CheckMessage); otherwise ParseBody will refuse the bytes.
func AppendBody(dst []byte, m *Message) []byte {
	at := len(dst)
	dst = append(dst, 0)
	var flags byte
	if len(m.Key) > 0 {
		flags |= flagKey
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.Key)))
		dst = append(dst, m.Key...)
	}
	if m.ContentType != "" {
		flags |= flagContentType
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(m.ContentType)))
		dst = append(dst, m.ContentType...)
	}
	if len(m.Attrs) > 0 {
		flags |= flagAttrs
		dst = append(dst, byte(len(m.Attrs)))
		for i := range m.Attrs {
			a := &m.Attrs[i]
			dst = append(dst, byte(len(a.Name)))
			dst = append(dst, a.Name...)
			dst = binary.BigEndian.AppendUint16(dst, uint16(len(a.Value)))
			dst = append(dst, a.Value...)
		}
	}
	dst[at] = flags
	return append(dst, m.Payload...)
}

// CheckMessage tells whether m can be encoded: nil, or an ErrBody that names
// the limit it breaks.
func CheckMessage(m *Message) error {
	switch {
	case len(m.Payload) == 0 || len(m.Payload) > MaxPayload:
		return fmt.Errorf("%w: payload of %d bytes", ErrBody, len(m.Payload))
	case len(m.Key) > MaxKey:
		return fmt.Errorf("%w: key of %d bytes", ErrBody, len(m.Key))
	case len(m.ContentType) > MaxContentType:
		return fmt.Errorf("%w: content type of %d bytes", ErrBody, len(m.ContentType))
	case len(m.Attrs) > MaxAttrs:
		return fmt.Errorf("%w: %d attributes", ErrBody, len(m.Attrs))
	}
	sum := 0
	for i := range m.Attrs {
		a := &m.Attrs[i]
		sum += len(a.Name) + len(a.Value)
		if len(a.Name) == 0 || len(a.Name) > MaxAttrName || len(a.Value) > MaxAttrValue || sum > MaxAttrBytes {
			return fmt.Errorf("%w: attribute %d is too long", ErrBody, i)
		}
		if i > 0 && m.Attrs[i-1].Name >= a.Name {
			return fmt.Errorf("%w: attributes do not ascend", ErrBody)
		}
	}
	return nil
}

// View is an encoded message taken apart without a copy: every slice aliases
// the bytes given to ParseBody and lives as long as they do.
type View struct {
	Key         []byte // nil: none
	ContentType []byte // nil: none
	Payload     []byte // 1 byte or more
	attrs       []byte // encoded, checked
	attrCount   int
}

// ParseBody takes an encoded message apart. It is strict: anything that
// AppendBody would not have written within the limits is ErrBody.
func ParseBody(b []byte) (View, error) {
	var v View
	if len(b) == 0 || b[0]&^flagsKnown != 0 {
		return v, fmt.Errorf("%w: flags", ErrBody)
	}
	flags, rest, ok := b[0], b[1:], true
	if flags&flagKey != 0 {
		if v.Key, rest, ok = cut16(rest, MaxKey); !ok {
			return View{}, fmt.Errorf("%w: key", ErrBody)
		}
	}
	if flags&flagContentType != 0 {
		if v.ContentType, rest, ok = cut16(rest, MaxContentType); !ok {
			return View{}, fmt.Errorf("%w: content type", ErrBody)
		}
	}
	if flags&flagAttrs != 0 {
		if v.attrs, v.attrCount, rest, ok = cutAttrs(rest); !ok {
			return View{}, fmt.Errorf("%w: attributes", ErrBody)
		}
	}
	if len(rest) == 0 || len(rest) > MaxPayload {
		return View{}, fmt.Errorf("%w: payload of %d bytes", ErrBody, len(rest))
	}
	v.Payload = rest
	return v, nil
}

// cut16 takes a non-empty field of at most limit bytes behind its u16 length.
func cut16(b []byte, limit int) (field, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if n == 0 || n > limit || len(b)-2 < n {
		return nil, nil, false
	}
	return b[2 : 2+n : 2+n], b[2+n:], true
}

func cutAttrs(b []byte) (attrs []byte, count int, rest []byte, ok bool) {
	if len(b) == 0 || b[0] == 0 || b[0] > MaxAttrs {
		return nil, 0, nil, false
	}
	count = int(b[0])
	attrs = b[1:]
	rest = attrs
	sum := 0
	var last []byte
	for range count {
		name, value, after, ok := cutAttr(rest)
		sum += len(name) + len(value)
		if !ok || sum > MaxAttrBytes || bytes.Compare(last, name) >= 0 {
			return nil, 0, nil, false
		}
		last, rest = name, after
	}
	return attrs[:len(attrs)-len(rest)], count, rest, true
}

func cutAttr(b []byte) (name, value, rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, nil, nil, false
	}
	n := int(b[0])
	if n == 0 || n > MaxAttrName || len(b) < 1+n+2 {
		return nil, nil, nil, false
	}
	name, b = b[1:1+n:1+n], b[1+n:]
	n = int(binary.BigEndian.Uint16(b))
	if n > MaxAttrValue || len(b)-2 < n {
		return nil, nil, nil, false
	}
	return name, b[2 : 2+n : 2+n], b[2+n:], true
}

// AttrCount is the number of attributes.
func (v *View) AttrCount() int { return v.attrCount }

// Attrs yields name and value of each attribute, ascending by name. The slices
// alias the encoded message.
func (v *View) Attrs() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		rest := v.attrs
		for range v.attrCount {
			name, value, after, ok := cutAttr(rest)
			if !ok || !yield(name, value) {
				return
			}
			rest = after
		}
	}
}

// Message copies the view into a Message that shares nothing with it.
func (v *View) Message() *Message {
	m := &Message{Key: bytes.Clone(v.Key), ContentType: string(v.ContentType), Payload: bytes.Clone(v.Payload)}
	for name, value := range v.Attrs() {
		m.Attrs = append(m.Attrs, Attr{string(name), string(value)})
	}
	return m
}
