package edge

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/narad-mq/narad/apps/ingress-gateway/internal/api"
)

// exchange is one request and its answer. Each connection has one, since HTTP/1.1
// runs one request at a time on it.
type exchange struct {
	req     api.Request
	resp    api.Response
	headers headers
	body    bodyReader
	open    bool // Finish has not been called
}

// begin takes the request out of ctx.
func (x *exchange) begin(c *conn, ctx *fasthttp.RequestCtx, dry bool) {
	x.end(true)
	h := &ctx.Request.Header
	path, query, _ := bytes.Cut(h.RequestURI(), []byte{'?'})
	length := int64(h.ContentLength())
	if length == -2 { // neither Content-Length nor Transfer-Encoding
		length = 0
	}
	x.headers.h = h
	x.body = bodyReader{r: ctx.RequestBodyStream(), length: length, eof: length == 0}
	x.req = api.Request{
		Method: h.Method(), Path: path, Query: query, Host: h.Host(), Headers: &x.headers, Client: c,
		ContentLength: length, Body: &x.body, Dry: dry,
	}
	x.open = true
	c.sent, c.failed = 0, false
}

// end finishes the exchange if that was not done.
func (x *exchange) end(sent bool) {
	if x.open {
		x.open = false
		x.resp.Finish(sent)
	}
}

// write puts the answer into ctx, which the server writes after the handler.
func (x *exchange) write(ctx *fasthttp.RequestCtx) {
	r, h := &x.resp, &ctx.Response.Header
	ctx.Response.SetStatusCode(r.Status)
	if r.ContentType != "" {
		h.SetContentType(r.ContentType)
	}
	switch {
	case r.Stream != nil:
		ctx.Response.SetBodyStream(r.Stream, int(r.Length))
		_ = ctx.SetWriteDeadline(time.Now().Add(api.BackupBudget + writeTimeout)) // the stream ends itself before
	case r.ContentType != "":
		ctx.Response.SetBodyRaw(r.Body) // not copied: it lives until Finish
	}
	h.Set("Narad-Request-Id", r.RequestID)
	setUnlessEmpty(h, "Location", r.Location)
	setUnlessEmpty(h, "ETag", r.ETag)
	setUnlessEmpty(h, "Allow", r.Allow)
	setUnlessEmpty(h, "Retry-After", positive(r.RetryAfterS))
	setUnlessEmpty(h, "Narad-Partitions-Unavailable", positive(r.Unavailable))
	if r.NoStore {
		h.Set("Cache-Control", "no-store")
	}
	if r.Close {
		ctx.SetConnectionClose()
	}
	if r.Leased {
		// A deadline of the handler's own makes the server flush this answer now
		// even if another request is already waiting behind it.
		_ = ctx.SetWriteDeadline(time.Now().Add(writeTimeout)) // it fails when the connection is closed; so will the write
	}
}

func setUnlessEmpty(h *fasthttp.ResponseHeader, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// headers shows fasthttp's headers as the API asks for them.
type headers struct {
	h *fasthttp.RequestHeader
}

// Get implements api.Headers. fasthttp refuses several Host and Content-Length
// lines itself, and keeps only the last of several Content-Type lines.
func (h *headers) Get(name string) ([]byte, int) {
	if name == fasthttp.HeaderContentType {
		v := h.h.ContentType()
		if len(v) == 0 {
			return nil, 0
		}
		return v, countLines(h.h.RawHeaders(), name)
	}
	all := h.h.PeekAll(name)
	if len(all) == 0 {
		return nil, 0
	}
	return all[0], len(all)
}

// countLines counts the header lines of a name in the bytes as they came.
func countLines(raw []byte, name string) (n int) {
	for more := true; more; {
		var line []byte
		line, raw, more = bytes.Cut(raw, []byte{'\n'})
		if len(line) > len(name) && line[len(name)] == ':' && strings.EqualFold(string(line[:len(name)]), name) {
			n++
		}
	}
	return n
}

// Each implements api.Headers.
func (h *headers) Each(f func(name, value []byte) bool) {
	for name, value := range h.h.All() {
		if !f(name, value) {
			return
		}
	}
}

// bodyReader reads a body and knows how much of it is still to come.
type bodyReader struct {
	r      io.Reader
	length int64 // announced; -1: not
	read   int64
	eof    bool
}

// Read implements io.Reader.
func (b *bodyReader) Read(p []byte) (int, error) {
	if b.r == nil || b.eof {
		return 0, io.EOF
	}
	n, err := b.r.Read(p)
	b.read += int64(n)
	switch {
	case err == nil:
		return n, nil
	case err == io.EOF && b.length >= 0 && b.read < b.length:
		return n, io.ErrUnexpectedEOF
	case err == io.EOF:
		b.eof = true
	case timedOut(err):
		return n, api.ErrBodyTimeout
	}
	return n, err
}

// timedOut stands alone so that the hot path does not pay for errors.As.
func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// drainable tells whether the server should read the rest of the body and keep
// the connection; false when so much may come that it must end.
func (b *bodyReader) drainable() bool {
	return b.eof || b.length >= 0 && b.length-b.read <= keepAliveDrain
}

// done tells whether nothing of the body is left.
func (b *bodyReader) done() bool { return b.eof || b.length >= 0 && b.read >= b.length }
