package rpc

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"
)

// The client side of a connection. net/http's costs two goroutines and about 60
// allocations per call, a third of what a gateway spends on a consume; this one
// speaks the same HTTP/1.1, as much of it as our own server does: every answer has
// a length, and nothing comes that was not asked for. Whoever calls writes, and the
// connection's reader, which also notices that an idle one was closed, reads.

// readBuffer holds the head of an answer, and small answers whole.
const readBuffer = 4 << 10

// blocks is what a write may be that is given to an empty socket without a watch
// on its context: it does not block (the least send buffer of Linux is larger).
const blocks = 16 << 10

var (
	errHead      = errors.New("the answer has no head of ours")
	errUnasked   = errors.New("the peer sent what nobody asked for")
	errIdleClose = errors.New("closed while idle")
)

// answer is what came back for one call.
type answer struct {
	status  int
	problem bool // it says that it is a problem document
	body    []byte
	err     error
}

// conn is one connection: in the pool, or in the hands of one call.
type conn struct {
	pool    *pool
	nc      net.Conn
	br      *bufio.Reader
	asked   chan Method // the call under way, for the reader
	answers chan answer
	since   time.Time // in the pool; its mutex guards it

	mu     sync.Mutex // guards closed
	closed bool
}

func newConn(p *pool, nc net.Conn) *conn {
	c := &conn{
		pool: p, nc: nc, br: bufio.NewReaderSize(nc, readBuffer),
		asked: make(chan Method, 1), answers: make(chan answer, 1),
	}
	go c.readAll()
	return c
}

// close ends the connection and its reader.
func (c *conn) close() {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if !closed {
		_ = c.nc.Close()
	}
}

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// call writes one request, header and body in one piece, and waits for its answer.
// sent false: no byte of it left. After an error the connection is closed.
func (c *conn) call(ctx context.Context, m Method, request []byte) (a answer, sent bool) {
	if c.isClosed() {
		return answer{err: errIdleClose}, false
	}
	c.asked <- m
	n, err := c.write(ctx, request)
	if err != nil {
		c.close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return answer{err: err}, n > 0
	}
	select {
	case a = <-c.answers:
		if a.err != nil {
			c.close()
		}
		return a, true
	case <-ctx.Done():
		c.close()
		return answer{err: ctx.Err()}, true
	}
}

func (c *conn) write(ctx context.Context, request []byte) (int, error) {
	if len(request) > blocks {
		stop := context.AfterFunc(ctx, c.close)
		defer stop()
	}
	return c.nc.Write(request)
}

// readAll reads answers as long as the connection lives.
func (c *conn) readAll() {
	for {
		_, err := c.br.Peek(1)
		var m Method
		select {
		case m = <-c.asked:
		default:
			// Closed by the peer, or something that was not asked for.
			c.close()
			c.pool.remove(c)
			return
		}
		a := answer{err: err}
		if err == nil {
			a = c.read(m)
		}
		if a.err == nil && c.br.Buffered() > 0 {
			a.err = errUnasked
		}
		c.answers <- a
		if a.err != nil {
			c.close()
			return
		}
	}
}

// read reads one answer.
func (c *conn) read(m Method) (a answer) {
	h, err := c.readHead()
	if err != nil {
		return answer{err: err}
	}
	limit := m.MaxReply
	if h.status != 200 {
		limit = maxProblemBytes
	}
	switch {
	case h.length < 0:
		return answer{err: fmt.Errorf("status %d: %w", h.status, errNoLength)}
	case h.length > int64(limit):
		return answer{err: fmt.Errorf("status %d: %w: %d bytes", h.status, errTooLarge, h.length)}
	}
	a = answer{status: h.status, problem: h.problem, body: c.pool.client.bufs.get(int(h.length))[:h.length]}
	if _, err := io.ReadFull(c.br, a.body); err != nil {
		return answer{err: fmt.Errorf("status %d, and the answer ended early: %w", h.status, err)}
	}
	if h.close {
		c.close() // the pool sees it
	}
	return a
}

// head is what of an answer's head means something here.
type head struct {
	status  int
	length  int64 // -1: not given
	problem bool
	close   bool
}

// readHead reads a status line and headers, at most maxHeaderBytes of them.
func (c *conn) readHead() (h head, err error) {
	h.length = -1
	left := maxHeaderBytes
	for first := true; ; first = false {
		line, err := c.br.ReadSlice('\n')
		if left -= len(line); err != nil || left < 0 {
			return h, fmt.Errorf("%w: %w", errHead, errors.Join(err))
		}
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		switch {
		case first:
			if h.status, err = statusOf(line); err != nil {
				return h, err
			}
		case len(line) == 0:
			return h, nil
		default:
			if err := h.field(line); err != nil {
				return h, err
			}
		}
	}
}

// statusOf reads "HTTP/1.1 200 OK". An interim answer is none of ours: no request
// asks for one.
func statusOf(line []byte) (int, error) {
	const prefix = "HTTP/1.1 "
	rest, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok || len(rest) < 3 || len(rest) > 3 && rest[3] != ' ' {
		return 0, errHead
	}
	n, err := strconv.ParseUint(string(rest[:3]), 10, 16)
	if err != nil || n < 200 {
		return 0, fmt.Errorf("%w: status %q", errHead, rest[:3])
	}
	return int(n), nil
}

// field takes one header in.
func (h *head) field(line []byte) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok {
		return errHead
	}
	value = bytes.TrimSpace(value)
	switch {
	case equalFold(name, "content-length"):
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil || h.length >= 0 {
			return fmt.Errorf("%w: content length", errHead)
		}
		h.length = int64(n)
	case equalFold(name, "transfer-encoding"):
		return errNoLength
	case equalFold(name, "content-type"):
		h.problem = bytes.HasPrefix(value, []byte(typeProblem[0]))
	case equalFold(name, "connection"):
		h.close = h.close || equalFold(value, "close")
	}
	return nil
}

func equalFold(b []byte, s string) bool { return len(b) == len(s) && bytes.EqualFold(b, []byte(s)) }
