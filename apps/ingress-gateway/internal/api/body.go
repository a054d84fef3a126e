package api

import (
	"errors"
	"io"
	"sync/atomic"
	"unsafe"

	"github.com/narad-mq/narad/libs/problem"
)

// budget bounds a sum of bytes over all requests.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) {
	if n != 0 {
		b.used.Add(-n)
	}
}

// reserve takes n more bytes from the budget of bodies until the call ends.
func (c *call) reserve(n int) error {
	if !c.api.bodies.take(int64(n)) {
		return problem.New(problem.Overloaded, "request bodies take all the memory set aside for them")
	}
	c.reserved += int64(n)
	return nil
}

func tooLarge(code problem.Code, limit int) error {
	return problem.New(code, "at most %d bytes are allowed", limit).With("limit_bytes", limit)
}

// readBody reads the body as sent, at most limit bytes, else code. It returns
// errWantsBody in a dry run once the announced length has passed. Memory grows
// with what has arrived, not with what was announced.
func (c *call) readBody(limit int, code problem.Code) ([]byte, error) {
	announced := c.req.ContentLength
	if announced > int64(limit) {
		c.resp.Close = true
		return nil, tooLarge(code, limit)
	}
	if announced == 0 {
		return nil, nil
	}
	if c.req.Dry {
		return nil, errWantsBody
	}
	most := limit + 1 // one byte more tells that it is too long
	if announced > 0 {
		most = int(announced)
	}
	c.raw = c.raw[:0]
	room := 0
	for {
		if len(c.raw) == room {
			if room == most {
				break
			}
			next := min(most, max(bodyStep, 2*room))
			if err := c.reserve(next - room); err != nil {
				c.resp.Close = true
				return nil, err
			}
			c.raw, room = grown(c.raw, next), next
		}
		n, err := c.req.Body.Read(c.raw[len(c.raw):room])
		c.raw = c.raw[:len(c.raw)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, c.brokenBody(err)
		}
	}
	if announced > 0 && int64(len(c.raw)) < announced {
		return nil, c.brokenBody(io.ErrUnexpectedEOF)
	}
	if len(c.raw) > limit {
		c.resp.Close = true
		return nil, tooLarge(code, limit)
	}
	return c.raw, nil
}

// grown returns b with a capacity of n at least.
func grown(b []byte, n int) []byte {
	if cap(b) >= n {
		return b
	}
	out := make([]byte, len(b), n)
	copy(out, b)
	return out
}

// brokenBody tells why a body did not arrive; the connection is of no more use.
func (c *call) brokenBody(err error) error {
	c.resp.Close = true
	if errors.Is(err, ErrBodyTimeout) {
		return problem.New(problem.RequestTimeout, "the body came too slowly")
	}
	return problem.New(problem.InvalidRequest, "the body ended early or is malformed").With("parameter", "body")
}

// viewString shows b as a string without a copy, for callees that keep nothing:
// b must not change while the string is in use.
func viewString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// viewBytes shows s as bytes without a copy. Nobody may write to them.
func viewBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
