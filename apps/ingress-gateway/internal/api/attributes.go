package api

import (
	"bytes"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/narad-mq/narad/libs/problem"
	"github.com/narad-mq/narad/libs/record"
)

const (
	attributeHeader = "Narad-Attr-"
	reservedPrefix  = "narad-"
)

// collectAttributes gathers the attributes of a produce from its headers, in
// c.attrs, ascending by name.
func (c *call) collectAttributes() ([]record.Attr, error) {
	c.attrs, c.attrErr = c.attrs[:0], nil
	c.req.Headers.Each(c.visit)
	if c.attrErr != nil {
		return nil, c.attrErr
	}
	return c.attrs, checkAttributes(c.attrs)
}

// collectAttribute takes one header line if it is an attribute.
func (c *call) collectAttribute(name, value []byte) bool {
	const n = len(attributeHeader)
	switch {
	case len(name) > n && equalFold(name[:n], attributeHeader):
		name = name[n:]
	case equalFold(name, "traceparent"), equalFold(name, "tracestate"):
	case len(name) == n && equalFold(name, attributeHeader):
		c.attrErr = problem.New(problem.InvalidAttribute, "an attribute has no name")
		return false
	default:
		return true
	}
	if len(c.attrs) == MaxAttributes {
		c.attrErr = problem.New(problem.InvalidAttribute, "at most %d attributes are allowed", MaxAttributes)
		return false
	}
	c.attrs = append(c.attrs, record.Attr{Name: lower(name), Value: viewString(value)})
	return true
}

// lower gives the lower-case form; it shares memory when there is nothing to change.
func lower(name []byte) string { return strings.ToLower(viewString(name)) }

// refuseAttributeHeaders is for batches: their attributes stand in the body, and
// one in a header would be lost in silence.
func (c *call) refuseAttributeHeaders() error {
	found := false
	c.req.Headers.Each(func(name, _ []byte) bool {
		found = len(name) >= len(attributeHeader) && equalFold(name[:len(attributeHeader)], attributeHeader)
		return !found
	})
	if found {
		return problem.New(problem.InvalidAttribute, "the messages of a batch carry their attributes themselves")
	}
	return nil
}

// checkAttributes sorts the attributes by name and holds them against the rules
// of api.md, section 6. Names are lower-case already.
func checkAttributes(attrs []record.Attr) error {
	if len(attrs) == 0 {
		return nil
	}
	if len(attrs) > MaxAttributes {
		return problem.New(problem.InvalidAttribute, "at most %d attributes are allowed", MaxAttributes)
	}
	slices.SortFunc(attrs, func(a, b record.Attr) int { return strings.Compare(a.Name, b.Name) })
	sum := 0
	for i := range attrs {
		a := &attrs[i]
		if i > 0 && attrs[i-1].Name == a.Name {
			return problem.New(problem.InvalidAttribute, "attribute %s is given twice", a.Name)
		}
		if err := checkAttribute(a); err != nil {
			return err
		}
		sum += len(a.Name) + len(a.Value)
	}
	if sum > MaxAttributesBytes {
		return problem.New(problem.InvalidAttribute, "attributes take %d bytes, at most %d are allowed", sum, MaxAttributesBytes)
	}
	return nil
}

func checkAttribute(a *record.Attr) error {
	if len(a.Name) == 0 || len(a.Name) > MaxAttributeNameBytes || !attributeName(a.Name) {
		return problem.New(problem.InvalidAttribute, "an attribute's name is 1 to %d of a-z 0-9 -", MaxAttributeNameBytes)
	}
	if strings.HasPrefix(a.Name, reservedPrefix) {
		return problem.New(problem.InvalidAttribute, "names of attributes that begin with narad- are reserved")
	}
	if len(a.Value) > MaxAttributeBytes {
		return problem.New(problem.InvalidAttribute, "attribute %s is longer than %d bytes", a.Name, MaxAttributeBytes)
	}
	if !utf8.ValidString(a.Value) || strings.ContainsFunc(a.Value, unicode.IsControl) || strings.TrimSpace(a.Value) != a.Value {
		return problem.New(problem.InvalidAttribute, "attribute %s is not UTF-8 without control characters and white space at its ends", a.Name)
	}
	return nil
}

func attributeName(s string) bool {
	for i := range len(s) {
		if c := s[i]; !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// checkKey: no key is nil.
func checkKey(key []byte) error {
	if len(key) > MaxKeyBytes {
		return problem.New(problem.InvalidKey, "a key has at most %d bytes", MaxKeyBytes)
	}
	return nil
}

// checkContentType holds the type that is stored with a message against its limits.
func checkContentType(b []byte, parameter string) error {
	bad := bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' || r > '~' })
	if bad || len(b) > MaxContentTypeBytes {
		return badParameter(parameter, "a content type is at most %d printable ASCII characters", MaxContentTypeBytes)
	}
	return nil
}
