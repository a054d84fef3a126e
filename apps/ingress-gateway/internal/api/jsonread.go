package api

import (
	"bytes"
	"io"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/narad-mq/narad/libs/problem"
)

// jsonReader reads request documents strictly: one value, valid UTF-8, names
// case-sensitive, no name unknown, no name twice, null only where it is said to
// be allowed. Values inside a payload are only checked to be JSON.
type jsonReader struct {
	dec   *jsontext.Decoder
	buf   bytes.Buffer
	index int // of the message that is being read; -1: none
}

// read begins a document.
func (r *jsonReader) read(body []byte) error {
	r.index = -1
	if !utf8.Valid(body) {
		return r.bad("body", "the body is not valid UTF-8")
	}
	r.buf = *bytes.NewBuffer(body) // the decoder parses a buffer's bytes where they are
	// Names are checked here, by field, and a payload's own are its sender's
	// affair; lone surrogates are refused where a string is decoded.
	opts := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	if r.dec == nil {
		r.dec = jsontext.NewDecoder(&r.buf, opts...)
	} else {
		r.dec.Reset(&r.buf, opts...)
	}
	return nil
}

// bad is invalid_request with the parameter and, inside a list, the index.
func (r *jsonReader) bad(parameter, format string, args ...any) error {
	return r.problem(problem.InvalidRequest, format, args...).With("parameter", parameter)
}

func (r *jsonReader) problem(code problem.Code, format string, args ...any) *problem.Problem {
	p := problem.New(code, format, args...)
	if r.index >= 0 {
		p.With("index", r.index)
	}
	return p
}

func (r *jsonReader) malformed() error { return r.bad("body", "the body is not valid JSON") }

// object reads an object of these names and calls field with the index of each
// that is there; field must read the value. Bits of nullable say which names take null.
func (r *jsonReader) object(what string, names []string, nullable uint64, field func(i int) error) error {
	if r.dec.PeekKind() != '{' {
		return r.wrongKind(what, "an object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	var seen uint64
	for r.dec.PeekKind() != '}' {
		raw, err := r.dec.ReadValue()
		if err != nil {
			return r.malformed()
		}
		i, name := fieldIndex(names, raw)
		if i < 0 {
			return r.bad(name, "unknown field")
		}
		if seen&(1<<i) != 0 {
			return r.bad(name, "%s is given twice", name)
		}
		seen |= 1 << i
		if r.dec.PeekKind() == 'n' && nullable&(1<<i) == 0 {
			if _, err := r.dec.ReadValue(); err != nil {
				return r.malformed()
			}
			return r.bad(name, "%s must not be null", name)
		}
		if err := field(i); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	return nil
}

// array reads a list and calls element for each; element must read the value.
func (r *jsonReader) array(what string, element func(i int) error) error {
	if r.dec.PeekKind() != '[' {
		return r.wrongKind(what, "a list")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	return nil
}

// end checks that nothing but white space follows.
func (r *jsonReader) end() error {
	if _, err := r.dec.ReadToken(); err != io.EOF {
		return r.bad("body", "more than one JSON value")
	}
	return nil
}

// fieldIndex finds a quoted name; it returns the name for the answer too.
func fieldIndex(names []string, quoted jsontext.Value) (int, string) {
	plain := []byte(quoted[1 : len(quoted)-1])
	if bytes.IndexByte(plain, '\\') >= 0 {
		out, err := jsontext.AppendUnquote(nil, []byte(quoted))
		if err != nil {
			return -1, printable(plain)
		}
		plain = out
	}
	if i := indexOf(names, plain); i >= 0 {
		return i, names[i]
	}
	return -1, printable(plain)
}

// wrongKind tells a malformed document from a value of another kind.
func (r *jsonReader) wrongKind(what, want string) error {
	if _, err := r.dec.ReadValue(); err != nil {
		return r.malformed()
	}
	return r.bad(what, "%s must be %s", what, want)
}

// value reads any value: its bytes as sent, aliasing the body.
func (r *jsonReader) value() ([]byte, error) {
	v, err := r.dec.ReadValue()
	if err != nil {
		return nil, r.malformed()
	}
	return v, nil
}

// str reads a string and appends its value to dst.
func (r *jsonReader) str(what string, dst []byte) ([]byte, error) {
	if r.dec.PeekKind() != '"' {
		return nil, r.wrongKind(what, "a string")
	}
	v, err := r.value()
	if err != nil {
		return nil, err
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return append(dst, v[1:len(v)-1]...), nil
	}
	out, err := jsontext.AppendUnquote(dst, v)
	if err != nil {
		return nil, r.bad(what, "%s has an escape that is no character", what)
	}
	return out, nil
}

// integer reads a whole number written without fraction and exponent.
func (r *jsonReader) integer(what string) (int64, error) {
	if r.dec.PeekKind() != '0' {
		return 0, r.wrongKind(what, "an integer")
	}
	v, err := r.value()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return 0, r.bad(what, "%s must be an integer", what)
	}
	return n, nil
}

// boolean reads true or false.
func (r *jsonReader) boolean(what string) (bool, error) {
	if k := r.dec.PeekKind(); k != 't' && k != 'f' {
		return false, r.wrongKind(what, "true or false")
	}
	v, err := r.value()
	return len(v) > 0 && v[0] == 't', err
}

// jsonDocument reads the body of a JSON route into a reader.
func (c *call) jsonDocument(limit int) (*jsonReader, error) {
	if v, n := c.req.Headers.Get("Content-Type"); n > 1 || !jsonBody(v) {
		return nil, problem.New(problem.UnsupportedMediaType, "send application/json")
	}
	if v, n := c.req.Headers.Get("Content-Encoding"); n > 1 || n == 1 && !equalFold(v, "identity") && len(v) > 0 {
		return nil, problem.New(problem.UnsupportedEncoding, "this route takes no content encoding")
	}
	body, err := c.readBody(limit, problem.BodyTooLarge)
	if err != nil {
		return nil, err
	}
	return c.parse(body)
}

// parse begins to read body with the call's reader.
func (c *call) parse(body []byte) (*jsonReader, error) {
	if c.reader == nil {
		c.reader = &jsonReader{}
	}
	return c.reader, c.reader.read(body)
}

// members reads an object with any names and calls member with each name,
// decoded; member must read the value, which is not null.
func (r *jsonReader) members(what string, member func(name []byte) error) error {
	if r.dec.PeekKind() != '{' {
		return r.wrongKind(what, "an object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	for r.dec.PeekKind() != '}' {
		name, err := r.str(what, nil)
		if err != nil {
			return err
		}
		if err := member(name); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return r.malformed()
	}
	return nil
}
