package api

import (
	"bytes"
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

// unzstd decodes a frame that says how long it is in one piece, straight into
// its place, and any other as a stream.
func (c *call) unzstd(body []byte, limit int, code problem.Code) ([]byte, error) {
	var h zstd.Header
	if h.Decode(body) != nil || h.WindowSize > maxZstdWindow {
		return nil, badEncoding("zstd")
	}
	window := int(h.WindowSize)
	if h.Skippable {
		window = maxZstdWindow // the frame behind it has not been looked at
	}
	if h.HasFCS {
		if h.FrameContentSize > uint64(limit) {
			return nil, tooLarge(code, limit)
		}
		room := max(int(h.FrameContentSize), 1)
		if err := c.reserve(room); err != nil {
			return nil, err
		}
		c.arena = grown(c.arena[:0], room)
		if out, err := c.api.inflate.zstd.DecodeAll(body, c.arena[:0:room]); err == nil {
			return out, nil
		}
		// Several frames, or none that is valid: the stream decoder tells.
	}
	if err := c.reserve(window); err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil,
		zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderConcurrency(1), zstd.WithDecodeBuffersBelow(0))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.Reset(bytes.NewReader(body)); err != nil {
		return nil, badEncoding("zstd")
	}
	return c.inflateFrom(r, "zstd", limit, code)
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
	return c.inflateFrom(r, "gzip", limit, code)
}

// inflateFrom reads at most limit bytes into the arena, which grows as they come.
func (c *call) inflateFrom(r io.Reader, encoding string, limit int, code problem.Code) ([]byte, error) {
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
			return nil, badEncoding(encoding)
		}
	}
}
