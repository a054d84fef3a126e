package api

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/narad-mq/narad/libs/problem"
)

// inflater undoes Content-Encoding with bounded memory. Safe for concurrent use.
type inflater struct {
	zstd *zstd.Decoder // DecodeAll only
	gzip sync.Pool     // of *gzip.Reader
}

func newInflater() (*inflater, error) {
	d, err := zstd.NewReader(nil,
		zstd.WithDecoderMaxMemory(MaxBatchBytes),
		zstd.WithDecoderMaxWindow(maxZstdWindow),
		zstd.WithDecodeAllCapLimit(true), // never more than the room that was reserved
		zstd.WithDecoderLowmem(true),
		zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, err
	}
	return &inflater{zstd: d}, nil
}

// contentEncoding tells which decoder a produce body needs: "", "zstd" or
// "gzip". Lists and repeated headers are unsupported_encoding.
func (c *call) contentEncoding() (string, error) {
	v, n := c.req.Headers.Get("Content-Encoding")
	switch {
	case n == 0 || n == 1 && (len(v) == 0 || equalFold(v, "identity")):
		return "", nil
	case n == 1 && equalFold(v, "zstd"):
		return "zstd", nil
	case n == 1 && (equalFold(v, "gzip") || equalFold(v, "x-gzip")):
		return "gzip", nil
	}
	return "", problem.New(problem.UnsupportedEncoding, "send zstd, gzip or no encoding")
}

// readDecoded reads a body and undoes its encoding; limit holds before and after.
func (c *call) readDecoded(encoding string, limit int, code problem.Code) ([]byte, error) {
	body, err := c.readBody(limit, code)
	if err != nil || encoding == "" || len(body) == 0 {
		return body, err
	}
	if encoding == "zstd" {
		return c.unzstd(body, limit, code)
	}
	return c.gunzip(body, limit, code)
}

func badEncoding(encoding string) error {
	return problem.New(problem.InvalidEncoding, "the body is not valid %s", encoding)
}

// unzstd decodes into room that is doubled until it fits: frames need not say
// how long they are, and what they say is not believed.
func (c *call) unzstd(body []byte, limit int, code problem.Code) ([]byte, error) {
	room := 0
	next := min(limit, max(bodyStep, 4*len(body)))
	var h zstd.Header
	if h.Decode(body) == nil && h.HasFCS {
		if h.FrameContentSize > uint64(limit) {
			return nil, tooLarge(code, limit)
		}
		next = max(int(h.FrameContentSize), 1)
	}
	for {
		if err := c.reserve(next - room); err != nil {
			return nil, err
		}
		room = next
		c.arena = grown(c.arena[:0], room)
		out, err := c.api.inflate.zstd.DecodeAll(body, c.arena[:0:room])
		switch {
		case err == nil:
			return out, nil
		case !errors.Is(err, zstd.ErrDecoderSizeExceeded):
			return nil, badEncoding("zstd")
		case room >= limit:
			return nil, tooLarge(code, limit)
		}
		next = min(limit, 2*room)
	}
}

func (c *call) gunzip(body []byte, limit int, code problem.Code) ([]byte, error) {
	pool := &c.api.inflate.gzip
	r, _ := pool.Get().(*gzip.Reader)
	if r == nil {
		r = new(gzip.Reader)
	}
	defer pool.Put(r)
	if err := r.Reset(bytes.NewReader(body)); err != nil {
		return nil, badEncoding("gzip")
	}
	room := 0
	c.arena = c.arena[:0]
	for {
		if len(c.arena) == room {
			if room > limit {
				return nil, tooLarge(code, limit)
			}
			next := min(limit+1, max(bodyStep, 2*room))
			if err := c.reserve(next - room); err != nil {
				return nil, err
			}
			c.arena, room = grown(c.arena, next), next
		}
		n, err := r.Read(c.arena[len(c.arena):room])
		c.arena = c.arena[:len(c.arena)+n]
		if err == io.EOF && len(c.arena) <= limit {
			return c.arena, nil
		}
		if err != nil && err != io.EOF {
			return nil, badEncoding("gzip")
		}
	}
}
