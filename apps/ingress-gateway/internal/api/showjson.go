package api

import (
	"strconv"
	"unsafe"
)

// presentableJSON tells whether b, which must be valid UTF-8, is one JSON text
// that every decoder reads the same way: depth at most MaxJSONDepth, no lone
// surrogate escapes, no number beyond the range of a double. It allocates only
// for numbers with exponents or hundreds of digits. (FuzzPresentableJSON holds
// it against jsontext.)
func presentableJSON(b []byte) bool {
	s := jsonScan{b: b}
	s.space()
	if !s.value(0) {
		return false
	}
	s.space()
	return s.i == len(b)
}

// jsonScan is a recursive-descent reader whose depth MaxJSONDepth bounds.
type jsonScan struct {
	b []byte
	i int
}

func (s *jsonScan) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *jsonScan) take(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *jsonScan) literal(word string) bool {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return false
	}
	s.i += len(word)
	return true
}

// value reads one value that stands inside depth containers.
func (s *jsonScan) value(depth int) bool {
	if s.i >= len(s.b) {
		return false
	}
	switch s.b[s.i] {
	case '{':
		s.i++
		return depth < MaxJSONDepth && s.members(depth+1)
	case '[':
		s.i++
		return depth < MaxJSONDepth && s.elements(depth+1)
	case '"':
		return s.str()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *jsonScan) members(depth int) bool {
	s.space()
	if s.take('}') {
		return true
	}
	for {
		if s.i >= len(s.b) || s.b[s.i] != '"' || !s.str() {
			return false
		}
		s.space()
		if !s.take(':') {
			return false
		}
		s.space()
		if !s.value(depth) {
			return false
		}
		s.space()
		if s.take('}') {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *jsonScan) elements(depth int) bool {
	s.space()
	if s.take(']') {
		return true
	}
	for {
		if !s.value(depth) {
			return false
		}
		s.space()
		if s.take(']') {
			return true
		}
		if !s.take(',') {
			return false
		}
		s.space()
	}
}

func (s *jsonScan) str() bool {
	s.i++
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return true
		case c < ' ':
			return false
		case c == '\\':
			if !s.escape() {
				return false
			}
		default:
			s.i++
		}
	}
	return false
}

func (s *jsonScan) escape() bool {
	s.i++
	if s.i >= len(s.b) {
		return false
	}
	c := s.b[s.i]
	s.i++
	switch c {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
	default:
		return false
	}
	v, ok := s.hex4()
	if !ok || v >= 0xdc00 && v < 0xe000 {
		return false // malformed, or a low surrogate first
	}
	if v < 0xd800 || v >= 0xe000 {
		return true
	}
	if !s.literal(`\u`) {
		return false
	}
	v, ok = s.hex4()
	return ok && v >= 0xdc00 && v < 0xe000
}

func (s *jsonScan) hex4() (v uint32, ok bool) {
	if len(s.b)-s.i < 4 {
		return 0, false
	}
	for range 4 {
		d, ok := hexValue(s.b[s.i])
		if !ok {
			return 0, false
		}
		v = v<<4 | uint32(d)
		s.i++
	}
	return v, true
}

// plainDigits is the number of characters up to which a number without an
// exponent is below 1e308 whatever its digits are.
const plainDigits = 300

func (s *jsonScan) number() bool {
	start := s.i
	s.take('-')
	if !s.take('0') && !s.digits() {
		return false
	}
	if s.take('.') && !s.digits() {
		return false
	}
	exponent := s.take('e') || s.take('E')
	if exponent {
		if !s.take('+') {
			s.take('-')
		}
		if !s.digits() {
			return false
		}
	}
	if !exponent && s.i-start < plainDigits {
		return true
	}
	text := s.b[start:s.i]
	// The view is read only while ParseFloat runs.
	_, err := strconv.ParseFloat(unsafe.String(unsafe.SliceData(text), len(text)), 64)
	return err == nil
}

// digits takes one digit or more.
func (s *jsonScan) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > start
}
