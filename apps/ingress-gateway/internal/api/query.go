package api

import (
	"bytes"
	"strconv"
	"time"

	"github.com/narad-mq/narad/libs/problem"
)

// maxParameters is the largest number of query parameters of one route.
const maxParameters = 8

// query holds the parameters of one request by the index of their name in the
// route's list, raw as sent.
type query struct {
	names  []string
	values [maxParameters][]byte
	set    [maxParameters]bool
}

func badParameter(name, format string, args ...any) *problem.Problem {
	return problem.New(problem.InvalidRequest, format, args...).With("parameter", name)
}

// parse splits a raw query strictly: a name that the route does not list, or one
// that stands twice, is refused. Only & separates; a semicolon is a character.
func (q *query) parse(raw []byte, names []string) error {
	q.names = names
	for i := range names {
		q.set[i] = false
	}
	if len(raw) == 0 {
		return nil
	}
	for more := true; more; {
		var pair []byte
		pair, raw, more = bytes.Cut(raw, []byte{'&'})
		name, value, _ := bytes.Cut(pair, []byte{'='})
		if bytes.IndexByte(name, '%') >= 0 || bytes.IndexByte(name, '+') >= 0 {
			decoded, ok := appendUnescaped(nil, name, true)
			if !ok {
				return badParameter(printable(name), "a query parameter's name is not percent-encoded")
			}
			name = decoded
		}
		i := indexOf(names, name)
		if i < 0 {
			return badParameter(printable(name), "unknown query parameter")
		}
		if q.set[i] {
			return badParameter(names[i], "query parameter %s is given twice", names[i])
		}
		q.set[i], q.values[i] = true, value
	}
	return nil
}

// printable makes a caller's bytes fit to be shown back.
func printable(b []byte) string {
	const most = 64
	if len(b) > most {
		b = b[:most]
	}
	out := bytes.ToValidUTF8(b, []byte("?"))
	return string(bytes.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, out))
}

func indexOf(names []string, name []byte) int {
	for i, n := range names {
		if n == string(name) {
			return i
		}
	}
	return -1
}

// raw returns the undecoded value of a parameter that the route lists.
func (q *query) raw(name string) ([]byte, bool) {
	for i, n := range q.names {
		if n == name {
			return q.values[i], q.set[i]
		}
	}
	return nil, false
}

// text returns the decoded value, in dst's memory when it had escapes.
func (q *query) text(name string, dst []byte) ([]byte, bool, error) {
	raw, ok := q.raw(name)
	if !ok || bytes.IndexByte(raw, '%') < 0 && bytes.IndexByte(raw, '+') < 0 {
		return raw, ok, nil
	}
	out, valid := appendUnescaped(dst[:0], raw, true)
	if !valid {
		return nil, true, badParameter(name, "%s is not percent-encoded", name)
	}
	return out, true, nil
}

// integer returns a decimal of digits only, between low and high; def without the parameter.
func (q *query) integer(name string, def, low, high int64) (int64, error) {
	raw, ok := q.raw(name)
	if !ok {
		return def, nil
	}
	v, ok := digits(raw)
	if !ok || v < low || v > high {
		return 0, badParameter(name, "%s must be between %d and %d", name, low, high)
	}
	return v, nil
}

// duration returns digits and a unit ms, s or m, between low and high.
func (q *query) duration(name string, def, low, high time.Duration) (time.Duration, error) {
	raw, ok := q.raw(name)
	if !ok {
		return def, nil
	}
	unit, n := time.Duration(0), len(raw)
	switch {
	case bytes.HasSuffix(raw, []byte("ms")):
		unit, n = time.Millisecond, n-2
	case bytes.HasSuffix(raw, []byte("s")):
		unit, n = time.Second, n-1
	case bytes.HasSuffix(raw, []byte("m")):
		unit, n = time.Minute, n-1
	}
	v, ok := digits(raw[:n])
	if !ok || unit == 0 || v > int64(high/unit) || time.Duration(v)*unit < low {
		return 0, badParameter(name, "%s must be between %s and %s, in ms, s or m", name, low, high)
	}
	return time.Duration(v) * unit, nil
}

// digits reads 1 to 18 decimal digits.
func digits(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	var v int64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + int64(c-'0')
	}
	return v, true
}

// offset reads 0..2^63-1.
func offset(b []byte) (int64, bool) {
	if len(b) <= 18 {
		return digits(b)
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	v, err := strconv.ParseInt(string(b), 10, 64)
	return v, err == nil
}

// appendUnescaped appends the percent-decoded form; plus says whether + is a space.
func appendUnescaped(dst, b []byte, plus bool) ([]byte, bool) {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '+' && plus:
			dst = append(dst, ' ')
		case c != '%':
			dst = append(dst, c)
		default:
			if i+2 >= len(b) {
				return nil, false
			}
			hi, ok1 := hexValue(b[i+1])
			lo, ok2 := hexValue(b[i+2])
			if !ok1 || !ok2 {
				return nil, false
			}
			dst = append(dst, hi<<4|lo)
			i += 2
		}
	}
	return dst, true
}

func hexValue(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
